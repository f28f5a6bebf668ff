// Proves on a CUDA runtime that runs on the host (tests/support/cuda_on_host) what no GPU does on
// demand: too little memory, any call that fails, work that fails later, a device that does not
// answer, unusable drivers and GPUs, another device selected meanwhile. Each time the error says
// what to do, and all resources are released. It also proves that this runtime shows mistakes.
#include "tiering/device/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>

#include "base/random.h"
#include "kernels/cast.h"
#include "tests/support/cuda_on_host/machine.h"

namespace artesian::tiering {
namespace {

using test_support::cuda_on_host;
using test_support::CudaOnHost;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::uint64_t count) {
  Bytes bytes(count);
  for (std::uint64_t i = 0; i < count; ++i) bytes[i] = std::byte(random_word(1, 0, i) >> 56);
  return bytes;
}

class CudaOnHostTest : public testing::Test {
 protected:
  CudaOnHostTest() { new_machine(CudaOnHost::Order::Late); }
  ~CudaOnHostTest() override {
    pool.reset();
    device.reset();
    EXPECT_EQ(CudaOnHost::left(), "");
  }

  static void new_machine(CudaOnHost::Order order) {
    CudaOnHost::reset();
    cuda_on_host().order = order;
  }
  void open() {
    device = CudaDevice::open(0, nullptr).value();
    pool = device->create_arena(1 << 20).value();
    memory = pool->range().data();
  }
  /// Copies to the device, through a kernel of each queue, and back.
  Result<void> use() {
    auto* values = reinterpret_cast<float*>(memory + 8192);
    ARTESIAN_TRY_VOID(device->copy_to_device(memory, sent.data(), sent.size()));
    ARTESIAN_TRY_VOID(device->expand(Queue::ToDevice, memory, DType::BFloat16, values, 2048));
    ARTESIAN_TRY_VOID(device->join_queues());
    ARTESIAN_TRY_VOID(device->zero(Queue::Compute, memory, 4096));
    ARTESIAN_TRY_VOID(device->join_queues());
    ARTESIAN_TRY_VOID(device->copy_to_host(received.data(), memory + 8192, received.size()));
    return device->finish_all();
  }
  void expect_used() {
    const auto used = use();
    ASSERT_TRUE(used.has_value()) << used.error().to_string();
    Bytes expected(8192);
    kernels::expand(sent.data(), DType::BFloat16, reinterpret_cast<float*>(expected.data()), 2048);
    EXPECT_EQ(received, expected);
  }
  static void expect_says(const Error& error, ErrorCode code, std::vector<std::string> parts) {
    EXPECT_EQ(error.code, code) << error.message;
    for (const std::string& part : parts) {
      EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
    }
  }

