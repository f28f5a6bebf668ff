// Proves that Llama's config.json is read as transformers reads it: defaults, values in effect, the
// rotary embedding in its old and its new form; and that whatever cannot be honoured, each number
// with each hostile value among it, is refused by its key in one line.
#include "models/llama_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/model_config.h"

namespace artesian::models {
namespace {

/// Llama or one of its relatives, with these keys.
Result<ModelConfig> parse_relative(const std::string& type, const std::string& keys) {
  return parse_model_config(
      "{\"model_type\": \"" + type + "\"" + (keys.empty() ? "" : ", " + keys) + "}",
      "dir/config.json");
}

ModelConfig relative(const std::string& type, const std::string& keys = "") {
  auto parsed = parse_relative(type, keys);
  EXPECT_TRUE(parsed.has_value()) << parsed.error().to_string();
  return parsed.has_value() ? std::move(parsed).value() : ModelConfig{};
}

ModelConfig accept(const std::string& keys) {
  return relative("llama", keys);
}

std::string refuse(const std::string& keys) {
  const auto parsed = parse_relative("llama", keys);
  EXPECT_FALSE(parsed.has_value()) << keys;
  return parsed.has_value() ? "" : parsed.error().to_string();
}

TEST(LlamaConfig, DefaultsAreThoseOfLlama7B) {
  const ModelConfig config = accept("");
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.positions_max, 2048);
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_FALSE(config.tied);
  EXPECT_EQ(config.llama.key_value_heads, 32);
  EXPECT_EQ(config.llama.head, 128);
  EXPECT_FALSE(config.llama.padding.has_value());
  EXPECT_EQ(config.llama.rotary.theta, 10000.0);
  EXPECT_TRUE(config.notes.empty());
  std::uint64_t count = 0;
  for (const auto& parameter : model_parameters(config)) count += parameter.numel();
  EXPECT_EQ(count, 6'738'415'616u);  // transformers counts the same
}

TEST(LlamaConfig, EveryValueIsInEffect) {
  const ModelConfig config = accept(
      R"("vocab_size": 100, "max_position_embeddings": 32, "hidden_size": 24,
         "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 10, "hidden_act": "gelu", "rms_norm_eps": 1e-5,
         "initializer_range": 0.01, "pad_token_id": 9, "tie_word_embeddings": true,
         "attention_bias": true, "mlp_bias": true, "rope_theta": 500000.0)");
  const LlamaConfig& llama = config.llama;
  EXPECT_EQ(llama.vocab_size, 100);
  EXPECT_EQ(llama.positions, 32);
  EXPECT_EQ(llama.hidden, 24);
  EXPECT_EQ(llama.inner, 50);
  EXPECT_EQ(llama.layers, 3);
  EXPECT_EQ(llama.heads, 4);
  EXPECT_EQ(llama.key_value_heads, 2);
  EXPECT_EQ(llama.head, 10);
  EXPECT_EQ(llama.activation, Activation::Gelu);
  EXPECT_EQ(llama.norm_epsilon, 1e-5);
  EXPECT_EQ(llama.initializer_range, 0.01);
  EXPECT_EQ(llama.padding, 9);
  EXPECT_TRUE(llama.tie_word_embeddings);
  EXPECT_TRUE(llama.attention_bias);
  EXPECT_TRUE(llama.mlp_bias);
  EXPECT_EQ(llama.rotary.theta, 500000.0);
  EXPECT_EQ(llama.rotary.head, 10);
}

TEST(LlamaConfig, NullAndOddValuesMeanWhatTransformersMakesOfThem) {
  const LlamaConfig llama = accept(R"("num_attention_heads": 16, "num_key_value_heads": null,
      "head_dim": null, "pad_token_id": null, "rope_scaling": null, "rope_parameters": {},
      "initializer_range": 0)")
                                .llama;
  EXPECT_EQ(llama.key_value_heads, 16);
  EXPECT_EQ(llama.head, 256);
  EXPECT_FALSE(llama.padding.has_value());
  EXPECT_EQ(llama.initializer_range, 0.02);
  EXPECT_EQ(llama.rotary.scaling, RotaryScaling::None);
  EXPECT_EQ(accept(R"("pad_token_id": -1)").llama.padding, 31999);
}

TEST(LlamaConfig, ParametersAndStagesAgree) {
  for (const std::string tied : {"true", "false"}) {
    for (const std::string bias : {"true", "false"}) {
      const ModelConfig config =
          accept(R"("num_hidden_layers": 2, "tie_word_embeddings": )" + tied +
                 R"(, "attention_bias": )" + bias + R"(, "mlp_bias": )" + bias);
      const auto parameters = model_parameters(config);
      const auto stages = llama_stages(config.llama);
      ASSERT_TRUE(zero3::check_shape(parameters, stages).has_value());
      ASSERT_EQ(stages.size(), 4u);
      EXPECT_EQ(stages[0].name, "embed");
      EXPECT_EQ(stages[2].name, "layers.1");
      EXPECT_EQ(stages[3].name, "head");
      EXPECT_EQ(stages[0].parameters.size(), 1u);
      EXPECT_EQ(parameters[*stages[0].lookup].name, "embed_tokens.weight");
      EXPECT_EQ(stages[1].parameters.size(), bias == "true" ? 16u : 9u);
      EXPECT_EQ(parameters[stages[2].parameters.front()].name, "layers.1.input_layernorm.weight");
      EXPECT_EQ(parameters[stages[2].parameters.back()].name,
                std::string("layers.1.mlp.down_proj.") + (bias == "true" ? "bias" : "weight"));
      EXPECT_EQ(parameters[stages[3].parameters[0]].name, "norm.weight");
      EXPECT_EQ(parameters[stages[3].parameters[1]].name,
                config.tied ? "embed_tokens.weight" : "lm_head.weight");
      EXPECT_EQ(saved_name(config, "norm.weight"), "model.norm.weight");
      EXPECT_EQ(saved_name(config, "lm_head.weight"), "lm_head.weight");
      EXPECT_EQ(parameter_name(config, "model.norm.weight"), "norm.weight");
      EXPECT_FALSE(is_harmless_tensor(config, "lm_head.weight"));
      EXPECT_TRUE(is_harmless_tensor(config, "layers.0.self_attn.rotary_emb.inv_freq"));
      EXPECT_FALSE(is_harmless_tensor(config, "layers.0.self_attn.q_norm.weight"));
    }
  }
}

TEST(LlamaConfig, RotaryFormsMeanTheSame) {
  const auto rotary = [](const std::string& keys) { return accept(keys).llama.rotary; };
  const RotaryConfig old_form = rotary(R"("rope_theta": 500.0, "max_position_embeddings": 64,
      "rope_scaling": {"type": "linear", "factor": 4})");
  const RotaryConfig new_form = rotary(R"("max_position_embeddings": 64, "rope_parameters":
      {"rope_type": "linear", "factor": 4.0, "rope_theta": 500})");
  for (const RotaryConfig& config : {old_form, new_form}) {
    EXPECT_EQ(config.scaling, RotaryScaling::Linear);
    EXPECT_EQ(config.theta, 500.0);
    EXPECT_EQ(config.factor, 4.0);
    EXPECT_EQ(config.longest(), 256);
  }
  const ModelConfig both = accept(R"("rope_scaling": {"type": "linear", "factor": 4},
      "rope_parameters": {"rope_type": "dynamic", "factor": 2}, "rope_theta": 7)");
  EXPECT_EQ(both.llama.rotary.scaling, RotaryScaling::Linear);
  EXPECT_EQ(both.llama.rotary.theta, 7.0);
  ASSERT_EQ(both.notes.size(), 1u);
  EXPECT_NE(both.notes[0].find("rope_parameters: has no effect beside rope_scaling"),
            std::string::npos);
  const auto type = rotary(R"("rope_scaling": {"type": "linear", "rope_type": "dynamic",
      "factor": 4})");
  EXPECT_EQ(type.scaling, RotaryScaling::Dynamic);
}

TEST(LlamaConfig, RotaryScalingsFillInWhatTransformersFillsIn) {
  const auto rotary = [](const std::string& keys) { return accept(keys).llama.rotary; };
  const RotaryConfig llama3 = rotary(R"("max_position_embeddings": 131072, "rope_scaling":
      {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
       "original_max_position_embeddings": 8192})");
  EXPECT_EQ(llama3.original_positions, 8192);
  EXPECT_EQ(llama3.longest(), 131072);
  const RotaryConfig yarn = rotary(R"("max_position_embeddings": 4096, "rope_scaling":
      {"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 1024,
       "beta_fast": 0})");
  EXPECT_EQ(yarn.factor, 4.0);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_DOUBLE_EQ(yarn.attention_factor, 0.1 * std::log(4.0) + 1.0);
  const std::string factors = R"("short_factor": [1, 2], "long_factor": [3, 4])";
  const RotaryConfig longrope = rotary(R"("head_dim": 4, "max_position_embeddings": 4096,
      "original_max_position_embeddings": 1024, "rope_scaling": {"rope_type": "longrope",
      "original_max_position_embeddings": 512, )" +
                                       factors + "}");
  EXPECT_EQ(longrope.original_positions, 1024);  // beside the section is the stronger
  EXPECT_DOUBLE_EQ(longrope.attention_factor, std::sqrt(1.0 + std::log(4.0) / std::log(1024.0)));
  EXPECT_EQ(longrope.long_factor, (std::vector<double>{3, 4}));
}

TEST(LlamaConfig, KeysWithoutEffectAreOneNoteAndHarmlessOnesNone) {
  const ModelConfig known = accept(
      R"("architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "use_cache": true,
         "transformers_version": "4.40.0", "bos_token_id": 1, "eos_token_id": [2, 3],
         "pretraining_tp": 2, "quantization_config": null, "_name_or_path": "x",
         "attention_dropout": 0.0, "partial_rotary_factor": 1.0, "pruned_heads": {})");
  EXPECT_TRUE(known.notes.empty()) << known.notes[0];
  const ModelConfig unknown = accept(
      R"("sliding_window": 5, "rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3})");
  std::string notes;
  for (const auto& note : unknown.notes) notes += note + "\n";
  EXPECT_NE(notes.find("no effect: sliding_window"), std::string::npos) << notes;
  EXPECT_NE(notes.find("no effect: rope_scaling.beta_fast"), std::string::npos) << notes;
  const ModelConfig dropout = accept(R"("attention_dropout": 0.1)");
  ASSERT_EQ(dropout.notes.size(), 1u);
  EXPECT_NE(dropout.notes[0].find("attention_dropout: set to 0"), std::string::npos);
}

