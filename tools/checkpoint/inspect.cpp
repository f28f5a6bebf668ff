#include "tools/checkpoint/inspect.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/durable_folder.h"
#include "base/units.h"
#include "tools/checkpoint/place.h"
#include "tools/shell/flag_reader.h"
#include "tools/shell/print.h"
#include "tools/shell/standard_output.h"
#include "tools/shell/terminal_line.h"
#include "zero3/checkpoint/checkpoint_folder.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::tools {
namespace {

using Json = nlohmann::ordered_json;

/// One checkpoint, as far as it can be read.
struct Inspected {
  std::string tag;
  zero3::CheckpointManifest manifest;
  std::uint64_t bytes = 0;      // bytes of its data files
  std::vector<Error> damage{};  // found by verification
  bool verified = false;
};

struct Content {
  std::string directory;
  std::string latest;
  std::vector<Inspected> whole;                              // ordered by serial number
  std::vector<std::pair<std::string, std::string>> damaged;  // tags with reasons
};

Result<void> read_one(const std::string& directory, const std::string& tag, bool verify,
                      Content& content) {
  auto reader = zero3::CheckpointReader::open(system_files(), directory, tag);
  if (!reader.has_value()) {
    if (reader.error().code == ErrorCode::Invalid) return std::move(reader).error();
    content.damaged.emplace_back(tag, reader.error().to_string());
    return {};
  }
  Inspected& one = content.whole.emplace_back();
  one.tag = tag;
  one.manifest = (*reader)->manifest();
  for (const zero3::SavedDataFile& file : one.manifest.files) one.bytes += file.bytes;
  if (!verify) return {};
  PercentLine line("verifying " + tag);
  const auto progress = [&](std::uint64_t done, std::uint64_t all) { line.show(done, all); };
  ARTESIAN_TRY(damage, (*reader)->verify(progress));
  one.damage = std::move(damage);
  one.verified = true;
  return {};
}

Result<Content> read_content(const InspectOptions& options) {
  const CheckpointPath path = checkpoint_path(options.path);
  ARTESIAN_TRY(folder, open_system_folder(path.directory));
  ARTESIAN_TRY(found, zero3::read_checkpoints(*folder));
  Content content{.directory = path.directory, .latest = found.latest, .whole = {}, .damaged = {}};
  std::sort(found.found.begin(), found.found.end(),
            [](const auto& a, const auto& b) { return a.link.serial < b.link.serial; });
  for (const zero3::FoundCheckpoint& each : found.found) {
    if (!path.tag.empty() && each.tag != path.tag) continue;
    ARTESIAN_TRY_VOID(read_one(path.directory, each.tag, options.verify, content));
  }
  for (const auto& [tag, error] : found.damaged) {
    if (path.tag.empty() || tag == path.tag) content.damaged.emplace_back(tag, error.to_string());
  }
  if (!content.whole.empty() || !content.damaged.empty()) return content;
  return make_error(ErrorCode::Invalid, "inspect: got " + options.path +
                                            ", allowed a folder of checkpoints, or one of them");
}

std::uint64_t elements_of(const zero3::CheckpointManifest& manifest, bool trainable) {
  std::uint64_t elements = 0;
  for (const zero3::SavedParameter& parameter : manifest.parameters) {
    if (parameter.trainable == trainable) elements += parameter.numel();
  }
  return elements;
}

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

std::string details_of(const Inspected& one) {
  const zero3::CheckpointManifest& manifest = one.manifest;
  std::string text;
  const auto row = [&](const char* name, const std::string& value) {
    text += print("    %-14s ", name) + value + "\n";
  };
  const std::uint64_t frozen = elements_of(manifest, false);
  row("parameters", number(manifest.parameters.size()) + " of " +
                        number(elements_of(manifest, true) + frozen) + " elements" +
                        (frozen == 0 ? "" : ", of them frozen " + number(frozen)));
  for (const zero3::SavedGroup& group : manifest.groups) {
    row("group", group.optimizer + ", " + number(group.parameters.size()) + " parameters, " +
                     number(group.step) + " updates, lr " + print("%g", group.lr) +
                     ", weight decay " + print("%g", group.weight_decay));
  }
  if (manifest.state.scaler.scale != 1.0) {
    row("loss scale", print("%g", manifest.state.scaler.scale));
  }
  if (manifest.trainer.has_value()) {
    const zero3::SavedTrainer& trainer = *manifest.trainer;
    row("data", "next sample " + number(trainer.next_sample) + ", " + trainer.order + ", seed " +
                    number(trainer.seed) + ", sequences of " + number(trainer.sequence_length));
    for (const zero3::SavedSource& source : trainer.sources) {
      row("", source.name + ", " + number(source.tokens) + " tokens");
    }
  }
  std::string facts;
  for (const auto& [name, value] : manifest.machine) {
    facts += (facts.empty() ? "" : ", ") + name + " " + value;
  }
  if (!facts.empty()) row("computed with", facts);
  for (const zero3::SavedSideFile& file : manifest.side_files) {
    row("file", file.name + ", " + format_size(file.bytes));
  }
  return text;
}

std::string text_of(const Content& content) {
  std::string text = content.directory + "\n";
  for (const Inspected& one : content.whole) {
    text += "  " + one.tag + "  step " + number(one.manifest.state.step) + ", " +
            number(one.manifest.state.updates) + " updates, " + format_size(one.bytes);
    if (!one.manifest.created.empty()) text += ", " + one.manifest.created;
    if (one.tag == content.latest) text += ", latest";
    if (one.verified) text += one.damage.empty() ? ", verified" : ", DAMAGED";
    text += "\n";
    for (const Error& error : one.damage) text += "    " + error.to_string() + "\n";
    const bool shown = content.whole.size() == 1 || one.tag == content.latest;
    if (shown) text += details_of(one);
  }
  for (const auto& [tag, why] : content.damaged) text += "  " + tag + "  DAMAGED: " + why + "\n";
  return text;
}

Json json_of(const Inspected& one) {
  const zero3::CheckpointManifest& manifest = one.manifest;
  Json json{
      {"tag", one.tag},
      {"step", manifest.state.step},
      {"updates", manifest.state.updates},
      {"bytes", one.bytes},
      {"created", manifest.created},
      {"serial", manifest.link.serial},
      {"id", zero3::hex_of(manifest.link.id)},
      {"parent", manifest.link.parent == 0 ? Json() : Json(zero3::hex_of(manifest.link.parent))},
      {"lineage", zero3::hex_of(manifest.link.lineage)},
      {"parameters", manifest.parameters.size()},
      {"elements",
       {{"trained", elements_of(manifest, true)}, {"frozen", elements_of(manifest, false)}}},
      {"loss_scale", manifest.state.scaler.scale},
      {"machine", manifest.machine}};
  if (manifest.trainer.has_value()) {
    json["next_sample"] = manifest.trainer->next_sample;
    json["seed"] = manifest.trainer->seed;
    json["order"] = manifest.trainer->order;
    json["sequence_length"] = manifest.trainer->sequence_length;
  }
  json["files"] = Json::array();
  for (const auto& file : manifest.files) json["files"].push_back({file.name, file.bytes});
  for (const auto& file : manifest.side_files) json["files"].push_back({file.name, file.bytes});
  if (!one.verified) return json;
  json["damage"] = Json::array();
  for (const Error& error : one.damage) json["damage"].push_back(error.to_string());
  return json;
}

std::string json_text_of(const Content& content) {
  Json json{{"directory", content.directory},
            {"latest", content.latest},
            {"checkpoints", Json::array()},
            {"damaged", Json::object()}};
  for (const Inspected& one : content.whole) json["checkpoints"].push_back(json_of(one));
  for (const auto& [tag, why] : content.damaged) json["damaged"][tag] = why;
  return json.dump() + "\n";
}

}  // namespace

