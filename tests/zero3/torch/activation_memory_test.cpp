// Proves that LibTorch's tensors are counted while they are in use, that large ones reuse memory
// without page faults, that a forked child can have its own, and that all works as well without an
// arena. Each test is a child process, as the arena is made once for a process.
#include "zero3/torch/activation_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/baseline.h"
#include "tests/support/process.h"
#include "tests/support/sanitizers.h"
#include "zero3/torch/engine.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t mib = 1 << 20;

/// A tensor whose pages are all written, by this thread alone.
at::Tensor filled(std::int64_t bytes) {
  at::Tensor tensor = at::empty({bytes}, at::kByte);
  if (bytes != 0) std::memset(tensor.data_ptr(), 1, static_cast<std::size_t>(bytes));
  return tensor;
}

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// More bytes than asked for are counted, up to whole pages.
bool about(std::uint64_t counted, std::int64_t bytes) {
  const auto wanted = static_cast<std::uint64_t>(bytes);
  return counted >= wanted && counted <= wanted + wanted / 16 + 4096;
}

/// Returns 0 if tensors of all sizes are counted while they exist, and not afterwards.
int counts() {
  if (activations_now() != 0) return 1;
  track_activations();
  std::int64_t sum = 0;
  std::vector<at::Tensor> tensors;
  for (const std::int64_t bytes : {0l, 1l, 5000l, 65535l, 65536l, 300000l, 3 * mib, 40 * mib}) {
    tensors.push_back(filled(bytes));
    sum += bytes;
    if (!about(activations_now(), sum)) return 2;
  }
  const at::Tensor alias = tensors.back().view({2, -1});  // no memory of its own
  tensors.clear();
  if (!about(activations_now(), 40 * mib)) return 3;
  if (!about(memory_beside_tiers(0).activations, sum)) return 4;
  return 0;
}

TEST(ActivationMemory, IsCountedWhileItIsInUse) {
  EXPECT_EQ(test_support::run_in_child(counts), 0);
}

TEST(ActivationMemory, IsCountedWhereAddressesAreLimited) {
  if (test_support::sanitized) GTEST_SKIP() << "a sanitizer needs all addresses";
  const int status = test_support::run_in_child([] {
    const rlimit limit{.rlim_cur = 64ull << 30, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 10;
    return counts();
  });
  EXPECT_EQ(status, 0);
}

TEST(ActivationMemory, LargeTensorsMeetNoPageFaultTheSecondTime) {
  if (test_support::sanitized) GTEST_SKIP() << "each tensor is malloc's";
  const int status = test_support::run_in_child([] {
    track_activations();
    for (const std::int64_t bytes : {64 * mib, 256 * mib / 1024}) {  // one, and a thousand pieces
      std::vector<at::Tensor> tensors;
      for (std::int64_t left = 64 * mib; left > 0; left -= bytes) tensors.push_back(filled(bytes));
      tensors.clear();
      const long before = page_faults();
      for (std::int64_t left = 64 * mib; left > 0; left -= bytes) tensors.push_back(filled(bytes));
      if (page_faults() - before > 1000) return 1;  // of 16384 pages
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
}

TEST(ActivationMemory, IsHeldNoMoreThanWasInUse) {
  if (test_support::sanitized) GTEST_SKIP() << "a sanitizer keeps what is freed";
  const int status = test_support::run_in_child([] {
    track_activations();
    filled(mib).reset();  // its code is in memory then
    const std::size_t before = test_support::status_kib("VmRSS");
    at::Tensor first = filled(96 * mib);
    const at::Tensor fence = filled(2 * mib);
    first.reset();
    const at::Tensor second = filled(128 * mib);  // does not fit where the first was
    const std::size_t held = test_support::status_kib("VmRSS") - before;
    return held < (130 + 32) * 1024 ? 0 : 1;  // with both it would be 226
  });
  EXPECT_EQ(status, 0);
}

TEST(ActivationMemory, KeptMemoryHidesNoHeapAndIsNone) {
  if (test_support::sanitized) GTEST_SKIP() << "malloc's figures are not a sanitizer's";
  const int status = test_support::run_in_child([] {
    track_activations();
    filled(128 * mib).reset();  // kept
    // Untouched memory is not resident, however much else is.
    constexpr std::size_t size = 96 * mib;
    const std::unique_ptr<void, decltype(&std::free)> heap(std::malloc(size), &std::free);
    if (heap == nullptr || memory_beside_tiers(0).heap > size / 2) return 1;
    const at::Tensor in_use = filled(128 * mib);
    auto* const pages = static_cast<volatile char*>(heap.get());
    for (std::size_t at = 0; at < size; at += 4096) pages[at] = 1;
    const std::uint64_t found = memory_beside_tiers(0).heap;
    return found > size - size / 4 && found < size + size / 4 ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
}

TEST(ActivationMemory, MoreThanThereIsIsLibTorchsError) {
  const int status = test_support::run_in_child([] {
    track_activations();
    try {
      (void)at::empty({std::int64_t{1} << 60}, at::kByte);
    } catch (const c10::Error&) {
      return activations_now() == 0 ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(status, 0);
}

TEST(ActivationMemory, ChildrenOfABusyProcessHaveTheirOwn) {
  if (test_support::sanitized) GTEST_SKIP() << "a sanitizer refuses threads beside a fork";
  const int status = test_support::run_in_child([] {
    track_activations();
    const at::Tensor shared = filled(mib);
    std::atomic<bool> stop{false};
    std::array<std::thread, 2> busy;
    for (std::thread& thread : busy) {
      thread = std::thread([&] {
        while (!stop) (void)at::empty({mib}, at::kByte);
      });
    }
    int failed = 0;
    for (int i = 0; i < 200 && failed == 0; ++i) {
      const int ended = test_support::run_in_child([&] {
        alarm(60);  // ends a process that waits for ever
        const at::Tensor own = filled(mib);
        return std::memcmp(own.data_ptr(), shared.data_ptr(), mib) == 0 ? 0 : 1;
      });
      failed += ended == 0 ? 0 : 1;
    }
    stop = true;
    for (std::thread& thread : busy) thread.join();
    return failed;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace artesian::zero3
