// Proves the CUDA kernels equal to the naive versions bit for bit, on the same values, lengths and
// alignments as the SIMD ones. Skips (exit 77) where there is no device.
#include "kernels/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>

#include "kernels/cast.h"
#include "kernels/split_master.h"
#include "tests/kernels/cross_entropy_case.h"
#include "tests/kernels/rms_norm_case.h"
#include "tests/kernels/rotary_case.h"
#include "tests/kernels/swiglu_case.h"
#include "tests/kernels/update_case.h"
#include "tests/kernels/values.h"
#include "tests/support/gpu_main.h"

namespace artesian::kernels {
namespace {

constexpr DType dtypes[] = {DType::Float32, DType::Float16, DType::BFloat16};
using Bytes = std::vector<unsigned char>;

/// A copy of host bytes in device memory.
class DeviceCopy {
 public:
  explicit DeviceCopy(const Bytes& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ + 1), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy() { cudaFree(data_); }

  template <typename T>
  T* at(std::uint64_t byte) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(data_) + byte);
  }
  /// Waits for everything enqueued, then copies back.
  Bytes back() const {
    Bytes host(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  void* data_ = nullptr;
  std::uint64_t size_;
};

Bytes bytes_of(const auto& values) {
  Bytes bytes(values.size() * sizeof(values[0]));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(CudaCrossEntropy, EqualsTheNaiveVersion) {
  for (const DType dtype : dtypes) {
    for (const std::uint64_t vocabulary : counts) {
      if (vocabulary == 0) continue;
      for (const bool finite : {true, false}) {
        CrossEntropyCase all(dtype, vocabulary, finite);
        CrossEntropyCase naive = all;
        const DeviceCopy logits(all.logits), targets(bytes_of(all.targets));
        const DeviceCopy sums(bytes_of(all.sums)), picked(bytes_of(all.picked));
        CrossEntropyRows rows = all.rows();
        rows.logits = logits.at<void>(all.offset * dtype_size(dtype));
        rows.targets = targets.at<std::int64_t>(0);
        rows.sums = sums.at<float>(0);
        rows.picked = picked.at<float>(0);
        const auto launched = cuda::cross_entropy_rows(rows, nullptr);
        ASSERT_TRUE(launched.has_value()) << launched.error().to_string();
        cross_entropy_rows_naive(naive.rows());
        all.logits = logits.back();
        std::memcpy(all.sums.data(), sums.back().data(), all.sums.size() * sizeof(float));
        std::memcpy(all.picked.data(), picked.back().data(), all.picked.size() * sizeof(float));
        all.expect_equal(naive);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(CudaSwiglu, EqualsTheNaiveVersion) {
  for_swiglu_cases([](SwigluCase all) {
    SwigluCase naive = all;
    naive.run(swiglu_naive, swiglu_gradient_naive);
    const DeviceCopy gate(all.gate), up(all.up), outer(all.outer), product(all.product);
    const DeviceCopy gate_gradient(all.gate_gradient), up_gradient(all.up_gradient);
    using Byte = unsigned char;
    const GatedRows rows = all.rows(gate.at<Byte>(0), up.at<Byte>(0));
    ASSERT_TRUE(cuda::swiglu(rows, product.at<Byte>(all.byte(0)), nullptr).has_value());
    const auto gradient =
        all.gradient(outer.at<Byte>(0), gate_gradient.at<Byte>(0), up_gradient.at<Byte>(0));
    ASSERT_TRUE(cuda::swiglu_gradient(rows, gradient, nullptr).has_value());
    all.product = product.back();
    all.gate_gradient = gate_gradient.back();
    all.up_gradient = up_gradient.back();
    all.expect_equal(naive);
  });
}

void copy_back(const DeviceCopy& device, std::vector<float>& values) {
  if (!values.empty()) std::memcpy(values.data(), device.back().data(), values.size() * 4);
}

TEST(CudaRmsNorm, EqualsTheNaiveVersion) {
  for_rms_norm_cases([](RmsNormCase all) {
    RmsNormCase naive = all;
    naive.run(rms_norm_naive, rms_norm_gradient_naive, sum_groups_naive);
    const DeviceCopy input(all.input), weight(all.weight), outer(all.outer), output(all.output);
    const DeviceCopy input_gradient(all.input_gradient), inverses(bytes_of(all.inverses));
    const DeviceCopy sums(bytes_of(all.sums)), total(bytes_of(all.total));
    const auto rows = all.given(input.at<unsigned char>(0), weight.at<unsigned char>(0));
    float* groups = sums.at<float>(0);
    const auto at = [&](const DeviceCopy& array) { return array.at<void>(all.byte()); };
    ASSERT_TRUE(cuda::rms_norm(rows, at(output), inverses.at<float>(0), nullptr).has_value());
    const RmsNormGradient gradient{.inverses = inverses.at<float>(0),
                                   .outer = at(outer),
                                   .input = at(input_gradient),
                                   .weight = groups};
    ASSERT_TRUE(cuda::rms_norm_gradient(rows, gradient, nullptr).has_value());
    const std::uint64_t count = groups_of(all.rows);
    ASSERT_TRUE(
        cuda::sum_groups(groups, count, all.width, total.at<float>(0), nullptr).has_value());
    all.output = output.back();
    all.input_gradient = input_gradient.back();
    copy_back(inverses, all.inverses);
    copy_back(sums, all.sums);
    copy_back(total, all.total);
    all.expect_equal(naive);
  });
}

TEST(CudaRotary, EqualsTheNaiveVersion) {
  for_rotary_cases([](RotaryCase all, Turn turn) {
    RotaryCase naive = all;
    naive.run(turn_rows_naive, turn);
    const DeviceCopy source(all.source), target(all.target), cosines(all.cosines), sines(all.sines);
    using Byte = unsigned char;
    const auto rows =
        all.rows(source.at<Byte>(0), target.at<Byte>(0), cosines.at<Byte>(0), sines.at<Byte>(0));
    ASSERT_TRUE(cuda::turn_rows(rows, turn, nullptr).has_value());
    all.source = source.back();
    all.target = target.back();
    all.expect_equal(naive);
  });
}

TEST(CudaAdam, EqualsTheNaiveVersion) {
  for (const AdamMode mode : {AdamMode::AdamW, AdamMode::L2}) {
    const AdamStep step = make_adam_step(
        {.mode = mode, .weight_decay = 0.1f, .grad_multiplier = 1.0f / 1024}, 3, true);
    for (const DType grad_dtype : dtypes) {
      for (const DType out_dtype : dtypes) {
        for (const std::uint64_t count : counts) {
          const std::uint64_t n = count + 5, offset = count / 2 % 4;  // 0 with tails, too
          auto squares = mixed_values(n, 3);
          for (auto& square : squares) square = std::fabs(square);
          Bytes host[] = {array_of(mixed_values(n, 1), DType::Float32, offset),
                          array_of(mixed_values(n, 2), DType::Float32, offset),
                          array_of(squares, DType::Float32, offset),
                          array_of(mixed_values(n, 4), grad_dtype, offset),
                          array_of(std::vector<float>(n, 7.0f), out_dtype, offset)};
          const DeviceCopy device[] = {DeviceCopy(host[0]), DeviceCopy(host[1]),
                                       DeviceCopy(host[2]), DeviceCopy(host[3]),
                                       DeviceCopy(host[4])};
          const auto arrays = [&](auto at) {
            return AdamArrays{.param = static_cast<float*>(at(0, DType::Float32)),
                              .exp_avg = static_cast<float*>(at(1, DType::Float32)),
                              .exp_avg_sq = static_cast<float*>(at(2, DType::Float32)),
                              .grad = at(3, grad_dtype),
                              .grad_dtype = grad_dtype,
                              .param_out = at(4, out_dtype),
                              .param_out_dtype = out_dtype};
          };
          const AdamPiece piece{arrays([&](int k, DType dtype) {
                                  return device[k].at<void>(offset * dtype_size(dtype));
                                }),
                                count};
          const auto launched = cuda::adam_steps({&piece, 1}, step, nullptr);
          ASSERT_TRUE(launched.has_value()) << launched.error().to_string();
          adam_step_naive(arrays([&](int k, DType dtype) -> void* {
                            return host[k].data() + offset * dtype_size(dtype);
                          }),
                          count, step);
          for (int k = 0; k < 3; ++k) {
            ASSERT_TRUE(same_arrays(device[k].back(), host[k], DType::Float32)) << k << count;
          }
          ASSERT_TRUE(same_arrays(device[4].back(), host[4], out_dtype)) << count;
        }
      }
    }
  }
}

/// Weights of which most are ties when split, in `pieces` of any lengths.
TEST(CudaAdam, EqualsTheNaiveVersionOnManyPiecesOfSplitWeights) {
  constexpr std::uint16_t lows[] = {0x8000, 0x7fff, 0x8001, 0x8000, 0, 0xffff, 0x8000};
  const std::uint64_t lengths[] = {1, 0, 4099, 7, 256, 2048, 5};
  constexpr std::uint64_t pieces = 70;  // three launches
  std::uint64_t all = 0;
  for (std::uint64_t piece = 0; piece < pieces; ++piece) all += lengths[piece % 7] + 3;
  const auto step = make_adam_step({.learning_rate = 1e-2f, .weight_decay = 0.1f}, 3, true);
  for (const DType grad_dtype : dtypes) {
    auto squares = ordinary_values(all, 2);
    std::vector<std::uint16_t> high(all), low(all);
    for (std::uint64_t i = 0; i < all; ++i) {
      const auto upper = static_cast<std::uint32_t>(i * 37 % 0x7f80);
      const auto split =
          split_master(std::bit_cast<float>(upper << 16 | lows[i % 7]), std::fabs(squares[i]));
      high[i] = split.high;
      low[i] = split.low;
      squares[i] = split.exp_avg_sq;
    }
    Bytes host[] = {bytes_of(ordinary_values(all, 1)), bytes_of(squares), bytes_of(high),
                    bytes_of(low), array_of(ordinary_values(all, 3), grad_dtype, 0)};
    const DeviceCopy device[] = {DeviceCopy(host[0]), DeviceCopy(host[1]), DeviceCopy(host[2]),
                                 DeviceCopy(host[3]), DeviceCopy(host[4])};
    const auto arrays = [&](std::uint64_t first, auto at) {
      return AdamArrays{.exp_avg = static_cast<float*>(at(0, first * 4)),
                        .exp_avg_sq = static_cast<float*>(at(1, first * 4)),
                        .grad = at(4, first * dtype_size(grad_dtype)),
                        .grad_dtype = grad_dtype,
                        .param_out = at(2, first * 2),
                        .param_out_dtype = DType::BFloat16,
                        .master_low = static_cast<std::uint16_t*>(at(3, first * 2))};
    };
    std::vector<AdamPiece> there;
    std::uint64_t first = 0;
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      const std::uint64_t count = lengths[piece % 7];
      there.push_back(
          {arrays(first, [&](int k, std::uint64_t byte) { return device[k].at<void>(byte); }),
           count});
      adam_step_naive(
          arrays(first, [&](int k, std::uint64_t byte) -> void* { return host[k].data() + byte; }),
          count, step);
      first += count + 3;  // elements between pieces must not change
    }
    const auto launched = cuda::adam_steps(there, step, nullptr);
    ASSERT_TRUE(launched.has_value()) << launched.error().to_string();
    for (int k = 0; k < 5; ++k) EXPECT_EQ(device[k].back(), host[k]) << k;
  }
}

TEST(CudaUpdate, EqualsTheNaiveVersion) {
  for (const UpdateStep& step : update_steps_to_try()) {
    for_update_forms([&](DType grad_dtype, DType out_dtype, bool split) {
      for (const std::uint64_t count : {0ull, 1ull, 7ull, 9ull, 4099ull, 4100ull}) {
        UpdateCase all(step, count, grad_dtype, out_dtype, split);
        UpdateCase naive = all;
        std::vector<unsigned char>* const host[] = {&all.param, &all.exp_avg,   &all.exp_avg_sq,
                                                    &all.grad,  &all.param_out, &all.low};
        std::deque<DeviceCopy> device;
        for (const auto* bytes : host) device.emplace_back(*bytes);
        const AdamArrays arrays = all.arrays_by([&](const auto& bytes, std::size_t size) -> void* {
          const auto found = std::find(std::begin(host), std::end(host), &bytes);
          return device[static_cast<std::size_t>(found - std::begin(host))].at<void>(all.offset *
                                                                                     size);
        });
        const AdamPiece piece{arrays, count};
        const auto launched = cuda::update_steps({&piece, 1}, step, nullptr);
        ASSERT_TRUE(launched.has_value()) << launched.error().to_string();
        for (std::size_t k = 0; k < device.size(); ++k) *host[k] = device[k].back();
        update_naive(naive.arrays(), count, step);
        all.expect_same(naive);
        if (testing::Test::HasFailure()) return;
      }
    });
  }
}

TEST(CudaCast, EqualsTheNaiveVersion) {
  for (const DType dtype : dtypes) {
    for (const std::uint64_t count : {0ull, 1ull, 7ull, 8ull, 9ull, 4099ull, 70000ull}) {
      const std::uint64_t offset = count / 2 % 2;
      const Bytes source = array_of(mixed_values(count, 9), DType::Float32, offset);
      Bytes narrow_host((count + offset + 5) * dtype_size(dtype), 0x5a);
      Bytes wide_host((count + offset + 5) * 4, 0x5a);
      const DeviceCopy from(source), narrow_device(narrow_host), wide_device(wide_host);
      const DeviceCopy flag(Bytes(4, 0));
      const std::uint64_t at = offset * dtype_size(dtype);
      ASSERT_TRUE(cuda::narrow(from.at<float>(offset * 4), narrow_device.at<void>(at), dtype, count,
                               flag.at<std::uint32_t>(0), nullptr)
                      .has_value());
      ASSERT_TRUE(cuda::expand(narrow_device.at<void>(at), dtype, wide_device.at<float>(offset * 4),
                               count, nullptr)
                      .has_value());
      const bool finite = narrow_naive(reinterpret_cast<const float*>(source.data() + offset * 4),
                                       narrow_host.data() + at, dtype, count);
      expand_naive(narrow_host.data() + at, dtype,
                   reinterpret_cast<float*>(wide_host.data() + offset * 4), count);
      EXPECT_EQ(narrow_device.back(), narrow_host) << dtype_name(dtype) << count;
      EXPECT_EQ(wide_device.back(), wide_host) << dtype_name(dtype) << count;
      EXPECT_EQ(flag.back()[0] == 0, finite);
    }
  }
}

TEST(CudaGradient, AccumulationEqualsTheNaiveVersion) {
  for (const DType acc_dtype : dtypes) {
    for (const DType grad_dtype : dtypes) {
      for (const Accumulate how : {Accumulate::Set, Accumulate::Add}) {
        for (const std::uint64_t count : counts) {
          const std::uint64_t offset = count / 2 % 2;
          Bytes acc = array_of(mixed_values(count + 5, 8), acc_dtype, offset);
          const Bytes grad = array_of(mixed_values(count + 1, 7), DType::Float32, offset);
          const DeviceCopy acc_device(acc), grad_device(grad), flag(Bytes(4, 0));
          const std::uint64_t at = offset * dtype_size(acc_dtype);
          const GradientPiece piece{acc_device.at<void>(at), grad_device.at<float>(offset * 4),
                                    count, how};
          ASSERT_TRUE(cuda::accumulate_gradients({&piece, 1},
                                                 {acc_dtype, DType::Float32, grad_dtype},
                                                 flag.at<std::uint32_t>(0), nullptr)
                          .has_value());
          const bool finite = accumulate_gradient_naive(
              acc.data() + at, acc_dtype, reinterpret_cast<const float*>(grad.data() + offset * 4),
              grad_dtype, count, how);
          ASSERT_TRUE(same_arrays(acc_device.back(), acc, acc_dtype)) << count;
          EXPECT_EQ(flag.back()[0] == 0, finite);
        }
      }
    }
  }
}

// More rows than a launch takes, of different lengths, in fp32 and already rounded.
TEST(CudaGradient, ManyPiecesAreThoseOfTheCpu) {
  for (const DType acc_dtype : dtypes) {
    for (const DType rounded : dtypes) {
      for (const DType grad_dtype : {DType::Float32, rounded}) {
        const GradientDtypes types{acc_dtype, grad_dtype, rounded};
        constexpr std::uint64_t count = 250;
        constexpr std::uint64_t pitch = 44;  // of accumulators; gradients are contiguous
        Bytes acc = array_of(ordinary_values(count * pitch, 9), acc_dtype, 0);
        const Bytes grad = array_of(ordinary_values(count * pitch, 10), grad_dtype, 0);
        const DeviceCopy acc_device(acc), grad_device(grad), flag(Bytes(4, 0));
        std::vector<GradientPiece> there;
        std::vector<GradientPiece> here;
        std::uint64_t first = 0;
        for (std::uint64_t row = 0; row < count; ++row) {
          const std::uint64_t length = row % 7 * 7;  // one in seven is empty
          const auto how = row % 3 == 0 ? Accumulate::Set : Accumulate::Add;
          const std::uint64_t at = row * pitch * dtype_size(acc_dtype);
          const std::uint64_t from = first * dtype_size(grad_dtype);
          there.push_back({acc_device.at<void>(at), grad_device.at<void>(from), length, how});
          here.push_back({acc.data() + at, grad.data() + from, length, how});
          first += length;
        }
        ASSERT_TRUE(cuda::accumulate_gradients(there, types, flag.at<std::uint32_t>(0), nullptr)
                        .has_value());
        for (const GradientPiece& piece : here) accumulate_piece(piece, types);
        ASSERT_TRUE(same_arrays(acc_device.back(), acc, acc_dtype));
      }
    }
  }
}

// More elements than one round of the largest grid handles, each exactly once.
TEST(CudaGradient, AccumulatesWhatTheGridGoesRoundFor) {
  constexpr std::uint64_t count = (std::uint64_t{65536} * 256 * 4) + 1029;
  const auto value = [](std::uint64_t i) { return static_cast<float>(i % 127); };  // exact in bf16
  std::vector<float> grad(count);
  for (std::uint64_t i = 0; i < count; ++i) grad[i] = value(i);
  void* grad_device = nullptr;
  ASSERT_EQ(cudaMalloc(&grad_device, count * 4), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(grad_device, grad.data(), count * 4, cudaMemcpyHostToDevice), cudaSuccess);
  const DeviceCopy acc(Bytes(count * 2, 0)), flag(Bytes(4, 0));
  const GradientPiece piece{acc.at<void>(0), grad_device, count, Accumulate::Add};
  ASSERT_TRUE(cuda::accumulate_gradients({&piece, 1},
                                         {DType::BFloat16, DType::Float32, DType::BFloat16},
                                         flag.at<std::uint32_t>(0), nullptr)
                  .has_value());
  const Bytes sums = acc.back();
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    wrong += load_element(sums.data(), DType::BFloat16, i) == value(i) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(cudaFree(grad_device), cudaSuccess);
}

TEST(CudaGradient, SumsOfSquaresEqualTheNaiveVersionLeafByLeaf) {
  for (const DType dtype : dtypes) {
    for (const std::uint64_t count :
         {1ull, 17ull, 2047ull, 2048ull, 2049ull, 65536ull, 700001ull}) {
      const Bytes data = array_of(ordinary_values(count, 6), dtype, 0);
      const std::uint64_t leaves = (count + norm_leaf - 1) / norm_leaf;
      const DeviceCopy device(data), sums(Bytes(leaves * 8));
      ASSERT_TRUE(cuda::sum_squares(device.at<void>(0), dtype, count, sums.at<double>(0), nullptr)
                      .has_value());
      Bytes expected(leaves * 8);
      sum_squares_naive(data.data(), dtype, count, reinterpret_cast<double*>(expected.data()));
      EXPECT_EQ(sums.back(), expected) << count;
    }
  }
}

}  // namespace
}  // namespace artesian::kernels

int main(int argc, char** argv) {
  return artesian::test_support::run_gpu_tests(argc, argv);
}
