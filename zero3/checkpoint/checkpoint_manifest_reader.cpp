// Reads a manifest: checksum first, then JSON within bounds, then its meaning.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_set>

#include "base/safetensors_header.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {
namespace {

using Tree = nlohmann::json;

constexpr std::size_t digest_size = 32;
constexpr int depth_max = 16;
// Limit for all counts, so that sums cannot overflow.
constexpr std::uint64_t count_max = std::uint64_t{1} << 62;

Error corrupt(std::string message, ErrorCode code = ErrorCode::Corrupt) {
  return make_error(code, "manifest: " + std::move(message));
}

/// Checks the digest at the end, which covers all text before it.
Result<void> check_closing(std::string_view text) {
  const std::size_t closing = manifest_checksum_key.size() + digest_size + 2;
  if (text.size() > manifest_size_max) {
    return corrupt(fmt::format("got {} bytes, allowed 64 MiB", text.size()));
  }
  if (text.size() < closing || !text.ends_with("\"}")) return corrupt("it is cut off");
  const std::string_view before = text.substr(0, text.size() - digest_size - 2);
  if (!before.ends_with(manifest_checksum_key)) return corrupt("it does not end with its checksum");
  if (digest_of(before) != text.substr(before.size(), digest_size)) {
    return corrupt("its checksum does not match its bytes");
  }
  return {};
}

/// Parses the text, within depth_max and without duplicate keys.
Result<Tree> parse(std::string_view text) {
  std::string fault;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Tree::parse_event_t event, Tree& value) {
    if (depth > depth_max) {
      fault = "it is nested too deeply";
      return false;
    }
    if (event == Tree::parse_event_t::object_start) keys.emplace_back();
    if (event == Tree::parse_event_t::object_end) keys.pop_back();
    if (event == Tree::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fault = "key " + shown_name(key) + " comes twice";
    }
    return true;
  };
  Tree tree = Tree::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (!fault.empty()) return corrupt(fault);
  if (!tree.is_object()) return corrupt("it is not a JSON object");
  return tree;
}

/// Reads fields of objects, and records the first wrong one.
class Fields {
 public:
  bool good() const noexcept { return fault_.empty(); }
  const std::string& fault() const noexcept { return fault_; }
  void fail(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
  }

  const Tree& get(const Tree& object, const char* key) {
    static const Tree nothing;
    if (!object.is_object()) {
      fail(std::string("the object around ") + key + " is none");
      return nothing;
    }
    const auto found = object.find(key);
    if (found != object.end()) return *found;
    fail(std::string(key) + " is missing");
    return nothing;
  }
  std::uint64_t whole(const Tree& value, const char* key, std::uint64_t most = count_max) {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= most) {
      return value.get<std::uint64_t>();
    }
    fail(fmt::format("{}: got something that is no whole number up to {}", key, most));
    return 0;
  }
  std::uint64_t number(const Tree& object, const char* key, std::uint64_t most = count_max) {
    return whole(get(object, key), key, most);
  }
  double real(const Tree& value, const char* key) {
    if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
    fail(std::string(key) + ": got something that is no finite number");
    return 0.0;
  }
  std::string text(const Tree& object, const char* key) { return element(get(object, key), key); }
  std::uint64_t id(const Tree& object, const char* key) {
    const auto number = parse_hex(text(object, key));
    if (!number) fail(std::string(key) + ": got something that is no 16 hex digits");
    return number.value_or(0);
  }
  std::string digest(const Tree& object, const char* key) {
    std::string value = text(object, key);
    const bool hex = std::all_of(value.begin(), value.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    });
    if (!hex || value.size() != digest_size) fail(std::string(key) + ": got no 32 hex digits");
    return value;
  }
  const Tree& list(const Tree& object, const char* key) {
    static const Tree none = Tree::array();
    const Tree& value = get(object, key);
    if (value.is_array()) return value;
    fail(std::string(key) + ": got something that is no list");
    return none;
  }
  const Tree& map(const Tree& object, const char* key) {
    static const Tree none = Tree::object();
    const Tree& value = get(object, key);
    if (value.is_object()) return value;
    fail(std::string(key) + ": got something that is no object");
    return none;
  }
  std::string element(const Tree& value, const char* key) {
    if (value.is_string()) return value.get<std::string>();
    fail(std::string(key) + ": got something that is no text");
    return {};
  }
  std::vector<std::uint64_t> numbers(const Tree& object, const char* key) {
    std::vector<std::uint64_t> all;
    for (const Tree& each : list(object, key)) all.push_back(whole(each, key));
    return all;
  }
  /// A shape whose product, in bits of any dtype, is at most count_max.
  std::vector<std::uint64_t> shape(const Tree& object) {
    std::vector<std::uint64_t> all = numbers(object, "shape");
    std::uint64_t product = 1;
    bool overflow = false;
    for (const std::uint64_t extent : all) {
      overflow = overflow || __builtin_mul_overflow(product, extent, &product);
    }
    if (overflow || product > count_max / 64) fail("shape: its product is too large");
    return good() ? all : std::vector<std::uint64_t>{};
  }
  const SafetensorsType* type(const Tree& object) {
    const std::string name = text(object, "dtype");
    const SafetensorsType* found = find_safetensors_type(name);
    if (found == nullptr) fail("dtype: got " + shown_name(name) + ", which is none");
    return found == nullptr ? find_safetensors_type("U8") : found;
  }

 private:
  std::string fault_;
};

