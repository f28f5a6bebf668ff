// Our Adam and its stream as a C library, so that bench/adam_worker.py can run them in one process
// with other optimizers, on the same arrays. Names and types: see adam_worker.py.
#include <cstdint>

#include "bench/passes.h"
#include "kernels/adam.h"
#include "kernels/dispatch.h"

using namespace artesian;

extern "C" {

/// One step: [elements] fp32 in place, bf16 gradient read, bf16 parameter written. `elements` is a
/// multiple of 262,144.
void artesian_bench_adam(float* param, float* exp_avg, float* exp_avg_sq, const std::uint16_t* grad,
                         std::uint16_t* param_out, std::uint64_t elements, unsigned threads) {
  const kernels::AdamStep step = kernels::make_adam_step({.weight_decay = 0.01f}, 10, true);
  bench::on_threads(threads, elements, [&](std::uint64_t first, std::uint64_t count) {
    kernels::adam_step({.param = param + first,
                        .exp_avg = exp_avg + first,
                        .exp_avg_sq = exp_avg_sq + first,
                        .grad = grad + first,
                        .grad_dtype = DType::BFloat16,
                        .param_out = param_out + first,
                        .param_out_dtype = DType::BFloat16},
                       count, step);
  });
}

/// The same reads and writes without the arithmetic. Overwrites the arrays with useless values.
void artesian_bench_stream(float* param, float* exp_avg, float* exp_avg_sq,
                           const std::uint16_t* grad, std::uint16_t* param_out,
                           std::uint64_t elements, unsigned threads) {
  bench::on_threads(threads, elements, [&](std::uint64_t first, std::uint64_t count) {
    bench::stream_adam(param + first, exp_avg + first, exp_avg_sq + first, grad + first,
                       param_out + first, count);
  });
}

const char* artesian_bench_target() {
  return kernels::active_target_name();
}
}
