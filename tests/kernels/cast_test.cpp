// Proves the casts equal to base/dtype.h bit for bit, NaN payloads included, on every target: every
// 16-bit pattern, a dense sample of the floats, all ties, in place, and 64-bit counts.
#include "kernels/cast.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/kernels/values.h"

namespace artesian::kernels {
namespace {

constexpr DType halves[] = {DType::Float16, DType::BFloat16};

class CastOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(CastOnTarget);

/// Compares narrow with its naive version on these values, byte for byte.
void expect_narrow_same(const std::vector<float>& values, DType dtype) {
  std::vector<unsigned char> fast(values.size() * dtype_size(dtype)), naive(fast.size());
  const bool fast_finite = narrow(values.data(), fast.data(), dtype, values.size());
  const bool naive_finite = narrow_naive(values.data(), naive.data(), dtype, values.size());
  EXPECT_EQ(fast_finite, naive_finite);
  if (fast == naive) return;
  for (std::uint64_t i = 0; i < fast.size(); ++i) {
    ASSERT_EQ(fast[i], naive[i]) << std::hexfloat << values[i / dtype_size(dtype)];
  }
}

TEST_P(CastOnTarget, ExpandsEveryPattern) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) patterns[i] = static_cast<std::uint16_t>(i);
  std::vector<float> fast(65536), naive(65536);
  for (const DType dtype : halves) {
    expand(patterns.data(), dtype, fast.data(), fast.size());
    expand_naive(patterns.data(), dtype, naive.data(), naive.size());
    EXPECT_EQ(std::memcmp(fast.data(), naive.data(), 65536 * 4), 0) << dtype_name(dtype);
  }
}

TEST_P(CastOnTarget, NarrowsASampleOfAllFloats) {
  constexpr std::uint64_t stride = 1021;  // prime: every low bit pattern occurs
  constexpr std::uint64_t piece = 1 << 16;
  std::vector<float> values(piece);
  for (std::uint64_t first = 0; first < (1ull << 32); first += piece * stride) {
    for (std::uint64_t i = 0; i < piece; ++i) {
      values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i * stride));
    }
    for (const DType dtype : halves) expect_narrow_same(values, dtype);
    if (HasFailure()) return;
  }
}

TEST_P(CastOnTarget, NarrowsTiesAndTheirNeighbours) {
  for (const DType dtype : halves) {
    std::vector<float> values = special_values();
    for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
      const auto half = static_cast<std::uint16_t>(pattern);
      const float value = dtype == DType::Float16 ? fp16_to_float(half) : bf16_to_float(half);
      const auto bits = std::bit_cast<std::uint32_t>(value);
      // Half a unit in the last place of a normal; of fp16 subnormals, the largest also.
      for (const std::uint32_t tie : {bits + 0x1000u, bits + 0x8000u}) {
        for (const std::uint32_t near : {tie - 1, tie, tie + 1}) {
          values.push_back(std::bit_cast<float>(near));
        }
      }
      values.push_back(value + 0x1p-25f);
    }
    expect_narrow_same(values, dtype);
  }
}

TEST_P(CastOnTarget, AllLengthsAndAlignmentsLeaveTheRestAlone) {
  for (const DType dtype : {DType::Float32, DType::Float16, DType::BFloat16}) {
    for (const std::uint64_t count : counts) {
      const std::uint64_t offset = count % 3;
      const auto values = mixed_values(count + 2, count);
      std::vector<unsigned char> fast((count + offset + 20) * dtype_size(dtype), 0x5a);
      std::vector<unsigned char> naive = fast;
      const auto at = offset * dtype_size(dtype);
      EXPECT_EQ(narrow(values.data() + 1, fast.data() + at, dtype, count),
                narrow_naive(values.data() + 1, naive.data() + at, dtype, count));
      EXPECT_EQ(fast, naive) << dtype_name(dtype) << count;
      std::vector<float> wide_naive(count + offset + 20, 3.0f);
      auto wide = wide_naive, streamed = wide_naive;
      expand_naive(naive.data() + at, dtype, wide_naive.data() + offset, count);
      expand(naive.data() + at, dtype, wide.data() + offset, count);
      EXPECT_EQ(std::memcmp(wide.data(), wide_naive.data(), wide.size() * 4), 0) << count;
      expand_streamed(naive.data() + at, dtype, streamed.data() + offset, count);
      EXPECT_EQ(std::memcmp(streamed.data(), wide_naive.data(), wide.size() * 4), 0) << count;
    }
  }
}

