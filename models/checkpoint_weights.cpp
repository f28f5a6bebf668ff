#include "models/checkpoint_weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

namespace artesian::models {
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::uint64_t index_size_max = 256u << 20;
constexpr std::size_t names_shown_max = 3;
constexpr std::uint64_t piece_elements = 256 << 10;  // elements compared at a time

/// Prefixes and suffixes of weight files that are not read: transformers' files for PyTorch,
/// TensorFlow and Flax, Llama's original format, llama.cpp's; and any safetensors file.
struct WeightName {
  std::string_view begin;
  std::string_view end;
};
constexpr std::array<WeightName, 8> other_weights{{{"", ".safetensors"},
                                                   {"", ".safetensors.index.json"},
                                                   {"pytorch_model", ".bin"},
                                                   {"pytorch_model", ".bin.index.json"},
                                                   {"tf_model", ".h5"},
                                                   {"flax_model", ".msgpack"},
                                                   {"consolidated", ".pth"},
                                                   {"", ".gguf"}}};

using WeightMap = std::vector<std::pair<std::string, std::string>>;  // tensor, file

Error invalid(const std::string& path, const std::string& text) {
  return make_error(ErrorCode::Invalid, "model weights: " + path + ": " + text);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// True for a file name that cannot lead out of the directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

Result<WeightMap> read_index(const std::string& path) {
  ARTESIAN_TRY(file, InputFile::open(path));
  if (file.size() > index_size_max) return invalid(path, "larger than 256 MiB");
  std::string text(file.size(), '\0');
  ARTESIAN_TRY_VOID(file.read_at(text.data(), text.size(), 0));
  const auto index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) return invalid(path, "not a JSON object");
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return invalid(path, "weight_map: missing, or no object");
  }
  WeightMap entries;
  for (const auto& [tensor, file_name] : map->items()) {
    if (!file_name.is_string() || !is_plain_name(file_name.get<std::string>())) {
      const std::string got = file_name.dump(-1, ' ', true);
      return invalid(path, "weight_map: " + shown_name(tensor) + ": got " + got.substr(0, 100) +
                               ", allowed the name of a file in this folder");
    }
    entries.emplace_back(tensor, file_name.get<std::string>());
  }
  return entries;
}

Result<std::vector<SafetensorsFile>> open_files(const std::string& directory) {
  std::vector<SafetensorsFile> files;
  if (exists(directory + "/" + single_name) || !exists(directory + "/" + index_name)) {
    ARTESIAN_TRY(file, SafetensorsFile::open(directory + "/" + single_name));
    files.push_back(std::move(file));
    return files;
  }
  const std::string index_path = directory + "/" + index_name;
  ARTESIAN_TRY(index, read_index(index_path));
  std::set<std::string> names;
  for (const auto& [tensor, file_name] : index) names.insert(file_name);
  std::unordered_map<std::string, std::set<std::string_view>> held;
  for (const std::string& name : names) {
    ARTESIAN_TRY(file, SafetensorsFile::open(directory + "/" + name));
    files.push_back(std::move(file));
    for (const auto& tensor : files.back().tensors()) held[name].insert(tensor.name);
  }
  for (const auto& [tensor, file_name] : index) {
    if (held[file_name].contains(tensor)) continue;
    return invalid(index_path, "weight_map: " + shown_name(tensor) + ": " + file_name +
                                   " has no tensor of this name");
  }
  return files;
}

