// Proves that a head of several tiles gives the same bits wherever its table and the optimizer
// state are, on a separate device too, and that spare device memory keeps optimizer state.
#include <ATen/Parallel.h>

#include "tests/support/separate_device.h"
#include "tests/zero3/torch/equality.h"
#include "zero3/torch/matrix_tiles.h"

namespace artesian::zero3 {
namespace {

using test_support::SeparateDevice;

constexpr Scale tall{.vocab = 66'000, .hidden = 128, .length = 8, .steps = 3};

class Tiled : public Equality {
 protected:
  Tiled() : Equality(tall) {
    at::set_num_threads(2);
    const auto rows =
        static_cast<std::uint64_t>(tile_rows(static_cast<std::int64_t>(scale.hidden)));
    EXPECT_GT(scale.vocab, 2 * rows);
  }
  static Choice in_memory(int dtype, int head) {
    Choice run{};
    run[Dtype] = dtype;
    run[Head] = head;
    run[Accumulation] = 1;
    run[Budget] = run[BlockSize] = run[SubGroup] = 2;
    return run;
  }
  /// All of it is meant for NVMe: the least device memory, and some more.
  static Choice on_nvme(int dtype, int head) {
    Choice run = in_memory(dtype, head);
    run[Budget] = 0;
    run[ParamHome] = run[OptimizerHome] = 2;
    return run;
  }
  Config with_more(const Choice& run, std::uint64_t device_mib, std::uint64_t host_mib) const {
    Config config = config_of(run);
    *config.artesian.device_memory += device_mib << 20;
    *config.artesian.host_memory += host_mib << 20;
    return config;
  }
};

TEST_F(Tiled, GivesTheSameBitsWhereverItIs) {
  using Pair = std::pair<int, int>;  // fp32; bf16 computed in fp32, and in bf16; tied or not
  for (const auto& [dtype, head] : {Pair{0, 1}, Pair{1, 0}, Pair{3, 1}}) {
    SCOPED_TRACE(dtype * 10 + head);
    const Outcome expected = train(in_memory(dtype, head));
    Choice run = on_nvme(dtype, head);
    for (const int schedule : {0, 2}) {  // micro-batches one by one, layer by layer
      run[Schedule] = schedule;
      const Outcome outcome = train(run, with_more(run, 0, 8));
      expect_same(outcome, expected);
      if (HasFatalFailure()) return;
      EXPECT_GT(outcome.steps.back().bytes_nvme_read, 0u);
    }
    SeparateDevice device;
    device.micro_batches_at_once = micro_batches_at_once(run);
    separate_device = true;
    const Outcome outcome = train(run, with_more(run, 0, 8), {.backend = &device});
    separate_device = false;
    expect_same(outcome, expected);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Tiled, SpareDeviceMemoryKeepsStateAndGivesTheSameBits) {
  const Choice run = on_nvme(1, 0);
  const Outcome expected = train(in_memory(1, 0));
  std::uint64_t before = ~std::uint64_t{0};
  for (const std::uint64_t spare : {0, 20, 50, 200}) {
    SCOPED_TRACE(spare);
    const Outcome outcome = train(run, with_more(run, spare, 8));
    expect_same(outcome, expected);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(outcome.split || spare == 0 || spare == 200) << "in part there, in part on NVMe";
    const std::uint64_t bytes = outcome.steps.back().bytes_nvme_read;
    EXPECT_LT(bytes, before);
    before = bytes;
  }
}

}  // namespace
}  // namespace artesian::zero3