  const Bytes sent = random_bytes(4096);
  Bytes received = Bytes(8192);
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<pinned::Pool> pool;
  std::byte* memory = nullptr;
};

TEST_F(CudaOnHostTest, MemoryThatIsNotThereIsRefusedByBudgetAndTheRestStillServes) {
  open();
  const std::string free = std::to_string((1 << 30) - (1 << 20) - 256) + " bytes";
  for (const std::uint64_t bytes : {std::uint64_t{1} << 30, ~std::uint64_t{0}}) {
    const auto refused = device->create_arena(bytes);
    ASSERT_FALSE(refused.has_value());
    expect_says(refused.error(), ErrorCode::Exhausted,
                {"artesian.device_memory: " + std::to_string(bytes), free, "cuda:0", "lower it"});
  }
  cuda_on_host().failing_call = "cudaMalloc";
  cuda_on_host().failing_with = cudaErrorMemoryAllocation;
  EXPECT_EQ(device->create_arena(4096).error().code, ErrorCode::Exhausted);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for somebody else";
  expect_used();
}

constexpr auto orders = {CudaOnHost::Order::Late, CudaOnHost::Order::Early,
                         CudaOnHost::Order::Random};

TEST_F(CudaOnHostTest, AnyCallMayFailAndIsReportedAndLosesNothing) {
  for (const auto order : orders) {
    for (const char* call :
         {"cudaSetDevice", "cudaDeviceGetAttribute", "cudaStreamCreateWithFlags", "cudaMalloc",
          "cudaMemsetAsync", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent",
          "cudaMemGetInfo", "cudaMemcpyAsync", "cudaLaunchKernelEx", "cudaEventQuery"}) {
      SCOPED_TRACE(call);
      new_machine(order);
      cuda_on_host().failing_call = call;
      auto opened = CudaDevice::open(0, nullptr);
      const bool could_open = opened.has_value();
      EXPECT_EQ(could_open, !cuda_on_host().failing_call.empty());
      cuda_on_host().failing_call.clear();
      if (could_open) opened->reset();
      open();
      cuda_on_host().failing_call = call;
      auto arena = device->create_arena(4096);
      const auto used = use();
      const bool failed = cuda_on_host().failing_call.empty();
      EXPECT_EQ(!arena.has_value() || !used.has_value(), failed);
      if (!used.has_value()) {
        expect_says(used.error(), ErrorCode::Io, {"cuda:0: "});
      }
      EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for somebody else";
      EXPECT_TRUE(failed || !could_open);
      cuda_on_host().failing_call.clear();
      if (arena.has_value()) arena->reset();
      const bool works = device->finish_all().has_value();
      pool.reset();
      device.reset();
      EXPECT_EQ(CudaOnHost::left().empty(), works) << CudaOnHost::left();
      // If the state of work cannot be queried, the device is given up.
      EXPECT_TRUE(works || std::string(call) == "cudaEventQuery") << call;
    }
  }
  CudaOnHost::reset();
}

TEST_F(CudaOnHostTest, WorkThatFailsIsReportedWithWhatToDoByWhateverIsCalledNext) {
  for (const int operations : {0, 1, 2, 3}) {
    for (const bool polled : {true, false}) {
      new_machine(CudaOnHost::Order::Late);
      open();
      cuda_on_host().operations_until_failure = operations;
      auto used = use();
      ASSERT_FALSE(used.has_value());
      if (polled) {
        const auto fence = DeviceFence{Queue::ToHost, 1};
        EXPECT_TRUE(device->ready(fence));
        used = device->finish(fence);
      } else {
        used = device->zero(Queue::ToDevice, memory, 4096);
      }
      ASSERT_FALSE(used.has_value());
      expect_says(used.error(), ErrorCode::Io,
                  {"cuda:0: ", "an illegal memory access was encountered", "outside its stage"});
      EXPECT_FALSE(device->record(Queue::Compute).has_value());
      EXPECT_FALSE(use().has_value());
      device->unregister_host(received);
      pool.reset();
      device.reset();
    }
  }
  CudaOnHost::reset();  // a device that has failed releases nothing
}

TEST_F(CudaOnHostTest, ADeviceThatDoesNotAnswerIsGivenUpAtTheDeadlineAndItsMemoryIsLeftAlone) {
  open();
  ASSERT_TRUE(device->register_host(received).has_value());
  ASSERT_TRUE(device->copy_to_host(received.data(), memory, received.size()).has_value());
  ASSERT_TRUE(device->record(Queue::ToHost).has_value());
  const DeviceFence fence = device->record(Queue::ToHost).value();
  ASSERT_TRUE(device->record(Queue::Compute).has_value());
  cuda_on_host().hangs = true;
  device->set_wait_seconds(0.01);
  EXPECT_FALSE(device->ready(fence));
  const auto passed = device->finish(fence);
  ASSERT_FALSE(passed.has_value());
  expect_says(passed.error(), ErrorCode::Timeout,
              {"cuda:0", "within 0.01 s; not passed: Compute: 1 fences, the first for ",
               "; ToHost: 2 fences, the first for "});
  device->set_wait_seconds(3600.0);  // not waited for again
  device->unregister_host(received);
  pool.reset();
  device.reset();
  EXPECT_EQ(CudaOnHost::left(), "2 allocations 1 registrations ");
  CudaOnHost::reset();
}

TEST_F(CudaOnHostTest, ADeviceThatAnswersAgainGoesOn) {
  open();
  ASSERT_TRUE(device->copy_to_device(memory, sent.data(), sent.size()).has_value());
  const DeviceFence fence = device->record(Queue::ToDevice).value();
  cuda_on_host().hangs = true;
  device->set_wait_seconds(0.0);
  EXPECT_EQ(device->finish(fence).error().code, ErrorCode::Timeout);
  cuda_on_host().hangs = false;
  device->set_wait_seconds(60.0);
  EXPECT_TRUE(device->finish(fence).has_value());
  expect_used();
}

TEST_F(CudaOnHostTest, NothingIsInFlightOnceADeviceOrItsArenaIsGone) {
  open();
  ASSERT_TRUE(device->copy_to_device(memory, sent.data(), sent.size()).has_value());
  pool.reset();  // the copy would otherwise write to freed memory
  pool = device->create_arena(1 << 20).value();
  memory = pool->range().data();
  ASSERT_TRUE(device->copy_to_device(memory, sent.data(), sent.size()).has_value());
  ASSERT_TRUE(device->join_queues().has_value());
  ASSERT_TRUE(device->copy_to_host(received.data(), memory, sent.size()).has_value());
  ASSERT_TRUE(device->register_host(received).has_value());
  device->unregister_host(received);
  EXPECT_EQ(Bytes(received.begin(), received.begin() + 4096), sent);
  ASSERT_TRUE(device->zero(Queue::Compute, memory, 4096).has_value());
  ASSERT_TRUE(device->copy_to_host(received.data(), memory, 4096).has_value());
  pool.reset();
  device.reset();
  received = Bytes();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // runs what is left
}

/// Reserved addresses that have no memory until they are touched.
class Reserved {
 public:
  explicit Reserved(std::uint64_t bytes) {
    void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(pages, MAP_FAILED);
    range = {static_cast<std::byte*>(pages), bytes};
  }
  ~Reserved() { ::munmap(range.data(), range.size()); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  std::span<std::byte> range;
};

TEST_F(CudaOnHostTest, MoreHostMemoryThanADriverTakesAtOnceIsPageLockedInPiecesThatCopiesMayCross) {
  open();
  constexpr std::uint64_t piece = CudaDevice::registered_piece_bytes;
  cuda_on_host().registration_bytes_max = piece;
  const Reserved host(2 * piece + 4096);
  ASSERT_TRUE(device->register_host(host.range).has_value());
  EXPECT_NE(CudaOnHost::left().find("3 registrations"), std::string::npos) << CudaOnHost::left();
  for (const std::uint64_t meeting : {piece, 2 * piece}) {
    std::byte* across = host.range.data() + meeting - 1000;
    std::copy_n(sent.begin(), 4096, across);
    ASSERT_TRUE(device->copy_to_device(memory, across, 4096).has_value());
    ASSERT_TRUE(device->join_queues().has_value());
    ASSERT_TRUE(device->copy_to_host(across, memory, 4096).has_value());
    ASSERT_TRUE(device->finish(device->record(Queue::ToHost).value()).has_value());
    EXPECT_TRUE(std::equal(across, across + 4096, sent.begin()));
  }
  device->unregister_host(host.range);
  EXPECT_EQ(CudaOnHost::left().find("registrations"), std::string::npos) << CudaOnHost::left();
}

TEST_F(CudaOnHostTest, WhatIsPageLockedAlreadyIsLeftOutAndCopiesMayCrossIt) {
  open();
  constexpr std::uint64_t piece = CudaDevice::registered_piece_bytes;
  const Reserved host(2 * piece);
  const std::span<std::byte> buffers = host.range.subspan(piece - 8192, 16384);
  ASSERT_TRUE(device->register_host(buffers).has_value());
  for (int turn = 0; turn < 2; ++turn) {  // the second turn has nothing left to do
    const auto registered = device->register_host(host.range);
    ASSERT_TRUE(registered.has_value()) << registered.error().to_string();
    EXPECT_NE(CudaOnHost::left().find("3 registrations"), std::string::npos) << CudaOnHost::left();
  }
  std::byte* across = buffers.data() - 1000;
  for (const std::ptrdiff_t distance : {std::ptrdiff_t{0}, std::ptrdiff_t{16384}}) {
    std::copy_n(sent.begin(), 4096, across + distance);
    ASSERT_TRUE(device->copy_to_device(memory, across + distance, 4096).has_value());
    ASSERT_TRUE(device->join_queues().has_value());
    ASSERT_TRUE(device->copy_to_host(received.data(), memory, 4096).has_value());
    ASSERT_TRUE(device->finish(device->record(Queue::ToHost).value()).has_value());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), received.begin()));
  }
  device->unregister_host(host.range);
  EXPECT_EQ(CudaOnHost::left().find("registrations"), std::string::npos);
}

