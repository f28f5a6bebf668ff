#include "zero3/checkpoint/checkpoint_manifest.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/safetensors_header.h"
#include "kernels/checksum.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {
namespace {

using Json = nlohmann::ordered_json;

Json numbers_of(const std::vector<std::uint64_t>& numbers) {
  Json list = Json::array();
  for (const std::uint64_t number : numbers) list.push_back(number);
  return list;
}

std::string bytes_as_hex(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += digits[byte >> 4];
    text += digits[byte & 15u];
  }
  return text;
}

Json state_of(const TrainingState& state) {
  Json random = Json::object();
  for (const auto& [name, bytes] : state.random) random[name] = bytes_as_hex(bytes);
  Json json = {{"step", state.step},
               {"updates", state.updates},
               {"skipped_in_a_row", state.skipped_in_a_row},
               {"loss_scaler",
                {{"scale", state.scaler.scale},
                 {"hysteresis_left", state.scaler.hysteresis_left},
                 {"iteration", state.scaler.iteration},
                 {"overflow_last", state.scaler.overflow_last}}},
               {"random", std::move(random)}};
  if (!state.parameter_steps.empty()) json["parameter_steps"] = numbers_of(state.parameter_steps);
  return json;
}

Json groups_of(const CheckpointManifest& manifest) {
  const std::size_t parameters = manifest.parameters.size();
  Json list = Json::array();
  for (const SavedGroup& group : manifest.groups) {
    for (const auto parameter : group.parameters) ARTESIAN_CHECK(parameter < parameters, parameter);
    list.push_back({{"optimizer", group.optimizer},
                    {"betas", {group.beta1, group.beta2}},
                    {"eps", group.eps},
                    {"weight_decay", group.weight_decay},
                    {"lr", group.lr},
                    {"step", group.step},
                    {"parameters", group.parameters}});
  }
  return list;
}

Json parameters_of(const std::vector<SavedParameter>& parameters) {
  Json list = Json::array();
  for (const SavedParameter& parameter : parameters) {
    Json entry = {{"name", parameter.name}, {"shape", numbers_of(parameter.shape)}};
    if (!parameter.trainable) entry["trainable"] = false;
    list.push_back(std::move(entry));
  }
  return list;
}

Json files_of(const CheckpointManifest& manifest) {
  Json list = Json::array();
  for (const SavedDataFile& file : manifest.files) {
    list.push_back({{"name", file.name},
                    {"rank", file.rank},
                    {"node", file.node},
                    {"bytes", file.bytes},
                    {"head_bytes", file.head_bytes},
                    {"head_digest", file.head_digest},
                    {"sums_digest", file.sums_digest},
                    {"sums_of",
                     {{"id", hex_of(file.seed.checkpoint)},
                      {"step", file.seed.step},
                      {"rank", file.seed.rank}}}});
  }
  return list;
}

Json side_files_of(const CheckpointManifest& manifest) {
  Json list = Json::array();
  for (const SavedSideFile& file : manifest.side_files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"digest", file.digest}});
  }
  return list;
}

Json buffers_of(const CheckpointManifest& manifest) {
  Json list = Json::array();
  for (const SavedBufferPlace& place : manifest.buffers) {
    ARTESIAN_CHECK(place.buffer.type != nullptr && place.file < manifest.files.size(), place.file);
    list.push_back({{"name", place.buffer.name},
                    {"dtype", place.buffer.type->name},
                    {"shape", numbers_of(place.buffer.shape)},
                    {"file", place.file},
                    {"offset", place.offset}});
  }
  return list;
}

Json trainer_of(const SavedTrainer& trainer) {
  Json sources = Json::array();
  for (const SavedSource& source : trainer.sources) {
    sources.push_back(
        {{"name", source.name}, {"tokens", source.tokens}, {"digest", source.digest}});
  }
  return {{"next_sample", trainer.next_sample},
          {"seed", trainer.seed},
          {"order", trainer.order},
          {"sequence_length", trainer.sequence_length},
          {"sources", std::move(sources)},
          {"tokenizer_digest", trainer.tokenizer_digest},
          {"log_line", trainer.log_line}};
}

