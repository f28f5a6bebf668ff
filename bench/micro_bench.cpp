// Micro-benchmarks of the parts of a step below LibTorch: kernels, the buffer pool, the staging
// ring over a real disk, and the planner. Google Benchmark runs them and writes its own JSON; `make
// bench PART=micro` (bench/micro.py) runs this program on one thread.
//
//   micro_bench [--benchmark_filter=REGEX] [--benchmark_out=FILE.json] ...
//
// ARTESIAN_MICRO_FOLDER names the folder on the disk that the ring uses; without it the ring is
// left out.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_uring.h"
#include "aio/threads.h"
#include "base/check.h"
#include "base/random.h"
#include "kernels/adam.h"
#include "kernels/cast.h"
#include "kernels/checksum.h"
#include "kernels/gradient.h"
#include "pinned/pool.h"
#include "tiering/staging_ring.h"
#include "tiering/tier_store.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/rehearsal.h"

namespace artesian {
namespace {

// Per kernel call: more than the second-level cache holds.
constexpr std::uint64_t elements = 1 << 20;

std::vector<float> made_up_floats(std::uint64_t seed) {
  std::vector<float> values(elements);
  for (std::uint64_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(random_word(seed, i, 0) % 2000) * 1e-3f - 1.0f;
  }
  return values;
}

/// Counts `bytes` read and written by each iteration, so that the report shows bytes per second.
void count_bytes(benchmark::State& state, std::uint64_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
}

void adam(benchmark::State& state, DType grad_dtype) {
  auto param = made_up_floats(1);
  std::vector<float> exp_avg(elements);
  std::vector<float> exp_avg_sq(elements);
  std::vector<std::byte> grad(elements * dtype_size(grad_dtype));
  std::vector<std::uint16_t> narrow(elements);
  ARTESIAN_CHECK(kernels::narrow(made_up_floats(2).data(), grad.data(), grad_dtype, elements));
  const bool writes_narrow = grad_dtype != DType::Float32;
  const kernels::AdamArrays arrays{.param = param.data(),
                                   .exp_avg = exp_avg.data(),
                                   .exp_avg_sq = exp_avg_sq.data(),
                                   .grad = grad.data(),
                                   .grad_dtype = grad_dtype,
                                   .param_out = writes_narrow ? narrow.data() : nullptr,
                                   .param_out_dtype = grad_dtype};
  const kernels::AdamStep step = kernels::make_adam_step({}, 10, true);
  for (auto _ : state) kernels::adam_step(arrays, elements, step);
  count_bytes(state, elements * (24 + dtype_size(grad_dtype) + (writes_narrow ? 2 : 0)));
}
BENCHMARK_CAPTURE(adam, fp32, DType::Float32);
BENCHMARK_CAPTURE(adam, bf16, DType::BFloat16);
BENCHMARK_CAPTURE(adam, fp16, DType::Float16);

void checksum(benchmark::State& state) {
  const auto bytes = static_cast<std::uint64_t>(state.range(0));
  const std::vector<std::byte> data(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(kernels::checksum64(data.data(), bytes, 7));
  count_bytes(state, bytes);
}
BENCHMARK(checksum)->Arg(4 << 10)->Arg(1 << 20);

void narrow(benchmark::State& state, DType target) {
  const auto source = made_up_floats(3);
  std::vector<std::uint16_t> narrowed(elements);
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::narrow(source.data(), narrowed.data(), target, elements));
  }
  count_bytes(state, elements * 6);
}
BENCHMARK_CAPTURE(narrow, bf16, DType::BFloat16);
BENCHMARK_CAPTURE(narrow, fp16, DType::Float16);

void expand(benchmark::State& state, DType source_dtype) {
  const std::vector<std::uint16_t> source(elements, 0x3c00);
  std::vector<float> expanded(elements);
  for (auto _ : state) {
    kernels::expand(source.data(), source_dtype, expanded.data(), elements);
    benchmark::ClobberMemory();
  }
  count_bytes(state, elements * 6);
}
BENCHMARK_CAPTURE(expand, bf16, DType::BFloat16);
BENCHMARK_CAPTURE(expand, fp16, DType::Float16);

void accumulate(benchmark::State& state, DType dtype) {
  const auto gradient = made_up_floats(4);
  std::vector<std::byte> sum(elements * dtype_size(dtype));
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::accumulate_gradient(sum.data(), dtype, gradient.data(), dtype,
                                                          elements, kernels::Accumulate::Add));
  }
  count_bytes(state, elements * (4 + 2 * dtype_size(dtype)));
}
BENCHMARK_CAPTURE(accumulate, fp32, DType::Float32);
BENCHMARK_CAPTURE(accumulate, bf16, DType::BFloat16);

