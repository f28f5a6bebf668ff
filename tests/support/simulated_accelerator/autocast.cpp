// Autocast on the simulated accelerator, by PyTorch's own lists.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {
namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define ARTESIAN_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define ARTESIAN_TO_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define ARTESIAN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(ARTESIAN_LOWER)
  AT_FORALL_FP32(ARTESIAN_TO_FP32)
  AT_FORALL_PROMOTE(ARTESIAN_PROMOTE)
}

}  // namespace
}  // namespace at::autocast