void expect_one_line(const std::string& text, const std::string& message) {
  EXPECT_NE(text.find(message), std::string::npos) << text << "\nhas no " << message;
  EXPECT_TRUE(text.starts_with("model config: dir/config.json: ")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(LlamaConfig, WhatCannotBeHonouredIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"("num_attention_heads": 7)",
       "num_attention_heads: got 7, allowed a divisor of "
       "hidden_size, which is 4096"},
      {R"("num_key_value_heads": 3)",
       "num_key_value_heads: got 3, allowed a divisor of "
       "num_attention_heads, which is 32"},
      {R"("head_dim": 7)", "head_dim: got 7, allowed an even number"},
      {R"("hidden_size": 16, "num_attention_heads": 16)", "head_dim: got 1, allowed an even"},
      {R"("hidden_size": 3, "num_attention_heads": 16, "head_dim": 2)",
       "num_attention_heads: got 16, allowed a divisor of hidden_size, which is 3"},
      {R"("hidden_act": "gelu_10")", "hidden_act: got \"gelu_10\", allowed gelu_new"},
      {R"("hidden_act": "gelu_10")", "linear; not supported yet: hidden_act gelu_10"},
      {R"("attention_bias": 1)", "attention_bias: got 1, allowed true or false"},
      {R"("mlp_bias": "no")", "mlp_bias: got \"no\", allowed true or false"},
      {R"("tie_word_embeddings": null)", "tie_word_embeddings: got null, allowed true or false"},
      {R"("attention_dropout": null)", "attention_dropout: got null"},
      {R"("pad_token_id": 32000)", "pad_token_id: got 32000, allowed an integer from -32000"},
      {R"("pad_token_id": -32001)", "pad_token_id: got -32001, allowed"},
      {R"("is_causal": false)",
       "is_causal: got false, allowed null or true; not supported yet: "
       "is_causal"},
      {R"("add_cross_attention": true)", "not supported yet: add_cross_attention"},
      {R"("is_encoder_decoder": true)", "not supported yet: is_encoder_decoder"},
      {R"("pruned_heads": {"0": [1]})", "not supported yet: pruned_heads"},
      {R"("quantization_config": {"bits": 4})", "not supported yet: quantization_config"},
      {R"("per_layer_config": {"0": {}})", "not supported yet: per_layer_config"},
      {R"("loss_type": "ForMaskedLM")", "not supported yet: loss_type"},
      {R"("partial_rotary_factor": 0.5)", "not supported yet: partial_rotary_factor"},
      {R"("rope_scaling": "linear")", "rope_scaling: got \"linear\", allowed null or an object"},
      {R"("rope_parameters": [1])", "rope_parameters: got [1], allowed null or an object"},
  };
  for (const auto& [keys, message] : cases) expect_one_line(refuse(keys), message);
}