TEST_F(CudaOnHostTest, WhatWasPageLockedBeforeAnErrorIsUsedAndGivenBack) {
  open();
  constexpr std::uint64_t piece = CudaDevice::registered_piece_bytes;
  const Reserved host(3 * piece);
  const std::span<std::byte> buffers = host.range.subspan(piece + 4096, 4096);
  ASSERT_TRUE(device->register_host(buffers).has_value());
  cuda_on_host().registered_bytes_max = piece + 8192;
  const auto refused = device->register_host(host.range.subspan(4096));
  ASSERT_FALSE(refused.has_value());
  expect_says(refused.error(), ErrorCode::Exhausted, {"out of memory", "16.0 GiB of 48.0 GiB are"});
  EXPECT_NE(CudaOnHost::left().find("2 registrations"), std::string::npos) << CudaOnHost::left();
  std::byte* across = buffers.data() + 3096;  // from page-locked memory into memory that is not
  std::copy_n(sent.begin(), 4096, across);
  ASSERT_TRUE(device->copy_to_device(memory, across, 4096).has_value());
  device->unregister_host(host.range);
  EXPECT_EQ(CudaOnHost::left().find("registrations"), std::string::npos);
}

TEST_F(CudaOnHostTest, HostMemoryThatCannotBePageLockedIsCopiedAsWell) {
  open();
  ASSERT_EQ(cudaHostRegister(received.data(), received.size(), 0), cudaSuccess);  // by other code
  const auto twice = device->register_host(received);
  ASSERT_FALSE(twice.has_value());
  expect_says(twice.error(), ErrorCode::Io, {"cuda:0: page-locking host memory: "});
  device->unregister_host(received);  // registered by other code: no effect
  ASSERT_EQ(cudaHostUnregister(received.data()), cudaSuccess);
  cuda_on_host().failing_call = "cudaHostRegister";
  cuda_on_host().failing_with = cudaErrorMemoryAllocation;
  const auto refused = device->register_host(received);
  ASSERT_FALSE(refused.has_value());
  expect_says(refused.error(), ErrorCode::Exhausted, {"page-locking host memory", "out of memory"});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  device->unregister_host(received);  // not registered: no effect
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  expect_used();
}

