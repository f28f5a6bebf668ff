// An executor of one thread that does the last piece of work first. It stands for a thread pool:
// work that is right in either order is right in any.
#pragma once

#include <cstdint>
#include <functional>

#include "base/executor.h"

namespace artesian::test_support {

class BackwardsExecutor final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t grain,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override {
    for (std::uint64_t end = count; end > 0;) {
      const std::uint64_t begin = (end - 1) / grain * grain;
      body(begin, end);
      end = begin;
    }
  }
};

}  // namespace artesian::test_support
