// Proves that LibTorch's real CUDA part, where this LibTorch has it, is what the doubles of
// libtorch_cuda_test.cpp take it for: it can be loaded after plain operators on the CPU, it then
// registers its hooks, and its allocator throws when it is asked for statistics before it is
// initialized. Needs no GPU. Exits with 77 where the wheel is for CPUs alone.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "zero3/torch/first_calls.h"

namespace artesian::zero3 {
namespace {

TEST(LibTorchCudaLibrary, HasAnAllocatorThatThrowsUntilItIsInitialized) {
  EXPECT_TRUE(at::CUDAHooksRegistry()->Has("CUDAHooks"));
  EXPECT_TRUE(at::globalContext().hasCUDART());
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(c10::kCUDA);
  EXPECT_FALSE(allocator->initialized());
  EXPECT_THROW(allocator->getDeviceStats(0), c10::Error);
}

}  // namespace
}  // namespace artesian::zero3

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  artesian::zero3::make_first_calls();  // as an engine does before it opens a device
  Dl_info torch{};
  if (::dladdr(reinterpret_cast<void*>(&c10::alloc_cpu), &torch) == 0) return 1;
  const std::string c10_path = torch.dli_fname;
  const std::string library = c10_path.substr(0, c10_path.rfind('/') + 1) + "libtorch_cuda.so";
  if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::printf("skipped: no CUDA in this LibTorch: %s\n", ::dlerror());
    return 77;
  }
  return RUN_ALL_TESTS();
}