std::string bytes_of_hex(Fields& fields, const std::string& hex) {
  std::string bytes;
  const auto digit = [&](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    fields.fail("random: got something that is no hex digits");
    return 0;
  };
  if (hex.size() % 2 != 0) fields.fail("random: got half a byte");
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
    bytes += static_cast<char>(digit(hex[at]) * 16 + digit(hex[at + 1]));
  }
  return bytes;
}

TrainingState read_state(Fields& fields, const Tree& root) {
  const Tree& json = fields.map(root, "state");
  TrainingState state;
  state.step = fields.number(json, "step");
  state.updates = fields.number(json, "updates", state.step);
  state.skipped_in_a_row = fields.number(json, "skipped_in_a_row", state.step);
  const Tree& scaler = fields.map(json, "loss_scaler");
  state.scaler.scale = fields.real(fields.get(scaler, "scale"), "scale");
  state.scaler.hysteresis_left =
      static_cast<std::uint32_t>(fields.number(scaler, "hysteresis_left", ~std::uint32_t{0}));
  state.scaler.iteration = fields.number(scaler, "iteration");
  const Tree& last = fields.get(scaler, "overflow_last");
  const std::int64_t overflow = last.is_number_integer() ? last.get<std::int64_t>() : -2;
  if (overflow < -1 || overflow >= static_cast<std::int64_t>(state.scaler.iteration)) {
    if (overflow != -1) fields.fail("overflow_last: got no iteration that has been");
  }
  state.scaler.overflow_last = overflow;
  for (const auto& [name, hex] : fields.map(json, "random").items()) {
    state.random[name] = bytes_of_hex(fields, fields.element(hex, "random"));
  }
  if (json.contains("parameter_steps")) {
    state.parameter_steps = fields.numbers(json, "parameter_steps");
  }
  return state;
}

void read_parameters(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  std::unordered_set<std::string> names;
  for (const Tree& json : fields.list(root, "parameters")) {
    SavedParameter parameter{.name = fields.text(json, "name"), .shape = fields.shape(json)};
    if (json.is_object() && json.contains("trainable")) {
      const Tree& trainable = fields.get(json, "trainable");
      if (!trainable.is_boolean()) fields.fail("trainable: got neither true nor false");
      parameter.trainable = trainable.is_boolean() && trainable.get<bool>();
    }
    if (!names.insert(parameter.name).second) {
      fields.fail("parameter " + shown_name(parameter.name) + " comes twice");
    }
    manifest.parameters.push_back(std::move(parameter));
  }
  const std::size_t steps = manifest.state.parameter_steps.size();
  if (steps != 0 && steps != manifest.parameters.size()) {
    fields.fail(fmt::format("parameter_steps: got {} for {} parameters", steps,
                            manifest.parameters.size()));
  }
}

void read_groups(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  const std::size_t count = manifest.parameters.size();
  std::vector<bool> in_group(count, false);
  for (const Tree& json : fields.list(root, "groups")) {
    SavedGroup group{.optimizer = fields.text(json, "optimizer")};
    const Tree& betas = fields.list(json, "betas");
    if (betas.size() != 2) fields.fail(fmt::format("betas: got {}", betas.size()));
    if (!fields.good()) return;
    group.beta1 = fields.real(betas[0], "betas");
    group.beta2 = fields.real(betas[1], "betas");
    group.eps = fields.real(fields.get(json, "eps"), "eps");
    group.weight_decay = fields.real(fields.get(json, "weight_decay"), "weight_decay");
    group.lr = fields.real(fields.get(json, "lr"), "lr");
    group.step = fields.number(json, "step");
    for (const std::uint64_t parameter : fields.numbers(json, "parameters")) {
      if (parameter >= count || in_group[parameter]) {
        return fields.fail(
            fmt::format("groups: parameter {} is none, or in two of them", parameter));
      }
      in_group[parameter] = true;
      group.parameters.push_back(static_cast<std::uint32_t>(parameter));
    }
    manifest.groups.push_back(std::move(group));
  }
}

