// Compares the CPU kernels with streams that read and write the same arrays and compute almost
// nothing, which is the upper bound for a memory-bound kernel. Example: Adam moves 28 bytes per
// element with 16-bit gradient and output; at 28 GB/s per thread that takes 1 ns, about twice the
// time in cache. Only Adam's stream uses the kernel's prefetches; a ratio above 1 elsewhere shows
// their gain.
//   adam_bench [elements in Mi (64)] [repeats (15)] [dispatch target]
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "bench/passes.h"
#include "bench/report.h"
#include "kernels/adam.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/dispatch.h"
#include "kernels/gradient.h"

namespace artesian::bench {
namespace {

using namespace artesian::kernels;

/// An array on 2 MiB pages, like the pool's memory, filled with small values.
template <typename T>
T* make_array(std::uint64_t count) {
  const std::uint64_t bytes = count * sizeof(T);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ARTESIAN_CHECK(memory != MAP_FAILED, bytes);
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  T* array = static_cast<T*>(memory);
  for (std::uint64_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 4) {
      array[i] = static_cast<T>(1e-3f * static_cast<float>(i % 1021 + 1));
    } else {
      array[i] = static_cast<T>(0x2c00u + i % 1021);  // a normal number in fp16 and in bf16
    }
  }
  return array;
}

ARTESIAN_STREAM void stream_widen(const std::uint16_t* __restrict from,
                                  std::uint32_t* __restrict to, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) to[i] = from[i];
}

ARTESIAN_STREAM void stream_narrow(const std::uint32_t* __restrict from,
                                   std::uint16_t* __restrict to, std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) to[i] = static_cast<std::uint16_t>(from[i]);
}

ARTESIAN_STREAM void stream_add(const std::uint32_t* __restrict from, std::uint16_t* __restrict to,
                                std::uint64_t n) {
  for (std::uint64_t i = 0; i < n; ++i) to[i] = static_cast<std::uint16_t>(to[i] + from[i]);
}

/// The reads and writes of Adam with split master weights, as bench::stream_adam has those for
/// whole ones.
ARTESIAN_STREAM void stream_split_adam(float* __restrict m, float* __restrict v,
                                       const std::uint16_t* __restrict g,
                                       std::uint16_t* __restrict high,
                                       std::uint16_t* __restrict low, std::uint64_t n) {
  for (std::uint64_t first = 0; first < n; first += 32) {  // n must be a multiple of 32
    for (std::uint64_t i = first; i < first + 32; i += 16) {
      __builtin_prefetch(m + i + 512);
      __builtin_prefetch(v + i + 512);
    }
    __builtin_prefetch(g + first + 1024);
    __builtin_prefetch(high + first + 1024);
    __builtin_prefetch(low + first + 1024);
    for (std::uint64_t i = first; i < first + 32; ++i) {
      m[i] += 1.0f;
      v[i] += 1.0f;
      high[i] = static_cast<std::uint16_t>(high[i] + g[i]);
      low[i] = static_cast<std::uint16_t>(low[i] + 1u);
    }
  }
}

ARTESIAN_STREAM std::uint64_t stream_read(const void* data, std::uint64_t bytes) {
  const auto* words = static_cast<const std::uint64_t*>(data);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < bytes / 8; ++i) sum += words[i];
  return sum;
}

/// All arrays used by the benches.
struct Arrays {
  std::uint64_t elements;
  float* param = make_array<float>(elements);
  float* exp_avg = make_array<float>(elements);
  float* exp_avg_sq = make_array<float>(elements);
  std::uint16_t* grad = make_array<std::uint16_t>(elements);
  std::uint16_t* param_out = make_array<std::uint16_t>(elements);
  std::uint16_t* master_low = make_array<std::uint16_t>(elements);
};

struct Run {
  unsigned threads;
  int repeats;
};

std::string parameters(const Run& run, std::uint64_t elements, DType dtype) {
  return "\"target\": \"" + std::string(active_target_name()) +
         "\", \"threads\": " + std::to_string(run.threads) +
         ", \"elements\": " + std::to_string(elements) + ", \"dtype\": \"" + dtype_name(dtype) +
         "\"";
}

void bench_adam(const Arrays& a, const Run& run, DType dtype) {
  const AdamStep step = make_adam_step({.weight_decay = 0.01f}, 10, true);
  const auto kernel = [&](std::uint64_t first, std::uint64_t count) {
    adam_step({.param = a.param + first,
               .exp_avg = a.exp_avg + first,
               .exp_avg_sq = a.exp_avg_sq + first,
               .grad = a.grad + first,
               .grad_dtype = dtype,
               .param_out = a.param_out + first,
               .param_out_dtype = dtype},
              count, step);
  };
  const auto stream = [&](std::uint64_t first, std::uint64_t count) {
    stream_adam(a.param + first, a.exp_avg + first, a.exp_avg_sq + first, a.grad + first,
                a.param_out + first, count);
  };
  print(measure(
      "adam_step", parameters(run, a.elements, dtype), a.elements * 28, run.repeats,
      [&] { return on_threads(run.threads, a.elements, kernel); },
      [&] { return on_threads(run.threads, a.elements, stream); }));
}

