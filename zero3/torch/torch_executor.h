// LibTorch's own threads as an Executor.
#pragma once

#include "base/executor.h"

namespace artesian::zero3 {

class TorchExecutor final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t grain,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override;
};

}  // namespace artesian::zero3