TEST_F(CudaOnHostTest, WhatCannotBeUsedIsRefusedWithWhatToDo) {
  const auto refused = [&](int index) {
    const auto checked = CudaDevice::check(index);
    EXPECT_FALSE(checked.has_value());
    EXPECT_EQ(CudaDevice::open(index, nullptr).error().message, checked.error().message);
    EXPECT_EQ(CudaDevice::free_memory(index).error().message, checked.error().message);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    return checked.error();
  };
  expect_says(refused(1), ErrorCode::Invalid, {"cuda:1", "cuda:0, the only one"});
  expect_says(refused(-1), ErrorCode::Invalid, {"cuda:-1"});
  cuda_on_host().devices = 3;
  EXPECT_TRUE(CudaDevice::check(2).has_value());
  expect_says(refused(3), ErrorCode::Invalid, {"cuda:3", "cuda:0 to cuda:2"});
  cuda_on_host().capability_major = 7;
  expect_says(refused(0), ErrorCode::Unsupported, {"cuda:0", "capability 7", "8.0 or newer"});
  cuda_on_host().devices = 0;
  expect_says(refused(0), ErrorCode::Unsupported,
              {"no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES"});
  const std::string needed =
      "install a driver for CUDA " + std::to_string(CUDART_VERSION / 1000) + " or newer";
  cuda_on_host().driver_version = 12020;
  expect_says(refused(0), ErrorCode::Unsupported, {"the NVIDIA driver is for CUDA 12.2", needed});
  cuda_on_host().driver_version = 0;
  expect_says(refused(0), ErrorCode::Unsupported, {"there is no NVIDIA driver", needed});
}

