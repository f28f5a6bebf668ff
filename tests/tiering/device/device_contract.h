// The contract of device backends (tiering/device/device.h), as typed tests. Enqueued work runs in
// the order of its queue and of fences alone. Kernels have the bits of their CPU versions. The
// arena is a hard limit and is released. The host may wait for any fence, and query it. A backend
// is a struct with `static std::unique_ptr<tiering::Device> make()`.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/cast.h"
#include "tiering/device/device.h"
#include "tiering/device_reader.h"

namespace artesian::tiering {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::uint64_t count, std::uint64_t stream) {
  Bytes bytes(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(random_word(17, stream, i) >> 56);
  }
  return bytes;
}

/// Finite values of very different sizes, as `dtype`.
inline Bytes random_values(std::uint64_t count, DType dtype, std::uint64_t stream) {
  Bytes bytes(count * dtype_size(dtype));
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto word = static_cast<std::int64_t>(random_word(18, stream, i) >> 40);
    values[i] = static_cast<float>(word - (1 << 23)) * (i % 3 == 0 ? 0x1p-20f : 0x1p-34f);
  }
  static_cast<void>(kernels::narrow(values.data(), bytes.data(), dtype, count));
  return bytes;
}

constexpr DType all_dtypes[] = {DType::Float32, DType::Float16, DType::BFloat16};

template <typename Backend>
class DeviceContract : public testing::Test {
 protected:
  static constexpr std::uint64_t page = 4096;

  void SetUp() override {
    auto arena = backend->create_arena(1 << 20);
    ASSERT_TRUE(arena.has_value()) << arena.error().to_string();
    pool = std::move(arena).value();
  }
  void TearDown() override {
    EXPECT_TRUE(backend->finish_all().has_value());
    leases.clear();
  }

  std::byte* lend(std::uint64_t bytes) {
    leases.push_back(pool->lease(bytes).value());
    return leases.back().data();
  }
  /// Device memory that holds the bytes, for all queues.
  std::byte* put(const Bytes& bytes) {
    std::byte* memory = lend(bytes.size());
    EXPECT_TRUE(backend->copy_to_device(memory, bytes.data(), bytes.size()).has_value());
    EXPECT_TRUE(backend->finish(backend->record(Queue::ToDevice).value()).has_value());
    return memory;
  }
  /// Returns the bytes of device memory after `fence`.
  Bytes get(const std::byte* memory, std::uint64_t bytes, DeviceFence fence) {
    Bytes result(bytes);
    EXPECT_TRUE(backend->wait(Queue::ToHost, fence).has_value());
    EXPECT_TRUE(backend->copy_to_host(result.data(), memory, bytes).has_value());
    EXPECT_TRUE(backend->finish(backend->record(Queue::ToHost).value()).has_value());
    return result;
  }
  Bytes get(const std::byte* memory, std::uint64_t bytes, Queue after) {
    return get(memory, bytes, backend->record(after).value());
  }

  std::unique_ptr<Device> backend = Backend::make();
  std::unique_ptr<pinned::Pool> pool;
  std::vector<BufferLease> leases;
};

TYPED_TEST_SUITE_P(DeviceContract);

