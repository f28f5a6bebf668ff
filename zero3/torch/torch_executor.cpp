#include "zero3/torch/torch_executor.h"

#include <ATen/Parallel.h>

#include "base/check.h"

namespace artesian::zero3 {

void TorchExecutor::parallel_for(std::uint64_t count, std::uint64_t grain,
                                 const std::function<void(std::uint64_t, std::uint64_t)>& body) {
  if (count == 0) return;
  ARTESIAN_CHECK(grain != 0);
  at::parallel_for(0, static_cast<std::int64_t>(count), static_cast<std::int64_t>(grain),
                   [&](std::int64_t begin, std::int64_t end) {
                     body(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
                   });
}

}  // namespace artesian::zero3
