// Proves that config.json is read as transformers reads it: defaults, legacy names, values in
// effect; and that what cannot be honoured is refused by key, with what was given and what is
// allowed.
#include "models/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tests/support/temporary_directory.h"

namespace artesian::models {
namespace {

using test_support::TemporaryDirectory;

Result<ModelConfig> parse(const std::string& keys) {
  return parse_model_config("{\"model_type\": \"gpt2\"" + (keys.empty() ? "" : ", " + keys) + "}",
                            "dir/config.json");
}

ModelConfig accept(const std::string& keys) {
  auto parsed = parse(keys);
  EXPECT_TRUE(parsed.has_value()) << parsed.error().to_string();
  return std::move(parsed).value();
}

std::string refuse(const std::string& keys) {
  const auto parsed = parse(keys);
  EXPECT_FALSE(parsed.has_value()) << keys;
  return parsed.has_value() ? "" : parsed.error().to_string();
}

TEST(ModelConfig, DefaultsAreThoseOfGpt2Small) {
  const ModelConfig config = accept("");
  EXPECT_EQ(config.vocab_size, 50257);
  EXPECT_EQ(config.positions_max, 1024);
  EXPECT_EQ(config.gpt2.inner, 3072);
  EXPECT_TRUE(config.gpt2.tie_word_embeddings);
  std::uint64_t count = 0;
  for (const auto& parameter : model_parameters(config)) count += parameter.numel();
  EXPECT_EQ(count, 124'439'808u);
}

TEST(ModelConfig, EveryValueIsInEffect) {
  const ModelConfig config = accept(
      R"("vocab_size": 100, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 4,
         "n_inner": 50,
         "activation_function": "silu", "layer_norm_epsilon": 1e-6, "initializer_range": 0.01,
         "scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true,
         "reorder_and_upcast_attn": true, "tie_word_embeddings": false)");
  const Gpt2Config& gpt2 = config.gpt2;
  EXPECT_EQ(gpt2.vocab_size, 100);
  EXPECT_EQ(gpt2.positions, 32);
  EXPECT_EQ(gpt2.hidden, 24);
  EXPECT_EQ(gpt2.layers, 3);
  EXPECT_EQ(gpt2.heads, 4);
  EXPECT_EQ(gpt2.inner, 50);
  EXPECT_EQ(gpt2.activation, Activation::Silu);
  EXPECT_EQ(gpt2.layer_norm_epsilon, 1e-6);
  EXPECT_EQ(gpt2.initializer_range, 0.01);
  EXPECT_FALSE(gpt2.scale_attention_weights);
  EXPECT_TRUE(gpt2.scale_attention_by_inverse_layer_index);
  EXPECT_TRUE(gpt2.reorder_and_upcast_attention);
  EXPECT_FALSE(gpt2.tie_word_embeddings);
}

TEST(ModelConfig, OtherNamesMeanTheSameAndMayNotDisagree) {
  const ModelConfig config =
      accept(R"("hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
                "max_position_embeddings": 32)");
  EXPECT_EQ(config.gpt2.hidden, 24);
  EXPECT_EQ(config.gpt2.inner, 96);
  EXPECT_EQ(config.positions_max, 32);
  EXPECT_EQ(accept(R"("n_positions": 64, "n_inner": null)").positions_max, 64);
  EXPECT_EQ(refuse(R"("n_positions": 64, "max_position_embeddings": 32)"),
            "model config: dir/config.json: max_position_embeddings: got 32, allowed the same as "
            "n_positions, which is 64");
}

TEST(ModelConfig, AnotherContextThanThePositionsIsNotedAndHasNoEffect) {
  const std::string quiet = R"("resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, )";
  const ModelConfig same = accept(quiet + R"("n_positions": 64, "n_ctx": 64)");
  EXPECT_EQ(same.positions_max, 64);
  EXPECT_TRUE(same.notes.empty()) << same.notes[0];
  for (const auto& [keys, positions, note] :
       {std::tuple{R"("n_positions": 64, "n_ctx": 32)", 64, "32 has no effect: n_positions is 64"},
        std::tuple{R"("n_ctx": 32)", 1024, "32 has no effect: n_positions is 1024"},
        std::tuple{R"("n_ctx": null)", 1024, "null has no effect: n_positions is 1024"}}) {
    const ModelConfig other = accept(quiet + keys);
    EXPECT_EQ(other.positions_max, positions);
    ASSERT_EQ(other.notes.size(), 1u);
    EXPECT_EQ(other.notes[0], std::string("dir/config.json: n_ctx: ") + note);
  }
}

TEST(ModelConfig, ParametersAndStagesAgree) {
  for (const char* tied : {"true", "false"}) {
    const ModelConfig config =
        accept(std::string(R"("n_layer": 2, "tie_word_embeddings": )") + tied);
    const auto parameters = model_parameters(config);
    const auto stages = gpt2_stages(config.gpt2);
    ASSERT_EQ(stages.size(), 4u);
    EXPECT_EQ(stages[0].name, "embed");
    EXPECT_EQ(stages[2].name, "h.1");
    EXPECT_EQ(stages[3].name, "head");
    EXPECT_EQ(parameters[*stages[0].lookup].name, "wte.weight");
    EXPECT_EQ(parameters[stages[2].parameters[0]].name, "h.1.ln_1.weight");
    EXPECT_EQ(parameters[stages[2].parameters[11]].name, "h.1.mlp.c_proj.bias");
    EXPECT_EQ(parameters[stages[3].parameters[0]].name, "ln_f.weight");
    EXPECT_EQ(parameters[stages[3].parameters[2]].name,
              config.gpt2.tie_word_embeddings ? "wte.weight" : "lm_head.weight");
    std::vector<int> uses(parameters.size(), 0);
    for (const auto& stage : stages) {
      for (const std::uint32_t parameter : stage.parameters) ++uses[parameter];
    }
    EXPECT_EQ(std::count(uses.begin(), uses.end(), 0), 0);
  }
}

TEST(ModelConfig, ResidualMatricesStartSmaller) {
  for (const auto& parameter : model_parameters(accept(R"("n_layer": 8)"))) {
    if (parameter.initial != zero3::Initial::Normal) continue;
    const bool residual = parameter.name.ends_with("c_proj.weight");
    EXPECT_DOUBLE_EQ(parameter.standard_deviation, residual ? 0.02 / 4 : 0.02) << parameter.name;
  }
}

TEST(ModelConfig, DropoutIsSetToZeroWithOneNote) {
  const ModelConfig config = accept(R"("resid_pdrop": 0.2, "embd_pdrop": 0.0)");
  ASSERT_EQ(config.notes.size(), 1u);
  EXPECT_NE(config.notes[0].find("attn_pdrop, resid_pdrop: set to 0"), std::string::npos);
  EXPECT_TRUE(accept(R"("resid_pdrop": 0, "embd_pdrop": 0.0, "attn_pdrop": 0)").notes.empty());
}

TEST(ModelConfig, UnknownKeysAreOneNoteAndHarmlessOnesNone) {
  const std::string quiet = R"("resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, )";
  const ModelConfig known = accept(
      quiet + R"("architectures": ["GPT2LMHeadModel"], "torch_dtype": "float32", "use_cache": true,
                 "transformers_version": "4.40.0", "bos_token_id": 0, "eos_token_id": [0, 1],
                 "summary_type": "cls_index", "task_specific_params": {"a": {}},
                 "add_cross_attention": false, "quantization_config": null, "pruned_heads": {},
                 "_name_or_path": "gpt2", "_num_labels": 1)");
  EXPECT_TRUE(known.notes.empty()) << known.notes[0];
  const ModelConfig unknown = accept(quiet + R"("rope_theta": 1, "alibi": true)");
  ASSERT_EQ(unknown.notes.size(), 1u);
  EXPECT_NE(unknown.notes[0].find("alibi, rope_theta"), std::string::npos) << unknown.notes[0];
}