template <typename Kernel, typename Stream>
void bench_pass(const char* name, const Arrays& a, const Run& run, DType dtype,
                std::uint64_t bytes_per_element, const Kernel& kernel, const Stream& stream) {
  print(measure(
      name, parameters(run, a.elements, dtype), a.elements * bytes_per_element, run.repeats,
      [&] { return on_threads(run.threads, a.elements, kernel); },
      [&] { return on_threads(run.threads, a.elements, stream); }));
}

/// With bf16 and split master weights.
void bench_split_adam(const Arrays& a, const Run& run) {
  const AdamStep step = make_adam_step({.weight_decay = 0.01f}, 10, true);
  bench_pass(
      "adam_step_split", a, run, DType::BFloat16, 26,
      [&](std::uint64_t i, std::uint64_t n) {
        adam_step({.exp_avg = a.exp_avg + i,
                   .exp_avg_sq = a.exp_avg_sq + i,
                   .grad = a.grad + i,
                   .grad_dtype = DType::BFloat16,
                   .param_out = a.param_out + i,
                   .param_out_dtype = DType::BFloat16,
                   .master_low = a.master_low + i},
                  n, step);
      },
      [&](std::uint64_t i, std::uint64_t n) {
        stream_split_adam(a.exp_avg + i, a.exp_avg_sq + i, a.grad + i, a.param_out + i,
                          a.master_low + i, n);
      });
}

void bench_casts(const Arrays& a, const Run& run, DType dtype) {
  auto* words = reinterpret_cast<std::uint32_t*>(a.exp_avg);
  bench_pass(
      "expand", a, run, dtype, 6,
      [&](std::uint64_t i, std::uint64_t n) { expand(a.grad + i, dtype, a.exp_avg + i, n); },
      [&](std::uint64_t i, std::uint64_t n) { stream_widen(a.grad + i, words + i, n); });
  bench_pass(
      "narrow", a, run, dtype, 6,
      [&](std::uint64_t i, std::uint64_t n) { narrow(a.param + i, a.param_out + i, dtype, n); },
      [&](std::uint64_t i, std::uint64_t n) { stream_narrow(words + i, a.param_out + i, n); });
}

void bench_gradients(const Arrays& a, const Run& run, DType dtype) {
  volatile double sink = 0;
  const auto* words = reinterpret_cast<const std::uint32_t*>(a.exp_avg);
  bench_pass(
      "accumulate_gradient", a, run, dtype, 8,
      [&](std::uint64_t i, std::uint64_t n) {
        accumulate_gradient(a.param_out + i, dtype, a.exp_avg_sq + i, dtype, n, Accumulate::Add);
      },
      [&](std::uint64_t i, std::uint64_t n) { stream_add(words + i, a.param_out + i, n); });
  const bool wide = dtype == DType::Float32;
  const std::uint64_t size = dtype_size(dtype);
  const void* data = wide ? static_cast<const void*>(a.param) : a.grad;
  const auto* bytes = static_cast<const unsigned char*>(data);
  bench_pass(
      "sum_squares", a, run, dtype, size,
      [&](std::uint64_t i, std::uint64_t n) {
        std::vector<double> sums(static_cast<std::size_t>((n + norm_leaf - 1) / norm_leaf));
        sum_squares(bytes + i * size, dtype, n, sums.data());
        sink = sums.back();
      },
      [&](std::uint64_t i, std::uint64_t n) {
        sink = static_cast<double>(stream_read(bytes + i * size, n * size));
      });
}

void bench_checksum(const Arrays& a, const Run& run) {
  volatile std::uint64_t sink = 0;
  bench_pass(
      "checksum64", a, run, DType::Float32, 4,
      [&](std::uint64_t i, std::uint64_t n) { sink = checksum64(a.param + i, n * 4, i); },
      [&](std::uint64_t i, std::uint64_t n) { sink = stream_read(a.param + i, n * 4); });
}

}  // namespace
}  // namespace artesian::bench

int main(int argc, char** argv) {
  using namespace artesian;
  const auto argument = [&](int index, unsigned long long otherwise) {
    return argc > index ? std::strtoull(argv[index], nullptr, 10) : otherwise;
  };
  const std::uint64_t elements = argument(1, 64) << 20;
  const auto repeats = static_cast<int>(argument(2, 15));
  if (argc > 3) {
    const auto forced = kernels::force_target(argv[3]);
    if (!forced.has_value()) {
      std::fprintf(stderr, "adam_bench: %s\n", forced.error().to_string().c_str());
      return 2;
    }
  }
  const bench::Arrays arrays{.elements = elements};
  for (const unsigned threads : {1u, 2u}) {
    const bench::Run run = {.threads = threads, .repeats = repeats};
    for (const DType dtype : {DType::Float16, DType::BFloat16}) {
      bench::bench_adam(arrays, run, dtype);
      if (dtype == DType::BFloat16) bench::bench_split_adam(arrays, run);
      bench::bench_casts(arrays, run, dtype);
      bench::bench_gradients(arrays, run, dtype);
    }
    bench::bench_checksum(arrays, run);
  }
  return 0;
}
