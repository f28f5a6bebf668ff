// Measures how fast LibTorch's threads update optimizer state, by number of threads and by elements
// per parallel region: regions with few elements show the cost of a region. Prints one JSON line
// for each.
//
//   team_bench [THREADS...]     default: 1, 2, 4, ... up to the cores
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "kernels/adam.h"
#include "tools/shell/process_setup.h"

namespace artesian::bench {
namespace {

constexpr std::int64_t elements = 64 << 20;  // 0.9 GB of state: more than caches hold
constexpr std::int64_t slice = 4096;
constexpr double bytes_moved = 26.0;  // per element: three fp32 read and written, a bf16 read
constexpr int repeats = 3;

class State {
 public:
  /// GB/s of one pass by `threads`, in regions of this many elements.
  double pass(int threads, std::int64_t of_region) {
    at::set_num_threads(threads);
    double best = 1e9;
    for (int repeat = 0; repeat <= repeats; ++repeat) {
      const std::uint64_t begin = monotonic_ns();
      for (std::int64_t first = 0; first < elements; first += of_region) {
        at::parallel_for(0, of_region / slice, 1, [&](std::int64_t from, std::int64_t to) {
          update(first + from * slice, (to - from) * slice);
        });
      }
      const double seconds = seconds_since(begin);
      if (repeat != 0) best = std::min(best, seconds);  // the first pass maps pages
    }
    return static_cast<double>(elements) * bytes_moved / best * 1e-9;
  }

 private:
  void update(std::int64_t first, std::int64_t count) {
    kernels::AdamArrays arrays;
    arrays.param = param_.data() + first;
    arrays.exp_avg = average_.data() + first;
    arrays.exp_avg_sq = square_.data() + first;
    arrays.grad = gradient_.data() + first;
    arrays.grad_dtype = DType::BFloat16;
    kernels::adam_step(arrays, static_cast<std::uint64_t>(count), step_);
  }

  std::vector<float> param_ = std::vector<float>(elements, 0.5f);
  std::vector<float> average_ = std::vector<float>(elements, 0.25f);
  std::vector<float> square_ = std::vector<float>(elements, 0.125f);
  std::vector<std::uint16_t> gradient_ = std::vector<std::uint16_t>(elements, 0x3c00);
  const kernels::AdamStep step_ = kernels::make_adam_step({}, 1, true);
};

void measure(std::vector<int> threads) {
  if (threads.empty()) {
    const int most = at::get_num_threads();
    for (int count = 1; count < most; count *= 2) threads.push_back(count);
    threads.push_back(most);
  }
  State state;
  for (const int count : threads) {
    for (const std::int64_t of_region : {std::int64_t{1} << 18, std::int64_t{1} << 22, elements}) {
      std::printf("{\"threads\": %d, \"elements_of_region\": %lld, \"gb_per_s\": %.2f}\n", count,
                  static_cast<long long>(of_region), state.pass(count, of_region));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace artesian::bench

int main(int argc, char** argv) {
  artesian::tools::set_up_process();
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::max(1, std::atoi(argv[i])));
  artesian::bench::measure(std::move(threads));
  return 0;
}