TEST(LlamaConfig, RotarySettingsThatCannotBeHonouredAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"("rope_type": "proportional")",
       "rope_type: got \"proportional\", allowed default, linear, dynamic, yarn, longrope, "
       "llama3; not supported yet: rope_type proportional"},
      {R"("type": "su", "factor": 2)", "type: got \"su\", allowed default, "},
      {R"("rope_type": 4)", "rope_type: got 4, allowed a string"},
      {R"("partial_rotary_factor": 0.25)", "not supported yet: rope_scaling.partial_rotary_factor"},
      {R"("type": "linear")", "factor: got nothing, allowed a number; this rope_type needs it"},
      {R"("type": "dynamic")", "factor: got nothing, allowed a number; this rope_type needs it"},
      {R"("type": "yarn")", "factor: got nothing, allowed a number or null; this"},
      {R"("type": "linear", "factor": 0.5)", "factor: got 0.5, allowed a number from 1.0"},
      {R"("type": "linear", "factor": null)", "factor: got null, allowed a number"},
      {R"("type": "longrope", "short_factor": [1, 2])", "long_factor: got nothing"},
      {R"("type": "longrope", "short_factor": [1], "long_factor": [1, 2])",
       "short_factor: got [1], allowed a list of 2 numbers from 1e-06"},
      {R"("type": "longrope", "short_factor": [1, 0], "long_factor": [1, 2])",
       "short_factor: got [1,0], allowed a list of 2 numbers"},
      {R"("type": "longrope", "short_factor": [1, 2], "long_factor": [1, "x"])",
       "long_factor: got"},
      {R"("type": "llama3", "factor": 2, "low_freq_factor": 1)", "high_freq_factor: got nothing"},
      {R"("type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4)",
       "high_freq_factor: got 4.000000, allowed more than low_freq_factor"},
      {R"("type": "yarn", "factor": 2, "rope_theta": 1)", "rope_theta: got 1, allowed more than 1"},
      {R"("type": "yarn", "factor": 2, "truncate": 1)", "truncate: got 1, allowed true or false"},
  };
  for (const auto& [keys, message] : cases) {
    expect_one_line(refuse(R"("head_dim": 4, "rope_scaling": {)" + keys + "}"),
                    message.starts_with("not") ? message : "rope_scaling." + message);
  }
  expect_one_line(refuse(R"("head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2})"),
                  "rope_scaling.rope_type: got dynamic, allowed others for a head_dim of 2");
  expect_one_line(refuse(R"("max_position_embeddings": 1, "head_dim": 4, "rope_parameters":
      {"type": "yarn", "factor": 2})"),
                  "rope_parameters.original_max_position_embeddings: got nothing");
}