TEST_F(CudaOnHostTest, AnotherDeviceOfTheThreadChangesNothing) {
  cuda_on_host().devices = 2;
  auto second = CudaDevice::open(1, nullptr).value();
  auto arena = second->create_arena(1 << 20).value();
  std::byte* there = arena->range().data();
  auto* values = reinterpret_cast<float*>(there + 8192);
  DeviceFence fence;
  const auto record = [&](Queue queue) {
    return [&, queue]() -> Result<void> {
      ARTESIAN_TRY(recorded, second->record(queue));
      fence = recorded;
      return {};
    };
  };
  const std::vector<std::function<Result<void>()>> steps{
      [&] { return second->register_host(received); },
      [&] { return second->copy_to_device(there, sent.data(), sent.size()); },
      record(Queue::ToDevice),
      [&] { return second->wait(Queue::Compute, fence); },
      [&] { return second->expand(Queue::Compute, there, DType::BFloat16, values, 2048); },
      [&] { return second->zero(Queue::Compute, there + 8192 + 4096, 4096); },
      record(Queue::Compute),
      [&] { return second->wait(Queue::ToHost, fence); },
      [&] { return second->copy_to_host(received.data(), there + 8192, 8192); },
      record(Queue::ToHost),
      [&] { return second->finish(fence); },
  };
  for (const auto& step : steps) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const auto outcome = step();
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
  }
  Bytes expected(8192);
  kernels::expand(sent.data(), DType::BFloat16, reinterpret_cast<float*>(expected.data()), 1024);
  EXPECT_EQ(received, expected);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  second->unregister_host(received);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  arena.reset();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  second.reset();
}

// The runtime itself.

TEST_F(CudaOnHostTest, AMissingWaitShows) {
  open();
  ASSERT_TRUE(device->copy_to_device(memory, sent.data(), 4096).has_value());
  ASSERT_TRUE(device->copy_to_host(received.data(), memory, 4096).has_value());
  ASSERT_TRUE(device->finish(device->record(Queue::ToHost).value()).has_value());
  EXPECT_EQ(Bytes(received.begin(), received.begin() + 4096), Bytes(4096, std::byte{0xff}));
}

TEST_F(CudaOnHostTest, AnEventReusedTooEarlyAndASourceChangedTooEarlyShow) {
  open();
  cudaStream_t streams[2];
  cudaEvent_t event = nullptr;
  for (auto& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  Bytes source(16, std::byte{1});
  ASSERT_EQ(cudaMemcpyAsync(memory, source.data(), 16, cudaMemcpyHostToDevice, streams[0]),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, streams[0]), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(nullptr, event, 0), cudaSuccess);  // of what is captured now
  ASSERT_EQ(cudaEventRecord(event, streams[1]), cudaSuccess);
  while (cudaEventQuery(event) == cudaErrorNotReady)
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  source.assign(16, std::byte{2});  // the copy has not run
  ASSERT_EQ(cudaMemcpy(received.data(), memory, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(received[0], std::byte{2});
  for (auto& stream : streams) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(CudaOnHostTest, MemoryOfTheWrongKindShows) {
  open();
  EXPECT_EQ(device->copy_to_device(received.data(), sent.data(), 16).error().code, ErrorCode::Io);
  EXPECT_EQ(device->copy_to_host(memory, received.data(), 16).error().code, ErrorCode::Io);
  EXPECT_EQ(device->zero(Queue::Compute, received.data(), 16).error().code, ErrorCode::Io);
  EXPECT_EQ(device->zero(Queue::Compute, memory + (1 << 20) - 8, 16).error().code, ErrorCode::Io);
  EXPECT_DEATH(memory[0] = std::byte{1}, "");
}

TEST_F(CudaOnHostTest, WaitingForADeviceThatDoesNotAnswerShows) {
  open();
  ASSERT_TRUE(device->zero(Queue::Compute, memory, 16).has_value());
  cuda_on_host().hangs = true;
  EXPECT_DEATH(cudaFree(memory), "cudaFree: waits for ever");
  EXPECT_DEATH(cudaHostUnregister(received.data()), "cudaHostUnregister: waits for ever");
  EXPECT_DEATH(cudaDeviceSynchronize(), "waits for ever");
  cuda_on_host().hangs = false;
}

}  // namespace
}  // namespace artesian::tiering
