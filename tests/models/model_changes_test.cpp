// Proves that a changed config.json is reported by exactly the keys that change what a model
// computes.
#include "models/model_changes.h"

#include <gtest/gtest.h>

namespace artesian::models {
namespace {

std::string llama(const std::string& more) {
  return R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64)" +
         more + "}";
}

std::string gpt2(const std::string& more) {
  return R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2)" +
         more + "}";
}

using Changes = std::vector<std::string>;

TEST(ModelChanges, KeysThatChangeTheResultAreNamed) {
  EXPECT_EQ(model_changes(llama(""), llama(R"(, "rope_theta": 500000.0)")),
            Changes{"rope_theta was not set, is 500000.0"});
  EXPECT_EQ(model_changes(llama(R"(, "rms_norm_eps": 1e-5)"), llama(R"(, "rms_norm_eps": 1e-6)")),
            Changes{"rms_norm_eps was 1e-05, is 1e-06"});
  EXPECT_EQ(model_changes(llama(R"(, "hidden_act": "silu")"), llama(R"(, "hidden_act": "gelu")")),
            Changes{R"(hidden_act was "silu", is "gelu")"});
  EXPECT_EQ(model_changes(gpt2(""), gpt2(R"(, "layer_norm_epsilon": 1e-3)")),
            Changes{"layer_norm_epsilon was not set, is 0.001"});
  EXPECT_EQ(model_changes(gpt2(R"(, "activation_function": "gelu_new")"),
                          gpt2(R"(, "activation_function": "relu", "scale_attn_weights": false)"))
                .size(),
            2u);
  EXPECT_FALSE(model_changes(llama(""), gpt2("")).empty());
}

TEST(ModelChanges, OthersAreNot) {
  EXPECT_EQ(model_changes(llama(""), llama("")), Changes{});
  EXPECT_EQ(model_changes(llama(R"(, "transformers_version": "4.1", "torch_dtype": "float16")"),
                          llama(R"(, "_name_or_path": "x", "initializer_range": 0.01)")),
            Changes{});
  EXPECT_EQ(model_changes(llama(""), llama(R"(, "rope_theta": 10000.0, "rms_norm_eps": 1e-6)")),
            Changes{})
      << "defaults";
  EXPECT_EQ(model_changes("", llama("")), Changes{});
  EXPECT_EQ(model_changes("{]", llama("")), Changes{});
}

}  // namespace
}  // namespace artesian::models