void sum_squares(benchmark::State& state) {
  const auto gradient = made_up_floats(5);
  std::vector<double> leaves(elements / kernels::norm_leaf);
  for (auto _ : state) {
    kernels::sum_squares(gradient.data(), DType::Float32, elements, leaves.data());
    benchmark::ClobberMemory();
  }
  count_bytes(state, elements * 4);
}
BENCHMARK(sum_squares);

/// A lease and its return while `range(0)` other leases are held, which determines the free runs to
/// search.
void pool_lease(benchmark::State& state) {
  const auto held = static_cast<std::uint64_t>(state.range(0));
  const auto pool =
      pinned::Pool::create({.bytes = 64 << 20, .lock = pinned::Lock::Never, .name = "micro"})
          .value();
  std::vector<BufferLease> leases;
  for (std::uint64_t i = 0; i < 2 * held; ++i) leases.push_back(pool->lease(4096).value());
  for (std::uint64_t i = 0; i < held; ++i) leases.erase(leases.begin() + static_cast<long>(i));
  for (auto _ : state) benchmark::DoNotOptimize(pool->lease(8192).value());
}
BENCHMARK(pool_lease)->Arg(0)->Arg(64)->Arg(512);

/// Sub-groups of optimizer state through the ring: each is read, verified, sealed and written while
/// others are in flight. `range(0)`: number of the ring's items.
void ring(benchmark::State& state) {
  const char* folder = std::getenv("ARTESIAN_MICRO_FOLDER");
  if (folder == nullptr) return state.SkipWithError("ARTESIAN_MICRO_FOLDER is not set");
  constexpr std::uint64_t item = 4 << 20;
  constexpr std::uint64_t block = 1 << 20;
  constexpr std::uint64_t items = 64;
  const auto count = static_cast<std::uint32_t>(state.range(0));
  auto io = aio::make_io_uring({.block_size = block, .queue_depth = 32}, nullptr);
  if (!io.has_value()) io = aio::make_threads({.block_size = block, .queue_depth = 32}, nullptr);
  const auto device = pinned::Pool::create({.bytes = 4096, .name = "device"}).value();
  const auto host = pinned::Pool::create({.bytes = count * item, .name = "host"}).value();
  auto opened =
      tiering::TierStore::open({.directories = {folder}, .run_id = 1},
                               {{.name = "state", .bytes = items * item, .block_bytes = block}},
                               *device, *host, **io, system_files());
  if (!opened.has_value()) return state.SkipWithError(opened.error().message.c_str());
  tiering::TierStore& store = **opened;
  auto ring = tiering::StagingRing::create(store, *host, item, count).value();
  const tiering::ShardId shard{0};
  const auto range = [](std::uint64_t turn) {
    return tiering::ByteRange{turn % items * item, item};
  };
  const auto write = [&](tiering::StagingItem& into, std::uint64_t turn) {
    for (std::uint64_t at = 0; at < item; at += block) {
      store.seal(shard, (turn % items * item + at) / block, into.data() + at);
    }
    into.write(shard, range(turn), 0);
  };
  for (std::uint64_t turn = 0; turn < items; ++turn) {
    ARTESIAN_CHECK(ring->at(turn).finish().has_value());
    write(ring->at(turn), turn);
  }
  ARTESIAN_CHECK(ring->finish().has_value());
  std::uint64_t read = 0;
  std::uint64_t done = 0;
  for (auto _ : state) {
    for (; read < done + count && read < done + items; ++read) {
      ARTESIAN_CHECK(ring->at(read).finish().has_value());
      ring->at(read).read(shard, range(read), 0, aio::Priority::OptimizerRead);
    }
    tiering::StagingItem& current = ring->at(done);
    ARTESIAN_CHECK(current.finish().has_value());
    for (std::uint64_t at = 0; at < item; at += block) {
      ARTESIAN_CHECK(
          store.verify(shard, (done % items * item + at) / block, current.data() + at).has_value());
    }
    write(current, done++);
  }
  ARTESIAN_CHECK(ring->finish().has_value());
  ARTESIAN_CHECK(store.close().has_value());
  count_bytes(state, 2 * item);
}
BENCHMARK(ring)->Arg(2)->Arg(4)->Arg(8)->UseRealTime();