std::string shape_text(const auto& shape) {
  std::string text = "[";
  for (const auto extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

/// Formats "a, b, c and 9 more", one line per kind of fault.
class FaultList {
 public:
  explicit FaultList(const char* kind) : kind_(kind) {}
  void add(const std::string& text) {
    if (++count_ > names_shown_max) return;
    if (!list_.empty()) list_ += ", ";
    list_ += text;
  }
  void append_line(std::string& lines, const std::string& directory) const {
    if (count_ == 0) return;
    if (!lines.empty()) lines += '\n';
    lines += "model weights: " + directory + ": " + kind_ + list_;
    if (count_ > names_shown_max) {
      lines += fmt::format(" and {} more", count_ - names_shown_max);
    }
  }

 private:
  const char* kind_;
  std::size_t count_ = 0;
  std::string list_;
};

bool same_shape(const SafetensorsTensor& tensor, const zero3::ParameterSpec& parameter) {
  return std::equal(tensor.shape.begin(), tensor.shape.end(), parameter.shape.begin(),
                    parameter.shape.end(), [](std::uint64_t left, std::int64_t right) {
                      return left == static_cast<std::uint64_t>(right);
                    });
}

/// Collects faults of pairs of a parameter and its tensor.
struct TensorFaults {
  FaultList reshaped{"of another shape: "};
  FaultList unreadable{"not F32, F16, BF16 or F64: "};
  void look_at(const SafetensorsTensor& tensor, const zero3::ParameterSpec& parameter,
               std::string_view name) {
    if (!same_shape(tensor, parameter)) {
      reshaped.add(std::string(name) + " (got " + shape_text(tensor.shape) + ", allowed " +
                   shape_text(parameter.shape) + ")");
    }
    if (!SafetensorsFile::readable(tensor)) {
      unreadable.add(std::string(name) + " (" + tensor.type->name + ")");
    }
  }
};

}  // namespace

bool has_checkpoint(const std::string& directory) {
  return exists(directory + "/" + single_name) || exists(directory + "/" + index_name);
}

Result<void> check_no_other_weights(const std::string& directory) {
  std::error_code failed;
  std::set<std::string> names;  // sorted, so that messages do not depend on the order of the folder
  std::filesystem::directory_iterator entry(directory, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename();
    const bool weights =
        std::any_of(other_weights.begin(), other_weights.end(), [&](const WeightName& other) {
          return name.size() >= other.begin.size() + other.end.size() &&
                 name.starts_with(other.begin) && name.ends_with(other.end);
        });
    if (weights && !name.starts_with('.')) names.insert(name);
  }
  if (failed) {
    Error error =
        make_error(ErrorCode::Io, "model weights: cannot list the folder", failed.value());
    error.file = directory;
    return error;
  }
  if (names.empty()) return {};
  const std::string& name = *names.begin();
  const bool link = !exists(directory + "/" + name);
  const bool safetensors = name.find(".safetensors") != std::string::npos;
  return invalid(directory, "got " + shown_name(name) +
                                (link ? ", a link that leads nowhere" : "") + ", allowed " +
                                single_name + ", or " + index_name + " and what it names; " +
                                (safetensors ? "complete the folder"
                                             : "load and save the model with transformers, which "
                                               "writes safetensors"));
}

Result<CheckpointWeights> CheckpointWeights::open(const std::string& directory,
                                                  const ModelConfig& config) {
  ARTESIAN_TRY(files, open_files(directory));
  ARTESIAN_TRY(matched, match(files, config, directory));
  CheckpointWeights weights(std::move(files), matched.sources);
  if (matched.second.tensor != nullptr) {
    ARTESIAN_TRY_VOID(weights.check_tied(matched, directory));
  }
  return weights;
}

/// transformers, too, ties only equal matrices, and otherwise trains a separate head, which gives
/// other results; so this is an error.
Result<void> CheckpointWeights::check_tied(const Matched& matched, const std::string& directory) {
  const Source& head = matched.second;
  const Source& embedding = sources_[matched.embedding];
  std::uint64_t numel = 1;
  for (const std::uint64_t extent : head.tensor->shape) numel *= extent;
  std::vector<float> left(std::min(numel, piece_elements));
  std::vector<float> right(left.size());
  for (std::uint64_t first = 0; first < numel; first += left.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(left.size(), numel - first);
    ARTESIAN_TRY_VOID(read(matched.embedding, first, std::span(left).first(count)));
    ARTESIAN_TRY_VOID(files_[head.file].read(*head.tensor, first, std::span(right).first(count)));
    if (std::memcmp(left.data(), right.data(), count * sizeof(float)) == 0) continue;
    return invalid(directory, "tie_word_embeddings: got true, but " +
                                  shown_name(head.tensor->name) + " is not equal to " +
                                  shown_name(embedding.tensor->name) +
                                  ", allowed equal ones; write \"tie_word_embeddings\": false into "
                                  "config.json to train both, or remove the one that is not meant");
  }
  return {};
}

Result<CheckpointWeights::Matched> CheckpointWeights::match(
    const std::vector<SafetensorsFile>& files, const ModelConfig& config,
    const std::string& directory) {
  const auto parameters = model_parameters(config);
  std::unordered_map<std::string_view, std::size_t> wanted;
  for (std::size_t i = 0; i < parameters.size(); ++i) wanted.emplace(parameters[i].name, i);
  Matched matched;
  matched.sources.resize(parameters.size(), Source{0, nullptr});
  const std::size_t embedding = wanted.at(embedding_name(config));
  matched.embedding = static_cast<std::uint32_t>(embedding);
  FaultList missing("missing: "), superfluous("not in this model: "), twice("twice: ");
  TensorFaults faults;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (const SafetensorsTensor& tensor : files[file].tensors()) {
      const std::string_view name = parameter_name(config, tensor.name);
      const bool tied_head = config.tied && name == head_name;
      const auto entry = wanted.find(name);
      if (!tied_head && entry == wanted.end()) {
        if (!is_harmless_tensor(config, name)) superfluous.add(shown_name(tensor.name));
        continue;
      }
      const std::size_t parameter = tied_head ? embedding : entry->second;
      Source& source = tied_head ? matched.second : matched.sources[parameter];
      if (source.tensor != nullptr) twice.add(shown_name(tensor.name));
      source = {file, &tensor};
      faults.look_at(tensor, parameters[parameter], name);
    }
  }
  if (matched.sources[embedding].tensor == nullptr) {  // the head's tensor may be used for both
    matched.sources[embedding] = std::exchange(matched.second, Source{0, nullptr});
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (matched.sources[i].tensor == nullptr) missing.add(parameters[i].name);
  }
  std::string lines;
  for (const FaultList* list :
       {&missing, &superfluous, &twice, &faults.reshaped, &faults.unreadable}) {
    list->append_line(lines, directory);
  }
  if (!lines.empty()) return make_error(ErrorCode::Invalid, std::move(lines));
  return matched;
}

Result<void> CheckpointWeights::read(std::uint32_t parameter, std::uint64_t first,
                                     std::span<float> target) noexcept {
  ARTESIAN_CHECK(parameter < sources_.size(), parameter, sources_.size());
  const Source& source = sources_[parameter];
  return files_[source.file].read(*source.tensor, first, target);
}

}  // namespace artesian::models
