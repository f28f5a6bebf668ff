#include "models/gpt2_config.h"

#include <array>
#include <cmath>
#include <utility>

namespace artesian::models {
namespace {

// Bounds far above any model, low enough that no product of two overflows.
constexpr IntegerRange width_range{1, std::int64_t{1} << 24};
constexpr IntegerRange vocabulary_range{1, std::int64_t{1} << 30};
constexpr IntegerRange layer_range{1, 100000};

struct ActivationName {
  const char* name;
  Activation activation;
};

constexpr std::array<ActivationName, 18> activation_names{{
    {"gelu_new", Activation::GeluNew},
    {"gelu_pytorch_tanh", Activation::GeluNew},
    {"gelu_python_tanh", Activation::GeluNew},
    {"gelu_fast", Activation::GeluNew},
    {"gelu_accurate", Activation::GeluNew},
    {"gelu", Activation::Gelu},
    {"gelu_python", Activation::Gelu},
    {"quick_gelu", Activation::QuickGelu},
    {"relu", Activation::Relu},
    {"relu2", Activation::Relu2},
    {"relu6", Activation::Relu6},
    {"leaky_relu", Activation::LeakyRelu},
    {"silu", Activation::Silu},
    {"swish", Activation::Silu},
    {"mish", Activation::Mish},
    {"hardswish", Activation::Hardswish},
    {"sigmoid", Activation::Sigmoid},
    {"tanh", Activation::Tanh},
}};
constexpr const char* linear_name = "linear";

Activation read_activation(ConfigReader& reader) {
  std::vector<const char*> names;
  names.reserve(std::size(activation_names) + 1);
  for (const auto& entry : activation_names) names.push_back(entry.name);
  names.push_back(linear_name);
  const std::size_t index = reader.choice("activation_function", names, 0);
  return index < activation_names.size() ? activation_names[index].activation : Activation::Linear;
}

/// Dropout comes later (issue F): valid probabilities are set to 0, with one note.
void read_dropout(ConfigReader& reader) {
  std::string list;
  for (const char* name : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) {
    const double probability = reader.number(name, {0.0, 1.0}, 0.1);
    if (probability > 0.0) list += (list.empty() ? "" : ", ") + std::string(name);
  }
  if (!list.empty()) {
    reader.add_note(list + ": set to 0 (dropout is not supported yet; absent means 0.1)");
  }
}

/// Keys that would change results but are not implemented, and those that change nothing here.
void read_other_keys(ConfigReader& reader) {
  reader.refuse_unless("add_cross_attention", {"false"});
  reader.refuse_unless("is_encoder_decoder", {"false"});
  reader.refuse_unless("is_causal", {"true"});
  reader.refuse_unless("pruned_heads", {"{}"});
  reader.refuse_unless("quantization_config", {});
  reader.refuse_unless("loss_type", {"\"ForCausalLM\"", "\"ForCausalLMLoss\""});
  reader.ignore({"model_type",
                 "architectures",
                 "torch_dtype",
                 "dtype",
                 "transformers_version",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "sep_token_id",
                 "decoder_start_token_id",
                 "unk_token_id",
                 "use_cache",
                 "task_specific_params",
                 "summary_type",
                 "summary_use_proj",
                 "summary_activation",
                 "summary_proj_to_labels",
                 "summary_first_dropout",
                 "predict_special_tokens",
                 "id2label",
                 "label2id",
                 "num_labels",
                 "problem_type",
                 "finetuning_task",
                 "output_attentions",
                 "output_hidden_states",
                 "output_past",
                 "return_dict",
                 "use_return_dict",
                 "gradient_checkpointing",
                 "is_decoder",
                 "chunk_size_feed_forward",
                 "torchscript",
                 "use_bfloat16",
                 "name_or_path",
                 "attn_implementation",
                 "tie_encoder_decoder",
                 "cross_attention_hidden_size",
                 "tokenizer_class",
                 "prefix",
                 "initializer_factor"});
}

class ParameterList {
 public:
  explicit ParameterList(const Gpt2Config& config) : config_(config) {}

  void matrix(std::string name, std::int64_t rows, std::int64_t columns) {
    add(std::move(name), {rows, columns}, zero3::Initial::Normal, config_.initializer_range);
  }
  /// The two matrices of a block that write to the residual stream start smaller, so that its
  /// variance does not grow with depth (Radford et al. 2019, section 2.3).
  void residual_matrix(std::string name, std::int64_t rows, std::int64_t columns) {
    const double deviation =
        config_.initializer_range / std::sqrt(2.0 * static_cast<double>(config_.layers));
    add(std::move(name), {rows, columns}, zero3::Initial::Normal, deviation);
  }
  void zeros(std::string name, std::int64_t count) {
    add(std::move(name), {count}, zero3::Initial::Zeros, 0.0);
  }
  void layer_norm(const std::string& name) {
    add(name + ".weight", {config_.hidden}, zero3::Initial::Ones, 0.0);
    zeros(name + ".bias", config_.hidden);
  }
  std::vector<zero3::ParameterSpec> take() { return std::move(specs_); }

