// Proves that LibTorch's real CUDA part, if this LibTorch has it, behaves as the doubles of
// libtorch_cuda_test.cpp assume. check_device() loads it from LibTorch's folder, after plain
// operators on the CPU; then its hooks are registered, and its allocator throws when it is asked
// for statistics before it is initialized. It brings a NCCL that comm/nccl.h describes. Needs no
// GPU: tests/support/cuda_on_host reports one. Exits with 77 if the wheel is for CPUs alone.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "comm/nccl.h"
#include "zero3/torch/compute_device.h"
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

TEST(LibTorchCudaLibrary, BringsANcclWithEachFunctionThatIsCalled) {
  const auto nccl = comm::loaded_nccl();
  ASSERT_TRUE(nccl.has_value()) << nccl.error().to_string();
  EXPECT_STREQ(nccl->get_error_string(comm::NcclResult::Success), "no error");
  EXPECT_STREQ(nccl->get_error_string(comm::NcclResult::InProgress), "NCCL operation in progress");
  ASSERT_EQ(::setenv("ARTESIAN_NCCL", "0", 1), 0);
  EXPECT_FALSE(comm::loaded_nccl().has_value());
  ::unsetenv("ARTESIAN_NCCL");
}

}  // namespace
}  // namespace artesian::zero3

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  artesian::zero3::make_first_calls();  // as an engine does before it opens a device
  const auto loaded = artesian::zero3::check_device("cuda:0");
  if (loaded.has_value()) return RUN_ALL_TESTS();
  std::printf("%s\n", loaded.error().to_string().c_str());
  return loaded.error().message.find("this LibTorch has no CUDA") != std::string::npos ? 77 : 1;
}