/// Each hostile value under each key that is a number: one line that names the key. NaN and
/// infinities are no JSON; 1e999 overflows.
TEST(LlamaConfig, HostileNumbersAreRefusedByName) {
  const std::string yarn = R"("rope_parameters": {"rope_type": "yarn", "factor": 2, )";
  const std::string llama3 = R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 9, )";
  struct Key {
    std::string before, name;
    bool integer, may_be_zero;
  };
  const std::vector<Key> keys{
      {"", "vocab_size", true, false},
      {"", "max_position_embeddings", true, false},
      {"", "hidden_size", true, false},
      {"", "intermediate_size", true, false},
      {"", "num_hidden_layers", true, false},
      {"", "num_attention_heads", true, false},
      {"", "num_key_value_heads", true, false},
      {"", "head_dim", true, false},
      {"", "rms_norm_eps", false, true},
      {"", "initializer_range", false, true},
      {"", "attention_dropout", false, true},
      {"", "rope_theta", false, false},
      {R"("rope_scaling": {"type": "linear", )", "factor", false, false},
      {R"("rope_scaling": {"type": "dynamic", )", "factor", false, false},
      {R"("rope_scaling": {"type": "default", )", "rope_theta", false, false},
      {yarn, "original_max_position_embeddings", true, false},
      {yarn, "attention_factor", false, true},
      {yarn, "beta_fast", false, true},
      {yarn, "beta_slow", false, true},
      {yarn, "mscale", false, true},
      {yarn, "mscale_all_dim", false, true},
      {llama3 + R"("factor": 2, "high_freq_factor": 4, )", "low_freq_factor", false, false},
      {llama3 + R"("factor": 2, "low_freq_factor": 1, )", "high_freq_factor", false, false},
      {llama3 + R"("low_freq_factor": 1, "high_freq_factor": 4, )", "factor", false, false},
  };
  for (const Key& key : keys) {
    std::vector<std::string> values{"-1", "1e300", R"("1")", "true", "[1]", "{}", "-0.5"};
    if (key.integer) values.insert(values.end(), {"1.5", "1.0", "99999999999999999999", "1e9"});
    if (!key.may_be_zero) values.emplace_back("0");
    for (const std::string& value : values) {
      SCOPED_TRACE(key.before + key.name + ": " + value);
      const std::string text =
          refuse(key.before + '"' + key.name + "\": " + value + (key.before.empty() ? "" : "}"));
      EXPECT_NE(text.find(key.name + ": got "), std::string::npos) << text;
    }
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999"}) {
      const std::string text =
          refuse(key.before + '"' + key.name + "\": " + value + (key.before.empty() ? "" : "}"));
      expect_one_line(text, "not JSON");
    }
  }
}