 private:
  void add(std::string name, std::vector<std::int64_t> shape, zero3::Initial initial,
           double deviation) {
    specs_.push_back({.name = std::move(name),
                      .shape = std::move(shape),
                      .initial = initial,
                      .standard_deviation = deviation});
  }

  const Gpt2Config& config_;
  std::vector<zero3::ParameterSpec> specs_;
};

constexpr std::uint32_t parameters_before_blocks = 2;
constexpr std::uint32_t parameters_per_block = 12;

}  // namespace

Gpt2Config read_gpt2_config(ConfigReader& reader) {
  Gpt2Config config;
  config.vocab_size = reader.integer({"vocab_size"}, vocabulary_range, config.vocab_size);
  config.positions = reader.integer({"n_positions", "max_position_embeddings", "n_ctx"},
                                    width_range, config.positions);
  config.hidden = reader.integer({"n_embd", "hidden_size"}, width_range, config.hidden);
  config.layers = reader.integer({"n_layer", "num_hidden_layers"}, layer_range, config.layers);
  config.heads = reader.integer({"n_head", "num_attention_heads"}, width_range, config.heads);
  config.inner = reader.integer_or_null("n_inner", width_range, 4 * config.hidden);
  config.activation = read_activation(reader);
  config.layer_norm_epsilon =
      reader.number("layer_norm_epsilon", {0.0, 1.0}, config.layer_norm_epsilon);
  config.initializer_range =
      reader.number("initializer_range", {0.0, 1000.0}, config.initializer_range);
  config.scale_attention_weights =
      reader.boolean("scale_attn_weights", config.scale_attention_weights);
  config.scale_attention_by_inverse_layer_index = reader.boolean(
      "scale_attn_by_inverse_layer_idx", config.scale_attention_by_inverse_layer_index);
  config.reorder_and_upcast_attention =
      reader.boolean("reorder_and_upcast_attn", config.reorder_and_upcast_attention);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read_dropout(reader);
  read_other_keys(reader);
  if (config.hidden % config.heads != 0) {
    reader.add_fault("n_head", std::to_string(config.heads),
                     "a divisor of n_embd, which is " + std::to_string(config.hidden));
  }
  return config;
}

std::vector<zero3::ParameterSpec> gpt2_parameters(const Gpt2Config& config) {
  ParameterList list(config);
  const std::int64_t hidden = config.hidden;
  list.matrix("wte.weight", config.vocab_size, hidden);
  list.matrix("wpe.weight", config.positions, hidden);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    list.layer_norm(block + "ln_1");
    list.matrix(block + "attn.c_attn.weight", hidden, 3 * hidden);  // Conv1D: [in, out]
    list.zeros(block + "attn.c_attn.bias", 3 * hidden);
    list.residual_matrix(block + "attn.c_proj.weight", hidden, hidden);
    list.zeros(block + "attn.c_proj.bias", hidden);
    list.layer_norm(block + "ln_2");
    list.matrix(block + "mlp.c_fc.weight", hidden, config.inner);
    list.zeros(block + "mlp.c_fc.bias", config.inner);
    list.residual_matrix(block + "mlp.c_proj.weight", config.inner, hidden);
    list.zeros(block + "mlp.c_proj.bias", hidden);
  }
  list.layer_norm("ln_f");
  if (!config.tie_word_embeddings) list.matrix("lm_head.weight", config.vocab_size, hidden);
  return list.take();
}

std::vector<zero3::StageSpec> gpt2_stages(const Gpt2Config& config) {
  std::vector<zero3::StageSpec> stages;
  stages.push_back({.name = "embed", .parameters = {0, 1}, .lookup = 0});
  std::uint32_t next = parameters_before_blocks;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    zero3::StageSpec block{.name = "h." + std::to_string(layer), .parameters = {}, .lookup = {}};
    for (std::uint32_t count = 0; count < parameters_per_block; ++count) {
      block.parameters.push_back(next++);
    }
    stages.push_back(std::move(block));
  }
  const std::uint32_t head_weight = config.tie_word_embeddings ? 0 : next + 2;
  stages.push_back({.name = "head", .parameters = {next, next + 1, head_weight}, .lookup = {}});
  return stages;
}

}  // namespace artesian::models
