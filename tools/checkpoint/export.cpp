#include "tools/checkpoint/export.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "models/checkpoint_writer.h"
#include "models/model_config.h"
#include "tools/checkpoint/place.h"
#include "tools/shell/flag_reader.h"
#include "tools/shell/process_setup.h"
#include "tools/shell/terminal_line.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t piece = 256 * 1024;  // elements in memory at a time

/// config.json and the tokenizer's files, as saved by the run.
Result<std::vector<models::ModelFile>> model_files(const zero3::CheckpointReader& reader) {
  const std::string folder = std::string(zero3::model_folder_name) + "/";
  std::vector<models::ModelFile> files;
  for (const zero3::SavedSideFile& file : reader.manifest().side_files) {
    if (!file.name.starts_with(folder)) continue;
    ARTESIAN_TRY(text, reader.read_side_file(file.name));
    files.push_back({file.name.substr(folder.size()), std::move(text)});
  }
  return files;
}

/// Gives tensors their Hugging Face names, if the model is a known one.
Result<std::vector<models::TensorDeclaration>> declare(
    const zero3::CheckpointReader& reader, const std::vector<models::ModelFile>& files) {
  std::optional<models::ModelConfig> config;
  for (const models::ModelFile& file : files) {
    if (file.name != "config.json") continue;
    auto parsed = models::parse_model_config(file.text, reader.path() + "/model/config.json");
    if (parsed.has_value()) config.emplace(std::move(parsed).value());
  }
  std::vector<models::TensorDeclaration> tensors;
  const auto& parameters = reader.manifest().parameters;
  for (std::uint32_t index = 0; index < parameters.size(); ++index) {
    const zero3::SavedParameter& parameter = parameters[index];
    if (parameter.numel() != 0 && !reader.has_weights(index)) {
      return make_error(ErrorCode::Invalid, "export: " + reader.path() +
                                                " was saved without the frozen parameter \"" +
                                                parameter.name + "\"; export one that has it");
    }
    tensors.push_back(
        {config.has_value()
             ? models::saved_name(*config, models::parameter_name(*config, parameter.name))
             : parameter.name,
         {parameter.shape.begin(), parameter.shape.end()}});
  }
  return tensors;
}

Result<void> copy(const zero3::CheckpointReader& reader, models::CheckpointWriter& writer) {
  const auto& parameters = reader.manifest().parameters;
  std::uint64_t total = 0;
  for (const zero3::SavedParameter& parameter : parameters) total += parameter.numel();
  PercentLine line("exporting");
  std::uint64_t done = 0;
  std::vector<float> master(static_cast<std::size_t>(std::min(piece, total)));
  for (std::uint32_t index = 0; index < parameters.size(); ++index) {
    const std::uint64_t numel = parameters[index].numel();
    for (std::uint64_t first = 0; first < numel; first += piece) {
      if (stop_requested() != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
      const auto count = static_cast<std::size_t>(std::min(piece, numel - first));
      const auto values = std::span(master).first(count);
      ARTESIAN_TRY_VOID(reader.read(index, first, values, {}, {}));
      ARTESIAN_TRY_VOID(writer.append_rounded(index, values));
      line.show(done += count, total);
    }
  }
  return {};
}

}  // namespace

void add_export_flags(CLI::App& command) {
  command.add_option("checkpoint", "A checkpoint, or a folder of them: the one in latest")
      ->type_name("CHECKPOINT");
  command.add_option("target", "The Hugging Face directory to make")->type_name("OUT");
  command.add_option("--dtype", "fp32 (default: master weights as they are), bf16 or fp16")
      ->type_name("WORD");
  command.add_option("--shard-size", "At most so many bytes a file (default: 5GB)")
      ->type_name("SIZE");
}

Result<ExportOptions> read_export_flags(const CLI::App& command) {
  FlagReader reader(command);
  ExportOptions options;
  reader.expect_single_values();
  if (!reader.given("checkpoint")) {
    reader.refuse("export", "no checkpoint", "a checkpoint and the directory to make; name them");
  } else if (!reader.given("target")) {
    reader.refuse("export", "no directory to make", "one that does not exist; name it");
  }
  options.path = reader.path("checkpoint");
  options.target = reader.folder("target");
  const std::string dtype = reader.text("--dtype");
  if (dtype == "bf16") {
    options.dtype = DType::BFloat16;
  } else if (dtype == "fp16") {
    options.dtype = DType::Float16;
  } else if (reader.given("--dtype") && dtype != "fp32") {
    reader.refuse_text("--dtype", "fp32, bf16 or fp16; write one of them");
  }
  options.shard_size_max = reader.size("--shard-size").value_or(options.shard_size_max);
  if (reader.has_faults()) return reader.error();
  return options;
}

Result<void> export_checkpoint(const ExportOptions& options) {
  const CheckpointPath path = checkpoint_path(options.path);
  ARTESIAN_TRY(reader, zero3::CheckpointReader::open(system_files(), path.directory, path.tag));
  ARTESIAN_TRY(files, model_files(*reader));
  ARTESIAN_TRY(tensors, declare(*reader, files));
  ARTESIAN_TRY(writer, models::CheckpointWriter::create({.target = options.target,
                                                         .files = std::move(files),
                                                         .dtype = options.dtype,
                                                         .shard_size_max = options.shard_size_max},
                                                        std::move(tensors)));
  ARTESIAN_TRY_VOID(copy(*reader, writer));
  return writer.commit();
}

}  // namespace artesian::tools
