// Proves for Llama what equality_test.cpp proves for GPT-2 over all pairs of factors: with
// everything on NVMe, the least budgets and no look-ahead, 16 steps give the bits of everything in
// memory, in each dtype, with a tied head and with one of its own.
#include <ATen/Parallel.h>

#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

/// `joint`: queries, keys and values are one product, gate and up another.
std::unique_ptr<Module> small_llama(const Scale& scale, bool tied, bool joint = false) {
  const std::string shape =
      joint ? R"("head_dim": 32, "attention_bias": false, "intermediate_size": 128)"
            : R"("head_dim": 10, "attention_bias": true, "intermediate_size": 88)";
  const std::string text =
      R"({"model_type": "llama", "max_position_embeddings": 32, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 3, )" +
      shape + R"(, "vocab_size": )" + std::to_string(scale.vocab) + R"(, "hidden_size": )" +
      std::to_string(scale.hidden) + R"(, "tie_word_embeddings": )" + (tied ? "true}" : "false}");
  auto config = models::parse_model_config(text, "config.json");
  EXPECT_TRUE(config.has_value());
  return models::make_module(*config);
}

class LlamaEquality : public Equality {
 protected:
  LlamaEquality() : Equality(tiny) {
    at::set_num_threads(1);
    modules_.clear();
    for (const bool tied : {true, false}) modules_.push_back(small_llama(scale, tied));
  }
};

TEST_F(LlamaEquality, EverythingOnNvmeGivesTheBitsOfEverythingInMemory) {
  for (int dtype = 0; dtype < levels[Dtype]; ++dtype) {
    for (int head = 0; head < levels[Head]; ++head) {
      Choice memory{};
      memory[Dtype] = dtype;
      memory[Head] = head;
      memory[Accumulation] = 1;
      Choice nvme = memory;
      memory[Masters] = 1;
      memory[Budget] = memory[Live] = memory[Reuse] = memory[Persistence] = 2;
      nvme[ParamHome] = nvme[OptimizerHome] = 2;
      SCOPED_TRACE(describe(nvme));
      const Outcome reference = train(memory);
      const Outcome outcome = train(nvme);
      expect_same(outcome, reference);
      if (HasFatalFailure()) return;
      EXPECT_GT(outcome.steps.back().bytes_nvme_read, 0u);
      EXPECT_EQ(reference.steps.back().bytes_nvme_read, 0u);
      EXPECT_NE(outcome.steps.back().loss, outcome.steps.front().loss);
    }
  }
}

TEST_F(LlamaEquality, JointProductsGiveTheSameBitsWhereSomeOfTheirMatricesPersist) {
  modules_.clear();
  for (const bool tied : {true, false}) modules_.push_back(small_llama(scale, tied, true));
  for (int dtype = 0; dtype < levels[Dtype]; ++dtype) {
    Choice memory{};
    memory[Dtype] = dtype;
    memory[Budget] = memory[Live] = memory[Reuse] = memory[Persistence] = 2;
    Choice nvme = memory;
    nvme[ParamHome] = nvme[OptimizerHome] = 2;
    SCOPED_TRACE(describe(nvme));
    const Outcome reference = train(memory);
    for (const std::uint64_t threshold : {0, 3'000}) {  // keys and values persist, queries do not
      Config config = config_of(nvme);
      config.zero.param_persistence_threshold = threshold;
      expect_same(train(nvme, config), reference);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace artesian::zero3
