// Proves what a large frozen block on NVMe costs: each pass reads 2 bytes for each of its
// parameters, and it is written only when the swap files are filled. Counted at the files, with a
// device that has room for no other unit beside the block. Two models differ in the block's size
// alone, so their difference is the block's. The block has 100 million parameters with
// ARTESIAN_SOAK=1, else 4.
#include <gtest/gtest.h>

#include "tests/support/process.h"
#include "tests/zero3/step_core_driver.h"

namespace artesian::zero3 {
namespace {

constexpr std::int64_t width = 1024;
constexpr std::int64_t trained_rows = 8;
constexpr std::uint64_t steps = 3;

/// A frozen block between two small trained units, so that backward passes it, too.
SmallModel block_between(std::int64_t rows) {
  SmallModel model;
  const auto add = [&](const char* name, std::int64_t of_rows, bool trainable) {
    const auto index = static_cast<std::uint32_t>(model.parameters.size());
    model.parameters.push_back({.name = name, .shape = {of_rows, width}, .trainable = trainable});
    model.stages.push_back({.name = name, .parameters = {index}, .lookup = {}});
  };
  add("below", trained_rows, true);
  add("block", rows, false);
  add("above", trained_rows, true);
  return model;
}

/// Bytes of the block's slot, in fp32, and of a trained unit's gradients, without room for another
/// slot.
std::uint64_t room_for_block_alone(std::int64_t rows) {
  return static_cast<std::uint64_t>((rows + trained_rows) * width) * 4;
}

struct Bytes {
  std::uint64_t read = 0, written = 0;
};

Bytes bytes_of(const Driver& driver) {
  const SwapPathUse use = driver.core->path_use().at(0);
  return {.read = use.bytes_read, .written = use.bytes_written};
}

/// Returns the bytes of filling the swap files, and of `steps` steps after the first.
std::pair<Bytes, Bytes> bytes_with(std::int64_t rows, const Case& run) {
  const SmallModel model = block_between(rows);
  Driver driver(run, model);
  driver.fill();
  const Bytes filled = bytes_of(driver);
  driver.step(0);
  EXPECT_EQ(error_of(driver.core->finish_update()), "");
  const Bytes before = bytes_of(driver);
  for (std::uint64_t step = 1; step <= steps; ++step) driver.step(step);
  EXPECT_EQ(error_of(driver.core->finish_update()), "");
  const Bytes after = bytes_of(driver);
  return {filled, {.read = after.read - before.read, .written = after.written - before.written}};
}

TEST(FrozenBlock, OnNvmeIsReadOncePerPassAndNeverWritten) {
  const std::int64_t rows = test_support::soaking() ? 97'656 : 4'096;  // of 1024: 100 million
  const std::int64_t fewer = rows / 2;
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    Case run{.dtype = dtype, .clipping = 0, .accumulation = 1};
    run.device = room_for_block_alone(rows);
    const auto [filled, moved] = bytes_with(rows, run);
    run.device = room_for_block_alone(fewer);
    const auto [filled_fewer, moved_fewer] = bytes_with(fewer, run);

    const auto more = static_cast<std::uint64_t>((rows - fewer) * width);  // parameters
    EXPECT_EQ(filled.written - filled_fewer.written, 2 * more) << dtype_name(dtype);
    EXPECT_EQ(moved.read - moved_fewer.read, steps * 2 * 2 * more) << dtype_name(dtype);
    EXPECT_EQ(moved.written, moved_fewer.written) << dtype_name(dtype);
    EXPECT_GT(moved.written, 0u);  // of the trained units
  }
}

}  // namespace
}  // namespace artesian::zero3