void read_files(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  std::set<std::string> names;
  for (const Tree& json : fields.list(root, "files")) {
    SavedDataFile file{.name = fields.text(json, "name")};
    file.rank = static_cast<std::uint32_t>(fields.number(json, "rank", ~std::uint32_t{0}));
    file.node = fields.text(json, "node");
    file.bytes = fields.number(json, "bytes");
    file.head_bytes = fields.number(json, "head_bytes", file.bytes);
    file.head_digest = fields.digest(json, "head_digest");
    file.sums_digest = fields.digest(json, "sums_digest");
    const Tree& seed = fields.map(json, "sums_of");
    file.seed.checkpoint = fields.id(seed, "id");
    file.seed.step = fields.number(seed, "step");
    file.seed.rank = static_cast<std::uint32_t>(fields.number(seed, "rank", ~std::uint32_t{0}));
    if (!is_data_file(file.name)) fields.fail("files: " + shown_name(file.name) + " is no name");
    if (!names.insert(file.name).second) fields.fail("files: " + file.name + " comes twice");
    const bool aligned = file.head_bytes % 4096 == 0 && file.bytes % 4096 == 0;
    if (!aligned || file.head_bytes > safetensors_prefix_size + safetensors_header_size_max) {
      fields.fail("files: " + shown_name(file.name) + ": its lengths cannot be");
    }
    manifest.files.push_back(std::move(file));
  }
  for (const Tree& json : fields.list(root, "side_files")) {
    SavedSideFile file{.name = fields.text(json, "name"),
                       .bytes = fields.number(json, "bytes", side_file_bytes_max),
                       .digest = fields.digest(json, "digest")};
    if (!is_side_file(file.name)) {
      fields.fail("side_files: " + shown_name(file.name) + " is no name");
    }
    if (!names.insert(file.name).second) fields.fail("side_files: " + file.name + " comes twice");
    manifest.side_files.push_back(std::move(file));
  }
}

/// True if [offset, offset + bytes) lies in the data of a file.
bool lies_in(const CheckpointManifest& manifest, std::uint32_t file, std::uint64_t offset,
             std::uint64_t bytes) noexcept {
  if (file >= manifest.files.size()) return false;
  const SavedDataFile& at = manifest.files[file];
  return offset >= at.head_bytes && offset <= at.bytes && bytes <= at.bytes - offset;
}

void read_part(Fields& fields, const Tree& row, SavedPart part, CheckpointManifest& manifest) {
  if (!row.is_array() || row.size() != 5) return fields.fail("parts: a row is not five numbers");
  const std::uint64_t parameter = fields.whole(row[0], "parts");
  part.first = fields.whole(row[1], "parts");
  part.count = fields.whole(row[2], "parts");
  const std::uint64_t file = fields.whole(row[3], "parts");
  part.offset = fields.whole(row[4], "parts");
  if (!fields.good()) return;
  const std::string who = std::string("arrays: ") + std::string(format_of(part.array).name);
  if (parameter >= manifest.parameters.size() || file >= manifest.files.size()) {
    return fields.fail(who + ": a part is of no parameter, or of no file");
  }
  part.parameter = static_cast<std::uint32_t>(parameter);
  part.file = static_cast<std::uint32_t>(file);
  const SavedParameter& of = manifest.parameters[part.parameter];
  const std::uint64_t numel = of.numel();
  const bool inside = part.first <= numel && part.count <= numel - part.first;
  if (!inside || part.offset % (part.type->bits / 8) != 0 ||
      !lies_in(manifest, part.file, part.offset, part.bytes())) {
    return fields.fail(who + ": a part of " + shown_name(of.name) +
                       " lies outside of it, or of its file");
  }
  manifest.parts.push_back(part);
}

Result<void> read_arrays(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  for (const Tree& json : fields.list(root, "arrays")) {
    const std::string dtype = fields.text(json, "dtype");
    const std::string name = fields.text(json, "array");
    const std::string role = fields.text(json, "role");
    const std::string encoding = fields.text(json, "encoding");
    if (!fields.good()) return {};
    auto array = find_saved_array(name, role, encoding, dtype);
    if (!array.has_value()) return corrupt(array.error().message, array.error().code);
    const SavedPart part{.array = *array, .type = find_safetensors_type(dtype)};
    for (const Tree& row : fields.list(json, "parts")) read_part(fields, row, part, manifest);
    if (!fields.good()) return {};
  }
  return {};
}