TYPED_TEST_P(DeviceContract, BringsBytesThereAndBackAndCountsThem) {
  Device& device = *this->backend;
  for (const std::uint64_t bytes : {1u, 7u, 4096u, 100'001u}) {
    const Bytes sent = random_bytes(bytes, bytes);
    const std::uint64_t there = device.bytes_to_device();
    const std::uint64_t back = device.bytes_to_host();
    EXPECT_EQ(this->get(this->put(sent), bytes, Queue::ToDevice), sent);
    EXPECT_EQ(device.bytes_to_device() - there, bytes);
    EXPECT_EQ(device.bytes_to_host() - back, bytes);
  }
}

TYPED_TEST_P(DeviceContract, CopiesWithinItsMemoryInTheOrderOfAQueue) {
  Device& device = *this->backend;
  for (const Queue queue : {Queue::Compute, Queue::ToDevice}) {
    for (const std::uint64_t bytes : {1u, 4096u, 100'001u}) {
      const Bytes sent = random_bytes(bytes, bytes);
      const std::byte* const first = this->put(sent);
      std::byte* const second = this->lend(bytes);
      std::byte* const third = this->lend(bytes);
      ASSERT_TRUE(device.copy_within(queue, second, first, bytes).has_value());
      ASSERT_TRUE(device.copy_within(queue, third, second, bytes).has_value());
      EXPECT_EQ(this->get(third, bytes, queue), sent);
    }
  }
}

TYPED_TEST_P(DeviceContract, TheArenaIsAHardLimitAndIsGivenBack) {
  EXPECT_GE(this->pool->statistics().bytes_reserved, std::uint64_t{1} << 20);
  const auto more = this->pool->lease((1 << 20) + 4096);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code, ErrorCode::Exhausted);
  this->pool.reset();
  const auto never = this->backend->create_arena(std::uint64_t{1} << 60);
  ASSERT_FALSE(never.has_value());
  EXPECT_EQ(never.error().code, ErrorCode::Exhausted);
  auto again = this->backend->create_arena(5000);
  ASSERT_TRUE(again.has_value()) << again.error().to_string();
  EXPECT_EQ((*again)->statistics().bytes_reserved, 8192u);
  this->pool = std::move(again).value();
}

TYPED_TEST_P(DeviceContract, FencesOrderTheQueues) {
  Device& device = *this->backend;
  constexpr std::uint64_t bytes = 64 << 10;
  constexpr std::uint64_t rounds = 50;
  std::byte* memory = this->lend(bytes);
  std::vector<Bytes> sent;
  std::vector<Bytes> received(rounds, Bytes(bytes));
  for (std::uint64_t round = 0; round < rounds; ++round) {
    sent.push_back(random_bytes(bytes, 100 + round));
  }
  for (std::uint64_t round = 0; round < rounds; ++round) {  // one range, and no wait of the host
    ASSERT_TRUE(device.copy_to_device(memory, sent[round].data(), bytes).has_value());
    const auto there = device.record(Queue::ToDevice).value();
    ASSERT_TRUE(device.wait(Queue::ToHost, there).has_value());
    ASSERT_TRUE(device.copy_to_host(received[round].data(), memory, bytes).has_value());
    const auto back = device.record(Queue::ToHost).value();
    ASSERT_TRUE(device.wait(Queue::ToDevice, back).has_value());
  }
  ASSERT_TRUE(device.finish_all().has_value());
  EXPECT_EQ(received, sent);
}

TYPED_TEST_P(DeviceContract, AFenceHasPassedOnceTheHostHasWaitedForIt) {
  Device& device = *this->backend;
  EXPECT_TRUE(device.ready(DeviceFence{}));
  EXPECT_TRUE(device.finish(DeviceFence{}).has_value());
  std::byte* memory = this->lend(4096);
  for (const Queue queue : {Queue::Compute, Queue::ToDevice, Queue::ToHost}) {
    if (queue != Queue::ToHost) {
      ASSERT_TRUE(device.zero(queue, memory, 4096).has_value());
    }
    const auto first = device.record(queue).value();
    const auto second = device.record(queue).value();
    ASSERT_TRUE(device.finish(second).has_value());
    EXPECT_TRUE(device.ready(second));
    EXPECT_TRUE(device.ready(first));
    ASSERT_TRUE(device.join_queues().has_value());
  }
}

TYPED_TEST_P(DeviceContract, CopiesOfRegisteredMemoryAreTheSame) {
  auto host = pinned::Pool::create({.bytes = 1 << 20, .lock = pinned::Lock::Never}).value();
  ASSERT_TRUE(this->backend->register_host(host->range()).has_value());
  {
    const BufferLease from = host->lease(100'000).value();
    const BufferLease into = host->lease(100'000).value();
    const Bytes sent = random_bytes(100'000, 3);
    std::memcpy(from.data(), sent.data(), sent.size());
    std::byte* memory = this->lend(sent.size());
    Device& device = *this->backend;
    ASSERT_TRUE(device.copy_to_device(memory, from.data(), sent.size()).has_value());
    ASSERT_TRUE(device.join_queues().has_value());
    ASSERT_TRUE(device.copy_to_host(into.data(), memory, sent.size()).has_value());
    ASSERT_TRUE(device.finish_all().has_value());
    EXPECT_EQ(std::memcmp(into.data(), sent.data(), sent.size()), 0);
  }
  this->backend->unregister_host(host->range());
}

TYPED_TEST_P(DeviceContract, ZeroAndExpandAreExact) {
  for (const Queue queue : {Queue::Compute, Queue::ToDevice}) {
    for (const DType dtype : {DType::Float16, DType::BFloat16}) {
      for (const std::uint64_t count : {1u, 9u, 5000u}) {
        const Bytes narrow = random_values(count, dtype, count);
        std::byte* source = this->put(narrow);
        std::byte* target = this->put(random_bytes((count + 1) * 4, 1));
        ASSERT_TRUE(this->backend->zero(queue, target, (count + 1) * 4).has_value());
        ASSERT_TRUE(
            this->backend->expand(queue, source, dtype, reinterpret_cast<float*>(target), count)
                .has_value());
        Bytes expected((count + 1) * 4);
        kernels::expand(narrow.data(), dtype, reinterpret_cast<float*>(expected.data()), count);
        EXPECT_EQ(this->get(target, expected.size(), queue), expected);
        this->leases.clear();
      }
    }
  }
}

TYPED_TEST_P(DeviceContract, GradientsAndNormsHaveTheBitsOfTheCpu) {
  constexpr std::uint64_t count = kernels::norm_leaf + 1234;
  for (const DType acc_dtype : all_dtypes) {
    for (const DType grad_dtype : all_dtypes) {
      for (const auto how : {kernels::Accumulate::Set, kernels::Accumulate::Add}) {
        Bytes acc = random_values(count, acc_dtype, 1);
        const Bytes grad = random_values(count, DType::Float32, 2);
        const auto* grad_values = reinterpret_cast<const float*>(grad.data());
        std::byte* acc_there = this->put(acc);
        const auto* grad_there = reinterpret_cast<const float*>(this->put(grad));
        auto* sums_there = reinterpret_cast<double*>(this->lend(16));
        // Two pieces, of 16-byte addresses.
        constexpr std::uint64_t cut = 1024;
        const kernels::GradientPiece pieces[] = {
            {acc_there, grad_there, cut, how},
            {acc_there + cut * dtype_size(acc_dtype), grad_there + cut, count - cut, how}};
        ASSERT_TRUE(this->backend
                        ->accumulate_gradients(Queue::Compute, pieces,
                                               {acc_dtype, DType::Float32, grad_dtype})
                        .has_value());
        ASSERT_TRUE(
            this->backend->sum_squares(Queue::Compute, acc_there, acc_dtype, count, sums_there)
                .has_value());
        static_cast<void>(kernels::accumulate_gradient(acc.data(), acc_dtype, grad_values,
                                                       grad_dtype, count, how));
        double sums[2];
        kernels::sum_squares(acc.data(), acc_dtype, count, sums);
        EXPECT_EQ(this->get(acc_there, acc.size(), Queue::Compute), acc);
        const Bytes got = this->get(reinterpret_cast<std::byte*>(sums_there), 16, Queue::Compute);
        EXPECT_EQ(std::memcmp(got.data(), sums, 16), 0);
        this->leases.clear();
      }
    }
  }
}

TYPED_TEST_P(DeviceContract, AdamHasTheBitsOfTheCpu) {
  constexpr std::uint64_t count = 5001;
  const auto step = kernels::make_adam_step({.weight_decay = 0.1f}, 3, true);
  for (const DType dtype : all_dtypes) {
    std::vector<Bytes> host;  // param, exp_avg, exp_avg_sq, grad, param_out
    for (std::uint64_t array = 0; array < 5; ++array) {
      host.push_back(random_values(count, array < 3 ? DType::Float32 : dtype, array));
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      float& square = reinterpret_cast<float*>(host[2].data())[i];
      square = square < 0 ? -square : square;
    }
    std::vector<std::byte*> there;
    for (const Bytes& array : host) there.push_back(this->put(array));
    const auto arrays = [&](const auto& at) {
      return kernels::AdamArrays{.param = reinterpret_cast<float*>(at(0)),
                                 .exp_avg = reinterpret_cast<float*>(at(1)),
                                 .exp_avg_sq = reinterpret_cast<float*>(at(2)),
                                 .grad = at(3),
                                 .grad_dtype = dtype,
                                 .param_out = at(4),
                                 .param_out_dtype = dtype};
    };
    const kernels::AdamPiece piece{arrays([&](std::size_t i) { return there[i]; }), count};
    ASSERT_TRUE(
        this->backend->update_steps(Queue::Compute, {&piece, 1}, {.constants = step}).has_value());
    kernels::adam_step(arrays([&](std::size_t i) { return host[i].data(); }), count, step);
    for (std::size_t array = 0; array < host.size(); ++array) {
      EXPECT_EQ(this->get(there[array], host[array].size(), Queue::Compute), host[array]) << array;
    }
    this->leases.clear();
  }
}

TYPED_TEST_P(DeviceContract, AReaderHandsOutPartsInOrderThroughFewBuffers) {
  auto host = pinned::Pool::create({.bytes = 2 * 4096, .lock = pinned::Lock::Never}).value();
  auto reader = DeviceReader::create(*this->backend, *host, 4096, 2).value();
  const std::vector<Bytes> sent{random_bytes(10'000, 1), random_bytes(1, 2), Bytes(),
                                random_bytes(4096, 3)};
  std::vector<DeviceReader::Part> parts;
  for (const Bytes& bytes : sent) {
    parts.push_back({bytes.empty() ? nullptr : this->put(bytes), bytes.size()});
  }
  std::vector<Bytes> received(sent.size());
  const auto written = this->backend->record(Queue::ToDevice).value();
  const auto take = [&](std::size_t part, std::uint64_t offset, std::span<const std::byte> piece) {
    EXPECT_EQ(offset, received[part].size());
    received[part].insert(received[part].end(), piece.begin(), piece.end());
    return Result<void>();
  };
  ASSERT_TRUE(reader->read(parts, written, take).has_value());
  EXPECT_EQ(received, sent);
  int calls = 0;
  const auto refuse = [&](std::size_t, std::uint64_t, std::span<const std::byte>) -> Result<void> {
    ++calls;
    return make_error(ErrorCode::Io, "enough");
  };
  const auto refused = reader->read(parts, written, refuse);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "enough");
  EXPECT_EQ(calls, 1);
}

REGISTER_TYPED_TEST_SUITE_P(DeviceContract, BringsBytesThereAndBackAndCountsThem,
                            CopiesWithinItsMemoryInTheOrderOfAQueue,
                            TheArenaIsAHardLimitAndIsGivenBack, FencesOrderTheQueues,
                            AFenceHasPassedOnceTheHostHasWaitedForIt,
                            CopiesOfRegisteredMemoryAreTheSame, ZeroAndExpandAreExact,
                            GradientsAndNormsHaveTheBitsOfTheCpu, AdamHasTheBitsOfTheCpu,
                            AReaderHandsOutPartsInOrderThroughFewBuffers);

}  // namespace artesian::tiering