/// The table of arrays as text: it is most of the manifest, and would be ten times as large as a
/// JSON tree.
std::string arrays_text(const CheckpointManifest& manifest) {
  std::map<std::pair<SavedArray, std::string_view>, std::string> rows;
  for (const SavedPart& part : manifest.parts) {
    ARTESIAN_CHECK(part.parameter < manifest.parameters.size(), part.parameter);
    ARTESIAN_CHECK(part.type != nullptr && part.file < manifest.files.size(), part.file);
    const std::uint64_t numel = manifest.parameters[part.parameter].numel();
    ARTESIAN_CHECK(part.first + part.count <= numel, part.first, part.count, numel);
    std::string& text = rows[{part.array, part.type->name}];
    text += fmt::format("{}{},{},{},{},{}]", text.empty() ? "[" : ",[", part.parameter, part.first,
                        part.count, part.file, part.offset);
  }
  std::string text = "[";
  for (const auto& [key, parts] : rows) {
    const SavedArrayFormat& format = format_of(key.first);
    const Json entry = {{"array", std::string(format.name)},
                        {"role", std::string(format.role)},
                        {"dtype", std::string(key.second)},
                        {"encoding", std::string(format.encoding)}};
    std::string head = entry.dump();
    head.pop_back();
    text += (text.size() == 1 ? "" : ",") + head + ",\"parts\":[" + parts + "]}";
  }
  return text + "]";
}

Json rest_of(const CheckpointManifest& manifest) {
  Json aliases = Json::object();
  for (const auto& [alias, name] : manifest.aliases) aliases[alias] = name;
  Json json = {{"version", checkpoint_version},
               {"id", hex_of(manifest.link.id)},
               {"lineage", hex_of(manifest.link.lineage)},
               {"serial", manifest.link.serial},
               {"run_id", hex_of(manifest.run_id)},
               {"created", manifest.created},
               {"state", state_of(manifest.state)},
               {"groups", groups_of(manifest)},
               {"files", files_of(manifest)},
               {"side_files", side_files_of(manifest)},
               {"aliases", std::move(aliases)},
               {"excluded", manifest.excluded},
               {"config", manifest.config},
               {"machine", manifest.machine},
               {"parameters", parameters_of(manifest.parameters)},
               {"buffers", buffers_of(manifest)}};
  if (manifest.link.parent != 0) json["parent"] = hex_of(manifest.link.parent);
  if (manifest.trainer) json["trainer"] = trainer_of(*manifest.trainer);
  return json;
}

/// All texts in the manifest except digests.
std::vector<std::string_view> texts_of(const CheckpointManifest& manifest) {
  std::vector<std::string_view> texts{manifest.config, manifest.created};
  const auto add = [&](std::string_view text) { texts.push_back(text); };
  for (const auto& parameter : manifest.parameters) add(parameter.name);
  for (const auto& place : manifest.buffers) add(place.buffer.name);
  for (const auto& group : manifest.groups) add(group.optimizer);
  for (const auto& file : manifest.files) texts.insert(texts.end(), {file.name, file.node});
  for (const auto& file : manifest.side_files) add(file.name);
  for (const auto& [alias, name] : manifest.aliases) texts.insert(texts.end(), {alias, name});
  for (const auto& [key, value] : manifest.machine) texts.insert(texts.end(), {key, value});
  for (const auto& name : manifest.excluded) add(name);
  for (const auto& [generator, state] : manifest.state.random) add(generator);
  if (!manifest.trainer) return texts;
  const SavedTrainer& trainer = *manifest.trainer;
  for (const auto& source : trainer.sources) {
    texts.insert(texts.end(), {source.name, source.digest});
  }
  texts.insert(texts.end(), {trainer.order, trainer.tokenizer_digest, trainer.log_line});
  return texts;
}

Result<void> check_texts(const CheckpointManifest& manifest) {
  for (const std::string_view text : texts_of(manifest)) {
    if (!is_utf8(text)) {
      return make_error(ErrorCode::Invalid, "checkpoint: " + shown_name(text) + " is not UTF-8");
    }
  }
  bool finite = std::isfinite(manifest.state.scaler.scale);
  for (const SavedGroup& group : manifest.groups) {
    for (const double each : {group.beta1, group.beta2, group.eps, group.weight_decay, group.lr}) {
      finite = finite && std::isfinite(each);
    }
  }
  if (!finite) return make_error(ErrorCode::Invalid, "checkpoint: a setting is not finite");
  return {};
}

}  // namespace

std::uint64_t SavedParameter::numel() const noexcept {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

std::string digest_of(std::string_view bytes) {
  kernels::Digest digest;
  digest.update(bytes.data(), bytes.size());
  return digest.hex();
}

Result<std::string> write_manifest(const CheckpointManifest& manifest) {
  ARTESIAN_TRY_VOID(check_texts(manifest));
  std::string text = rest_of(manifest).dump();
  text.pop_back();
  text += ",\"arrays\":" + arrays_text(manifest) + "," + std::string(manifest_checksum_key);
  text += digest_of(text) + "\"}";
  if (text.size() > manifest_size_max) {
    return make_error(
        ErrorCode::Exhausted,
        fmt::format("checkpoint: its manifest would have {} bytes, allowed 64 MiB", text.size()));
  }
  return text;
}

}  // namespace artesian::zero3