TEST(ModelConfig, WhatCannotBeHonouredIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"("n_embd": 0)", "n_embd: got 0, allowed an integer from 1 to"},
      {R"("n_embd": 768.0)", "n_embd: got 768.0, allowed an integer"},
      {R"("n_embd": null)", "n_embd: got null, allowed an integer"},
      {R"("n_layer": "12")", "n_layer: got \"12\", allowed an integer"},
      {R"("n_layer": -1)", "n_layer: got -1"},
      {R"("n_head": 18446744073709551615)", "n_head: got 18446744073709551615"},
      {R"("n_head": 7)", "n_head: got 7, allowed a divisor of n_embd, which is 768"},
      {R"("n_inner": 0)", "n_inner: got 0"},
      {R"("vocab_size": true)", "vocab_size: got true"},
      {R"("activation_function": "xielu")", "got \"xielu\", allowed gelu_new, gelu_pytorch_tanh"},
      {R"("activation_function": "laplace")", "not supported yet: activation_function laplace"},
      {R"("activation_function": "prelu")", "not supported yet: activation_function prelu"},
      {R"("activation_function": "xielu")", "not supported yet: activation_function xielu"},
      {R"("activation_function": null)", "activation_function: got null"},
      {R"("layer_norm_epsilon": -1e-5)",
       "layer_norm_epsilon: got -1e-05, allowed a number from 0.0"},
      {R"("layer_norm_epsilon": "1e-5")", "layer_norm_epsilon: got \"1e-5\""},
      {R"("initializer_range": -0.1)", "initializer_range: got -0.1"},
      {R"("attn_pdrop": 1.5)", "attn_pdrop: got 1.5"},
      {R"("scale_attn_weights": 1)", "scale_attn_weights: got 1, allowed true or false"},
      {R"("add_cross_attention": true)", "add_cross_attention: got true, allowed null or false"},
      {R"("is_encoder_decoder": true)", "is_encoder_decoder: got true"},
      {R"("is_causal": false)", "is_causal: got false"},
      {R"("pruned_heads": {"0": [1]})", "pruned_heads: got {\"0\":[1]}"},
      {R"("quantization_config": {"bits": 4})",
       "quantization_config: got {\"bits\":4}, allowed null; not supported yet: "
       "quantization_config"},
      {R"("loss_type": "ForMaskedLM")", "loss_type: got \"ForMaskedLM\""},
  };
  for (const auto& [keys, message] : cases) {
    const std::string text = refuse(keys);
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("model config: dir/config.json: ")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(ModelConfig, FaultsAreListedFiveAtMost) {
  const std::string text = refuse(
      R"("n_embd": 0, "n_layer": 0, "n_head": 0, "n_inner": 0, "vocab_size": 0, "n_positions": 0)");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
}

TEST(ModelConfig, FilesThatAreNoConfigAreRefused) {
  const auto error = [](const std::string& text) {
    return parse_model_config(text, "config.json").error().to_string();
  };
  EXPECT_NE(error("").find("not JSON"), std::string::npos);
  EXPECT_NE(error("{\"a\": }").find("not JSON"), std::string::npos);
  EXPECT_NE(error(std::string(1'000'000, '[')).find("not JSON"), std::string::npos);
  EXPECT_NE(error("[]").find("allowed an object"), std::string::npos);
  EXPECT_NE(error("{}").find("model_type: missing"), std::string::npos);
  EXPECT_NE(error(R"({"model_type": "bert"})")
                .find("allowed \"gpt2\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\" or "
                      "\"phi3\"; not "
                      "supported yet: model_type \"bert\""),
            std::string::npos);
  const TemporaryDirectory folder;
  EXPECT_EQ(read_model_config(folder.path()).error().code, ErrorCode::Io);
  EXPECT_NE(read_model_config(folder.path()).error().to_string().find("/config.json"),
            std::string::npos);
}

}  // namespace
}  // namespace artesian::models