void add_inspect_flags(CLI::App& inspect) {
  inspect.add_option("path", "A folder of checkpoints, or one of them")->type_name("DIR");
  const std::string verify = "Read every block, and say what is damaged";
  inspect.add_flag("--verify", verify)->disable_flag_override();
  inspect.add_option("--json", "Print one JSON object: --json -")->type_name("-");
}

Result<InspectOptions> read_inspect_flags(const CLI::App& inspect) {
  FlagReader reader(inspect);
  InspectOptions options;
  reader.expect_single_values();
  if (!reader.given("path")) {
    reader.refuse("inspect", "no folder", "a folder of checkpoints, or one of them; name it");
  }
  options.path = reader.path("path");
  options.verify = reader.given("--verify");
  options.json = reader.given("--json");
  if (options.json && reader.text("--json") != "-") reader.refuse_text("--json", "-; write it");
  if (reader.has_faults()) return reader.error();
  return options;
}

Result<int> inspect(const InspectOptions& options) {
  ARTESIAN_TRY(content, read_content(options));
  ARTESIAN_TRY_VOID(write_stdout(options.json ? json_text_of(content) : text_of(content)));
  const bool damaged = std::any_of(content.whole.begin(), content.whole.end(),
                                   [](const Inspected& one) { return !one.damage.empty(); });
  return damaged || !content.damaged.empty() ? 1 : 0;
}

}  // namespace artesian::tools