TEST_P(CastOnTarget, ReportsWhatIsNotFinite) {
  std::vector<std::uint16_t> target(100);
  for (const std::uint64_t count : {1ull, 16ull, 37ull, 100ull}) {
    for (std::uint64_t place = 0; place < count; ++place) {
      std::vector<float> values(count, -65519.0f);  // rounds to the largest fp16
      EXPECT_TRUE(narrow(values.data(), target.data(), DType::Float16, count));
      values[place] = -65520.0f;
      EXPECT_FALSE(narrow(values.data(), target.data(), DType::Float16, count)) << place;
      EXPECT_TRUE(narrow(values.data(), target.data(), DType::BFloat16, count));
      values[place] = std::numeric_limits<float>::max();  // rounds to infinity in bf16
      EXPECT_FALSE(narrow(values.data(), target.data(), DType::BFloat16, count));
      std::vector<float> copy(count);
      EXPECT_TRUE(narrow(values.data(), copy.data(), DType::Float32, count));
      values[place] = -std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(narrow(values.data(), copy.data(), DType::Float32, count));
      EXPECT_FALSE(narrow(values.data(), target.data(), DType::BFloat16, count));
    }
  }
}

TEST_P(CastOnTarget, ExpandsInPlaceFromTheTail) {
  constexpr std::uint64_t large = (1 << 20) + 13;
  std::vector<std::uint16_t> source(large);
  for (std::uint64_t i = 0; i < large; ++i) {
    source[i] = static_cast<std::uint16_t>(random_word(test_seed(), 5, i));
  }
  std::vector<float> expected(large), memory(large);
  for (const auto how : {&expand, &expand_streamed}) {
    for (const DType dtype : halves) {
      expand_naive(source.data(), dtype, expected.data(), large);
      const auto check = [&](std::uint64_t n) {
        auto* tail = reinterpret_cast<std::uint16_t*>(memory.data() + n) - n;
        std::memcpy(tail, source.data(), n * 2);
        how(tail, dtype, memory.data(), n);
        ASSERT_EQ(std::memcmp(memory.data(), expected.data(), n * 4), 0) << n;
      };
      for (std::uint64_t n = 1; n <= 5000; ++n) check(n);
      check(large);
    }
  }
}

/// Maps `bytes` of address space; null if the machine refuses.
unsigned char* map(std::uint64_t bytes, int protection) {
  void* memory =
      ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

// 2^31 + 1 elements without the memory for them: the source is the kernel's zero page, the target
// is one 16 MiB file mapped again and again, and only the last elements have pages of their own.
TEST(Cast, CountsHave64Bits) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "its shadow of 8 GiB does not fit most machines";
#endif
  constexpr std::uint64_t count = (1ull << 31) + 1;
  constexpr std::uint64_t window = 16ull << 20;
  constexpr std::uint64_t source_size = count * 4 + 4096 - 4, target_size = (1ull << 32) + 4096;
  unsigned char* source = map(source_size, PROT_READ | PROT_WRITE);
  unsigned char* target = map(target_size, PROT_READ | PROT_WRITE);
  const int file = ::memfd_create("window", MFD_CLOEXEC);
  if (source == nullptr || target == nullptr || file < 0) GTEST_SKIP() << "no address space";
  ASSERT_EQ(::ftruncate(file, window), 0);
  for (std::uint64_t at = 0; at + window < target_size; at += window) {
    ASSERT_NE(::mmap(target + at, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
              MAP_FAILED);
  }
  ::madvise(source, source_size, MADV_HUGEPAGE);
  EXPECT_TRUE(narrow(reinterpret_cast<float*>(source), target, DType::BFloat16, count));
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(source + (count - 1) * 4, &infinity, 4);
  EXPECT_FALSE(narrow(reinterpret_cast<float*>(source) + (1ull << 31), target + (1ull << 32),
                      DType::BFloat16, 1));
  EXPECT_FALSE(narrow(reinterpret_cast<float*>(source), target, DType::BFloat16, count));
  EXPECT_EQ(load_element(target, DType::BFloat16, count - 1), infinity);
  EXPECT_EQ(load_element(target, DType::BFloat16, 0), 0.0f) << "the index did not wrap";
  ::munmap(source, source_size);
  ::munmap(target, target_size);
  ::close(file);
}

}  // namespace
}  // namespace artesian::kernels
