// Runs the contract of device backends on a GPU, and proves what is CUDA's own. Memory beyond the
// GPU's is an error that names the budget and both sizes, and leaves the device as it was. An index
// without a GPU is refused by name. Skips (exit 77) without a device.
#include "tiering/device/cuda_device.h"

#include <cuda_runtime_api.h>

#include "tests/support/gpu_main.h"
#include "tests/tiering/device/device_contract.h"

namespace artesian::tiering {
namespace {

struct Cuda {
  static std::unique_ptr<Device> make() { return CudaDevice::open(0, nullptr).value(); }
};
/// Beside a LibTorch whose current stream is not the default one.
struct CudaWithAStream {
  static std::unique_ptr<Device> make() {
    static const cudaStream_t stream = [] {  // of the process
      cudaStream_t made = nullptr;
      EXPECT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
      return made;
    }();
    return CudaDevice::open(0, stream).value();
  }
};
using Backends = testing::Types<Cuda, CudaWithAStream>;
INSTANTIATE_TYPED_TEST_SUITE_P(OnAGpu, DeviceContract, Backends);

TEST(CudaDevice, MemoryBeyondTheGpusNamesTheBudgetAndLeavesTheDeviceAlone) {
  auto device = CudaDevice::open(0, nullptr).value();
  EXPECT_EQ(device->name(), "cuda:0");
  EXPECT_FALSE(device->host_accessible());
  const auto free = CudaDevice::free_memory(0).value();
  const auto refused = device->create_arena(free * 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
  for (const std::string& part : {std::string("artesian.device_memory: "),
                                  std::string(" asked for, "), std::string(" free of ")}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  EXPECT_TRUE(device->create_arena(1 << 20).has_value());
}

TEST(CudaDevice, RefusesAnIndexThatIsNotThere) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  const auto refused = CudaDevice::check(count);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
  EXPECT_NE(refused.error().message.find("cuda:" + std::to_string(count)), std::string::npos);
}

TEST(CudaDevice, ItsNumaNodeIsTheOneThatCudaNames) {
  int node = -1;
  const auto asked = cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, 0);
  const auto found = CudaDevice::open(0, nullptr).value()->numa_node();
  if (asked != cudaSuccess || node < 0 || !found.has_value()) GTEST_SKIP() << "not known here";
  EXPECT_EQ(*found, static_cast<std::uint32_t>(node));
}

TEST(CudaDevice, ReusesItsEvents) {
  auto device = CudaDevice::open(0, nullptr).value();
  auto pool = device->create_arena(1 << 20).value();
  std::byte* memory = pool->range().data();
  for (int round = 0; round < 10'000; ++round) {
    ASSERT_TRUE(device->zero(Queue::ToDevice, memory, 4096).has_value());
    const auto fence = device->record(Queue::ToDevice).value();
    ASSERT_TRUE(device->wait(Queue::Compute, fence).has_value());
    if (round % 100 == 0) {
      ASSERT_TRUE(device->finish(fence).has_value());
    }
  }
  EXPECT_TRUE(device->finish_all().has_value());
}

}  // namespace
}  // namespace artesian::tiering

int main(int argc, char** argv) {
  return artesian::test_support::run_gpu_tests(argc, argv);
}
