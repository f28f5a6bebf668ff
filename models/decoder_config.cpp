#include "models/decoder_config.h"

#include <fmt/core.h>

#include <utility>

namespace artesian::models {

void read_dropout(ConfigReader& reader, std::initializer_list<const char*> names, double absent) {
  std::string list;
  for (const char* name : names) {
    const double probability = reader.number(name, {0.0, 1.0}, absent);
    if (probability > 0.0) list += (list.empty() ? "" : ", ") + std::string(name);
  }
  if (list.empty()) return;
  reader.add_note(list + ": set to 0 (dropout is not supported yet" +
                  (absent > 0.0 ? "; absent means 0.1)" : ")"));
}

void read_common_keys(ConfigReader& reader) {
  reader.refuse_unless("add_cross_attention", {"false"});
  reader.refuse_unless("is_encoder_decoder", {"false"});
  reader.refuse_unless("is_causal", {"true"});
  reader.refuse_unless("pruned_heads", {"{}"});
  reader.refuse_unless("quantization_config", {});
  reader.refuse_unless("per_layer_config", {"{}"});
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

void ParameterList::add(std::string name, std::vector<std::int64_t> shape, zero3::Initial initial,
                        double deviation) {
  specs_.push_back({.name = std::move(name),
                    .shape = std::move(shape),
                    .initial = initial,
                    .standard_deviation = deviation});
}

void ParameterList::matrix(std::string name, std::int64_t rows, std::int64_t columns,
                           double deviation) {
  add(std::move(name), {rows, columns}, zero3::Initial::Normal, deviation);
  const std::string& added = specs_.back().name;
  const auto has = [&](const char* part) { return added.find(part) != added.npos; };
  specs_.back().matrix = !has("embed") && !has("lm_head") && !has("wte") && !has("wpe");
}

void ParameterList::zeros(std::string name, std::int64_t count) {
  add(std::move(name), {count}, zero3::Initial::Zeros, 0.0);
}

void ParameterList::ones(std::string name, std::int64_t count) {
  add(std::move(name), {count}, zero3::Initial::Ones, 0.0);
}

void ParameterList::zero_row(std::int64_t row) {
  ARTESIAN_CHECK(!specs_.empty() && row >= 0 && row < specs_.back().shape[0], row);
  specs_.back().zero_row = static_cast<std::uint64_t>(row);
}

void ParameterList::tiled() {
  ARTESIAN_CHECK(!specs_.empty());
  specs_.back().tiled = true;
  specs_.back().matrix = false;
}

std::vector<zero3::StageSpec> decoder_stages(const DecoderShape& shape) {
  std::vector<zero3::StageSpec> stages;
  std::uint32_t next = 0;
  const auto add = [&](std::string name, std::uint32_t count) -> zero3::StageSpec& {
    stages.push_back({.name = std::move(name), .parameters = {}, .lookup = {}});
    while (count-- > 0) stages.back().parameters.push_back(next++);
    return stages.back();
  };
  add("embed", shape.embedding_parameters).lookup = 0;
  for (std::int64_t block = 0; block < shape.blocks; ++block) {
    add(fmt::format("{}{}", shape.block_prefix, block), shape.block_parameters);
  }
  add("head", shape.head_parameters).parameters.push_back(shape.tied ? 0 : next);
  return stages;
}

}  // namespace artesian::models