void read_buffers(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  std::set<std::string> names;
  for (const Tree& json : fields.list(root, "buffers")) {
    SavedBufferPlace place;
    place.buffer = {fields.text(json, "name"), fields.type(json), fields.shape(json)};
    place.file = static_cast<std::uint32_t>(fields.number(json, "file", ~std::uint32_t{0}));
    place.offset = fields.number(json, "offset");
    if (!fields.good()) return;
    std::uint64_t bits = place.buffer.type->bits;
    for (const std::uint64_t extent : place.buffer.shape) bits *= extent;
    place.bytes = bits / 8;
    const std::string who = "buffer " + shown_name(place.buffer.name);
    if (bits % 8 != 0 || !lies_in(manifest, place.file, place.offset, place.bytes)) {
      return fields.fail(who + ": lies outside of its file");
    }
    if (!names.insert(place.buffer.name).second) return fields.fail(who + " comes twice");
    manifest.buffers.push_back(std::move(place));
  }
}

/// Checks that no byte of a file and no element of an array belongs to two parts.
void check_overlaps(Fields& fields, const CheckpointManifest& manifest) {
  using Range = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
  std::vector<Range> bytes;
  std::vector<Range> elements;
  constexpr std::uint64_t arrays = 16;
  for (const SavedPart& part : manifest.parts) {
    bytes.emplace_back(part.file, part.offset, part.bytes());
    const auto array = static_cast<std::uint64_t>(part.array);
    elements.emplace_back(part.parameter * arrays + array, part.first, part.count);
  }
  for (const SavedBufferPlace& place : manifest.buffers) {
    bytes.emplace_back(place.file, place.offset, place.bytes);
  }
  const auto overlap = [](std::vector<Range>& ranges) {
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t index = 1; index < ranges.size(); ++index) {
      const auto& [of, first, count] = ranges[index - 1];
      if (std::get<0>(ranges[index]) == of && std::get<1>(ranges[index]) < first + count) {
        return true;
      }
    }
    return false;
  };
  if (overlap(bytes)) fields.fail("arrays: two parts share bytes of a file");
  if (overlap(elements)) fields.fail("arrays: two parts share elements of a parameter");
}

void read_trainer(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  if (!root.contains("trainer")) return;
  const Tree& json = fields.map(root, "trainer");
  SavedTrainer trainer;
  trainer.next_sample = fields.number(json, "next_sample");
  trainer.seed = fields.number(json, "seed", ~std::uint64_t{0});
  trainer.order = fields.text(json, "order");
  trainer.sequence_length = fields.number(json, "sequence_length");
  trainer.tokenizer_digest = fields.text(json, "tokenizer_digest");
  trainer.log_line = fields.text(json, "log_line");
  for (const Tree& source : fields.list(json, "sources")) {
    trainer.sources.push_back({fields.text(source, "name"), fields.number(source, "tokens"),
                               fields.text(source, "digest")});
  }
  manifest.trainer = std::move(trainer);
}

void read_rest(Fields& fields, const Tree& root, CheckpointManifest& manifest) {
  manifest.link = {.id = fields.id(root, "id"),
                   .parent = root.contains("parent") ? fields.id(root, "parent") : 0,
                   .lineage = fields.id(root, "lineage"),
                   .serial = fields.number(root, "serial")};
  if (manifest.link.id == 0) fields.fail("id: got 0");
  manifest.run_id = fields.id(root, "run_id");
  manifest.created = fields.text(root, "created");
  manifest.config = fields.text(root, "config");
  for (const auto& [key, value] : fields.map(root, "machine").items()) {
    manifest.machine[key] = fields.element(value, "machine");
  }
  for (const auto& [alias, name] : fields.map(root, "aliases").items()) {
    manifest.aliases.emplace_back(alias, fields.element(name, "aliases"));
  }
  for (const Tree& name : fields.list(root, "excluded")) {
    manifest.excluded.push_back(fields.element(name, "excluded"));
  }
}

}  // namespace

Result<CheckpointManifest> read_manifest(std::string_view text) {
  ARTESIAN_TRY_VOID(check_closing(text));
  ARTESIAN_TRY(root, parse(text));
  Fields fields;
  const std::uint64_t version = fields.number(root, "version");
  if (fields.good() && version != checkpoint_version) {
    return corrupt(fmt::format("format version {}, known is 1; a newer program reads it", version),
                   ErrorCode::Unsupported);
  }
  CheckpointManifest manifest;
  read_rest(fields, root, manifest);
  manifest.state = read_state(fields, root);
  read_parameters(fields, root, manifest);
  read_groups(fields, root, manifest);
  read_files(fields, root, manifest);
  read_trainer(fields, root, manifest);
  if (fields.good()) read_buffers(fields, root, manifest);
  if (fields.good()) ARTESIAN_TRY_VOID(read_arrays(fields, root, manifest));
  if (fields.good()) check_overlaps(fields, manifest);
  if (!fields.good()) return corrupt(fields.fault());
  return manifest;
}

}  // namespace artesian::zero3