std::uint64_t count_of(const ModelConfig& config) {
  std::uint64_t count = 0;
  for (const auto& parameter : model_parameters(config)) count += parameter.numel();
  return count;
}

/// The defaults of the classes of transformers 5.23, whose models have so many parameters.
TEST(Relatives, DefaultsAreThoseOfTheirClasses) {
  const ModelConfig mistral = relative("mistral");
  EXPECT_EQ(mistral.llama.key_value_heads, 8);
  EXPECT_EQ(mistral.positions_max, 4096);  // the window
  EXPECT_EQ(count_of(mistral), 7'241'732'096u);
  const ModelConfig qwen2 = relative("qwen2");
  EXPECT_EQ(qwen2.positions_max, 32768);
  EXPECT_EQ(qwen2.llama.head, 128);
  EXPECT_TRUE(qwen2.llama.attention_bias && !qwen2.llama.output_bias);
  const ModelConfig qwen3 = relative("qwen3", R"("hidden_size": 1024)");
  EXPECT_EQ(qwen3.llama.head, 128);  // and not hidden_size / num_attention_heads
  EXPECT_EQ(qwen3.llama.key_value_heads, 32);
  EXPECT_TRUE(qwen3.llama.head_norms && !qwen3.llama.attention_bias);
  const ModelConfig phi3 = relative("phi3");
  EXPECT_EQ(phi3.llama.padding, 32000);
  EXPECT_EQ(phi3.llama.norm_epsilon, 1e-5);
  EXPECT_EQ(phi3.llama.key_value_heads, 32);
  EXPECT_EQ(count_of(phi3), 3'821'079'552u);
  for (const char* type : {"mistral", "qwen2", "qwen3", "phi3"}) {
    const std::string null = R"("num_key_value_heads": null, "num_attention_heads": 16)";
    EXPECT_EQ(relative(type, null).llama.key_value_heads, 16) << type;
  }
}

TEST(Relatives, AWindowBoundsTheSequenceWhereItIsInEffect) {
  const auto longest = [](const std::string& type, const std::string& keys) {
    return relative(type, R"("max_position_embeddings": 100, "num_hidden_layers": 4)" +
                              (keys.empty() ? keys : ", " + keys))
        .positions_max;
  };
  EXPECT_EQ(longest("mistral", R"("sliding_window": 30)"), 30);
  EXPECT_EQ(longest("mistral", R"("sliding_window": null)"), 100);
  EXPECT_EQ(longest("mistral", R"("sliding_window": 200)"), 100);
  EXPECT_EQ(longest("phi3", ""), 100);
  EXPECT_EQ(longest("phi3", R"("sliding_window": 30)"), 30);
  for (const char* type : {"qwen2", "qwen3"}) {
    const std::string used = R"("use_sliding_window": true, "sliding_window": 30)";
    EXPECT_EQ(longest(type, R"("sliding_window": 30)"), 100);
    EXPECT_EQ(longest(type, used), 100) << "28 layers without";
    EXPECT_EQ(longest(type, used + R"(, "max_window_layers": 3)"), 30);
    EXPECT_EQ(longest(type, used + R"(, "max_window_layers": 4)"), 100);
    const std::string full = R"(, "layer_types": ["full_attention", "full_attention",)";
    EXPECT_EQ(longest(type, used + full + R"("full_attention", "sliding_attention"])"), 30);
    EXPECT_EQ(longest(type, used + full + R"("full_attention", "full_attention"])"), 100);
  }
  EXPECT_NE(relative("mistral").positions_limit.find("not supported yet: sequences beyond it"),
            std::string::npos);
  EXPECT_EQ(relative("qwen2").positions_limit, "the model's positions");
}

TEST(Relatives, Phi3IsStretchedFrom4096PositionsUnlessItSaysOthers) {
  const std::string keys = R"("hidden_size": 4, "num_attention_heads": 1, "pad_token_id": null,
      "max_position_embeddings": 8192, "rope_scaling": {"type": "longrope",
      "short_factor": [1, 1], "long_factor": [2, 2]})";
  EXPECT_EQ(relative("phi3", keys).llama.rotary.factor, 2.0);
  const std::string others = keys + R"(, "original_max_position_embeddings": 2048)";
  EXPECT_EQ(relative("phi3", others).llama.rotary.factor, 4.0);
}

TEST(Relatives, WhatCannotBeHonouredIsRefusedByName) {
  const std::vector<std::array<std::string, 3>> cases{
      {"mistral", R"("layer_types": ["full_attention"])", "not supported yet: layer_types"},
      {"mistral", R"("sliding_window": 0)", "sliding_window: got 0, allowed"},
      {"qwen2", R"("layer_types": ["chunked_attention"], "num_hidden_layers": 1)",
       "not supported yet: layer_types chunked_attention"},
      {"qwen2", R"("layer_types": ["full_attention"])", "layer_types: got 1 layers, allowed 32"},
      {"qwen3", R"("layer_types": ["sliding_attention"], "num_hidden_layers": 1)",
       "layer_types: got sliding_attention, allowed full_attention where use_sliding_window"},
      {"qwen3", R"("layer_types": 3)", "layer_types: got 3, allowed a list of strings"},
      {"qwen2", R"("use_sliding_window": 1)", "use_sliding_window: got 1, allowed true or false"},
      {"phi3", R"("vocab_size": 100)", "pad_token_id: got nothing, which is 32000, allowed"},
      {"phi3", R"("partial_rotary_factor": 0.75)", "not supported yet: partial_rotary_factor"},
      {"phi3", R"("rope_scaling": {"type": "linear", "factor": 2})",
       "rope_scaling.type: got \"linear\", allowed default, longrope; not supported yet"},
      {"gemma", "", "not supported yet: model_type \"gemma\""}};
  for (const auto& [type, keys, message] : cases) {
    const auto parsed = parse_relative(type, keys);
    ASSERT_FALSE(parsed.has_value()) << type << " " << keys;
    EXPECT_NE(parsed.error().to_string().find(message), std::string::npos)
        << parsed.error().to_string();
  }
}

TEST(LlamaConfig, Item10APartialRotaryFactorIsOneFault) {
  std::string factors = "1.0";
  for (int i = 1; i < 48; ++i) factors += ", 1.0";
  const auto parsed = parse_relative(
      "phi3",
      R"("pad_token_id": 0, "partial_rotary_factor": 0.75, "rope_scaling": {"type": "longrope", )"
      R"("short_factor": [)" +
          factors + R"(], "long_factor": [)" + factors + "]}");
  ASSERT_FALSE(parsed.has_value());
  const std::string text = parsed.error().to_string();
  EXPECT_NE(text.find("partial_rotary_factor"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace
}  // namespace artesian::models
