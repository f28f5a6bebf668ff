// Proves that attention's backward gives the same bits in each run at the lengths that models are
// trained with. tests/zero3/torch/cuda_test.cpp does the same on a GPU.
#include <gtest/gtest.h>

#include "tests/models/attention_gradients.h"

namespace artesian::models {
namespace {

TEST(Attention, HasTheSameGradientsInEachRunAtALengthOfManyBlocks) {
  const auto first = attention_gradients(at::kCPU, {});
  ASSERT_EQ(first.size(), 3u);
  for (int run = 0; run < 4; ++run) {
    const auto again = attention_gradients(at::kCPU, {});
    for (std::size_t input = 0; input < first.size(); ++input) {
      EXPECT_GT(first[input].abs().max().item<float>(), 0.0f);
      EXPECT_TRUE(at::equal(again[input], first[input])) << run << " " << input;
    }
  }
}

}  // namespace
}  // namespace artesian::models
