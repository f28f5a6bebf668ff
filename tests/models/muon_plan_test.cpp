// Proves what Muon costs by plan, over Llama-2-7B: bytes of optimizer state beside AdamW's, of the
// matrices and of the whole model. Memory without room for the largest matrix is refused by name
// before anything is allocated.
#include <gtest/gtest.h>

#include "base/units.h"
#include "models/model_config.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/moves.h"

namespace artesian::zero3 {
namespace {

constexpr const char* llama =
    R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": false})";

class MuonPlan : public testing::Test {
 protected:
  MuonPlan() {
    const auto model = models::parse_model_config(llama, "config.json").value();
    parameters_ = models::model_parameters(model);
    stages_ = models::model_stages(model);
    config_.param_dtype = config_.grad_accum_dtype = DType::BFloat16;
    config_.zero.stage = 3;
    config_.zero.offload_param = {.device = Offload::Nvme, .nvme_paths = {"/nvme"}};
    config_.zero.offload_param.max_in_cpu = 0;
    config_.zero.offload_optimizer = {.device = Offload::Nvme, .nvme_paths = {"/nvme"}};
  }
  Result<Placement> place(OptimizerType type, std::uint64_t host_bytes) {
    config_.optimizer.type = type;
    return make_placement({.parameters = &parameters_,
                           .stages = &stages_,
                           .config = &config_,
                           .compute_dtype = DType::BFloat16,
                           .device_bytes = std::uint64_t{2} << 30,
                           .host_bytes = host_bytes,
                           .spare_device = false});
  }

  std::vector<ParameterSpec> parameters_;
  std::vector<StageSpec> stages_;
  Config config_;
};

/// Bytes of optimizer state that a step moves if all of it is on NVMe, of matrices or of all.
std::uint64_t moved(const Placement& plan, const std::vector<ParameterSpec>& parameters,
                    bool matrices) {
  std::uint64_t bytes = 0;
  for (std::uint32_t parameter = 0; parameter < parameters.size(); ++parameter) {
    const ParameterPlace& place = plan.layout.places[parameter];
    if (matrices && !parameters[parameter].matrix) continue;
    bytes += 2 * place.numel * plan.state_size(place.unit);
  }
  return bytes;
}

TEST_F(MuonPlan, MovesAtMostSixtyTwoHundredthsOfAdamsBytes) {
  const std::uint64_t room = std::uint64_t{8} << 30;
  const Placement adam = place(OptimizerType::Adam, room).value();
  const Placement muon = place(OptimizerType::Muon, room).value();
  for (const bool matrices : {true, false}) {
    const double share = static_cast<double>(moved(muon, parameters_, matrices)) /
                         static_cast<double>(moved(adam, parameters_, matrices));
    std::printf("%s: %.4f of AdamW's bytes\n", matrices ? "matrices" : "Llama-2-7B", share);
    EXPECT_LE(share, 0.62);
    EXPECT_GE(share, 0.6);
  }
  std::uint64_t matrices = 0;
  for (std::uint32_t unit = 0; unit < muon.units.size(); ++unit) {
    if (muon.layout.units[unit].rows == 0) continue;
    ++matrices;
    EXPECT_EQ(muon.sub_group_count(unit), 1u);
    EXPECT_EQ(update_moves(muon, unit, true).optimizer.nvme_read,
              muon.optimizer_bytes_in(tiering::Tier::Nvme, unit));
  }
  EXPECT_EQ(matrices, 32u * 7);
}

TEST_F(MuonPlan, MemoryWithoutRoomForTheLargestMatrixIsRefusedByName) {
  const auto refused = place(OptimizerType::Muon, std::uint64_t{1} << 30);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Exhausted);
  EXPECT_NE(refused.error().message.find("Muon's update of the largest matrix"), std::string::npos)
      << refused.error().message;
  const auto enough = place(OptimizerType::Muon, std::uint64_t{4} << 30);
  ASSERT_TRUE(enough.has_value()) << enough.error().to_string();
  EXPECT_GE(enough->matrix_buffer_bytes, std::uint64_t{4096} * 11008 * 12);
}

TEST_F(MuonPlan, SeveralRanksAreRefusedByName) {
  config_.optimizer.type = OptimizerType::Muon;
  const auto refused = make_placement({.parameters = &parameters_,
                                       .stages = &stages_,
                                       .config = &config_,
                                       .device_bytes = std::uint64_t{2} << 30,
                                       .host_bytes = std::uint64_t{8} << 30,
                                       .ranks = 2});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
  EXPECT_NE(refused.error().message.find("\"Muon\""), std::string::npos);
}

}  // namespace
}  // namespace artesian::zero3
