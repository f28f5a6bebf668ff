// Proves that rows of heads are turned as by the naive version bit for bit on every target, of any
// width and alignment, in place and elsewhere, and right against fp64; and that a turn back is the
// other's inverse.
#include "kernels/rotary.h"

#include "tests/kernels/rotary_case.h"

namespace artesian::kernels {
namespace {

class RotaryOnTarget : public OnTarget {};
ARTESIAN_ON_EVERY_TARGET(RotaryOnTarget);

TEST_P(RotaryOnTarget, EqualsTheNaiveVersion) {
  for_rotary_cases([](RotaryCase fast, Turn turn) {
    RotaryCase naive = fast;
    fast.run(turn_rows, turn);
    naive.run(turn_rows_naive, turn);
    fast.expect_equal(naive);
  });
}

TEST(Rotary, TurnsByTheAngleAndBack) {
  const std::vector<float> before = {3.0f, -1.0f, 0.5f, 2.0f, 7.0f, 8.0f, 9.0f};
  const float angles[] = {0.3f, -1.1f};
  const float cosines[] = {std::cos(angles[0]), std::cos(angles[1])};
  const float sines[] = {std::sin(angles[0]), std::sin(angles[1])};
  std::vector<float> values = before;
  const RotaryRows rows{.source = values.data(),
                        .target = values.data(),
                        .rows = 1,
                        .stride = 7,
                        .heads = 1,
                        .width = 4,
                        .position = 3,
                        .length = 1,
                        .cosines = cosines,
                        .sines = sines};
  turn_rows(rows, Turn::Forward);
  for (std::size_t i = 0; i < 2; ++i) {
    const double c = std::cos(static_cast<double>(angles[i]));
    const double s = std::sin(static_cast<double>(angles[i]));
    EXPECT_NEAR(values[i], before[i] * c - before[i + 2] * s, 1e-6);
    EXPECT_NEAR(values[i + 2], before[i + 2] * c + before[i] * s, 1e-6);
  }
  for (std::size_t i = 4; i < 7; ++i) EXPECT_EQ(values[i], before[i]);
  turn_rows(rows, Turn::Back);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(values[i], before[i], 1e-6);
}

}  // namespace
}  // namespace artesian::kernels
