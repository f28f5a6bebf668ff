// What adam_bench and the library for bench/adam_worker.py share: how a pass over arrays is divided
// among threads, and the memory stream whose rate is the upper bound for Adam.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "bench/report.h"

namespace artesian::bench {

constexpr std::uint64_t slice = 256 * 1024;  // elements per call, as in the optimizer's pipeline

/// Calls body(first, count) for every whole slice of [0, elements), divided among threads. Returns
/// the CPU seconds of the busiest thread.
template <typename Body>
double on_threads(unsigned threads, std::uint64_t elements, const Body& body) {
  std::vector<double> seconds(threads);
  const auto work = [&](std::uint64_t thread) {
    const double start = thread_seconds();
    const std::uint64_t slices = elements / slice;
    const std::uint64_t begin = slices * thread / threads, end = slices * (thread + 1) / threads;
    for (std::uint64_t s = begin; s < end; ++s) body(s * slice, slice);
    seconds[thread] = thread_seconds() - start;
  };
  std::vector<std::thread> others;
  for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (auto& other : others) other.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

#define ARTESIAN_STREAM __attribute__((target_clones("arch=icelake-server", "avx2", "default")))

/// The same reads and writes as Adam: three fp32 arrays in place, one 16-bit array read, one
/// written. It uses the kernel's prefetches, too, as they also speed up a plain stream, which must
/// be an upper bound.
ARTESIAN_STREAM inline void stream_adam(float* __restrict p, float* __restrict m,
                                        float* __restrict v, const std::uint16_t* __restrict g,
                                        std::uint16_t* __restrict out, std::uint64_t n) {
  for (std::uint64_t first = 0; first < n; first += 32) {  // n must be a multiple of 32
    for (std::uint64_t i = first; i < first + 32; i += 16) {
      __builtin_prefetch(p + i + 512);
      __builtin_prefetch(m + i + 512);
      __builtin_prefetch(v + i + 512);
    }
    __builtin_prefetch(g + first + 1024);
    __builtin_prefetch(out + first + 1024);
    for (std::uint64_t i = first; i < first + 32; ++i) {
      p[i] += 1.0f;
      m[i] += 1.0f;
      v[i] += 1.0f;
      out[i] = static_cast<std::uint16_t>(g[i] + 1u);
    }
  }
}

}  // namespace artesian::bench