/// The shape of a decoder with tied embeddings, as wide and deep as GPT-2 124M or a 70B model.
zero3::ModelShape decoder(std::int64_t vocabulary, std::int64_t hidden, int blocks) {
  zero3::ModelShape shape;
  const auto add = [&](std::string name, std::vector<std::int64_t> extents) {
    shape.parameters.push_back({.name = std::move(name), .shape = std::move(extents)});
    return static_cast<std::uint32_t>(shape.parameters.size() - 1);
  };
  const auto table = add("wte", {vocabulary, hidden});
  shape.stages.push_back({.name = "embed", .parameters = {table}, .lookup = table});
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "h." + std::to_string(block);
    shape.stages.push_back({.name = name,
                            .parameters = {add(name + ".norm", {hidden}),
                                           add(name + ".attention", {4 * hidden, hidden}),
                                           add(name + ".in", {4 * hidden, hidden}),
                                           add(name + ".out", {hidden, 4 * hidden})},
                            .lookup = {}});
  }
  shape.stages.push_back(
      {.name = "head", .parameters = {add("norm", {hidden}), table}, .lookup = {}});
  return shape;
}

struct Planned {
  zero3::ModelShape shape;
  zero3::Config config;
  zero3::Placement placement;

  zero3::PlacementRequest request() const {
    return {.parameters = &shape.parameters,
            .stages = &shape.stages,
            .config = &config,
            .compute_dtype = DType::Float32,
            .device_bytes = std::uint64_t{24} << 30,
            .host_bytes = std::uint64_t{64} << 30};
  }
  zero3::StepPlanRequest step() const {
    return {.placement = &placement,
            .stages = &shape.stages,
            .limits = zero3::PrefetchLimits::of(config.zero),
            .tokens = 1024,
            .lookup_width = static_cast<std::uint64_t>(shape.parameters.front().shape[1])};
  }
};

/// `range(0)`: number of blocks with 8,192 hidden elements (80 for a 70B model).
std::unique_ptr<Planned> planned(const benchmark::State& state) {
  auto made = std::make_unique<Planned>();
  made->shape = decoder(32'000, 8192, static_cast<int>(state.range(0)));
  made->config.param_dtype = made->config.grad_accum_dtype = DType::BFloat16;
  made->config.accumulation_steps = 1;
  made->config.zero.stage = 3;
  made->config.zero.offload_param = {.device = zero3::Offload::Nvme, .nvme_paths = {"/p"}};
  made->config.zero.offload_optimizer = {.device = zero3::Offload::Nvme, .nvme_paths = {"/o"}};
  made->placement = zero3::make_placement(made->request()).value();
  return made;
}

void placement(benchmark::State& state) {
  const auto given = planned(state);
  for (auto _ : state) benchmark::DoNotOptimize(zero3::make_placement(given->request()));
}
BENCHMARK(placement)->Arg(16)->Arg(80)->Unit(benchmark::kMillisecond);

void step_plan(benchmark::State& state) {
  const auto given = planned(state);
  for (auto _ : state) benchmark::DoNotOptimize(zero3::plan_step(given->step()));
}
BENCHMARK(step_plan)->Arg(16)->Arg(80)->Unit(benchmark::kMillisecond);

void step_time(benchmark::State& state) {
  const auto given = planned(state);
  const std::vector<double> seconds(given->shape.stages.size(), 0.01);
  const zero3::StepTimeRequest request{.step = given->step(),
                                       .timing = {.rates = {.disk_read = 3e9,
                                                            .disk_write = 2e9,
                                                            .memory = 2e10,
                                                            .checksum = 2e10,
                                                            .to_device = 2e10,
                                                            .to_host = 2e10},
                                                  .stages = {seconds, seconds}}};
  for (auto _ : state) benchmark::DoNotOptimize(zero3::simulate_step(request));
}
BENCHMARK(step_time)->Arg(16)->Arg(80)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace artesian

BENCHMARK_MAIN();
