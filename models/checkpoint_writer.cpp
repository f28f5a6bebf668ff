#include "models/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/units.h"

namespace artesian::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t data_alignment = 64;  // of the first data byte, by spaces after the header
constexpr std::uint64_t small_file_size_max = 256u << 20;
constexpr const char* config_name = "config.json";
constexpr std::array<const char*, 9> tokenizer_files{
    "tokenizer.json",    "tokenizer_config.json",   "vocab.json",
    "merges.txt",        "special_tokens_map.json", "generation_config.json",
    "added_tokens.json", "tokenizer.model",         "chat_template.jinja"};

Error save_error(ErrorCode code, const std::string& target, std::string text, int number = 0) {
  return make_error(code, "save: " + target + ": " + std::move(text), number);
}

const char* safetensors_name(DType dtype) {
  return dtype == DType::Float32 ? "F32" : dtype == DType::Float16 ? "F16" : "BF16";
}

const char* torch_name(DType dtype) {
  return dtype == DType::Float32 ? "float32" : dtype == DType::Float16 ? "float16" : "bfloat16";
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

Result<std::string> read_small_file(const std::string& path) {
  ARTESIAN_TRY(file, InputFile::open(path));
  if (file.size() > small_file_size_max) {
    return make_error(ErrorCode::Invalid, "larger than 256 MiB: " + path);
  }
  std::string text(file.size(), '\0');
  ARTESIAN_TRY_VOID(file.read_at(text.data(), text.size(), 0));
  return text;
}

Result<void> write_small_file(const std::string& path, const std::string& text) {
  ARTESIAN_TRY(file, OutputFile::create(path));
  ARTESIAN_TRY_VOID(file.append(text.data(), text.size()));
  return file.finish();
}

/// config.json with the dtype that the weights now have, under the key that the file uses.
std::string with_dtype(const std::string& text, DType dtype) {
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return text;
  const bool modern = config.contains("dtype");
  if (modern) config["dtype"] = torch_name(dtype);
  if (!modern || config.contains("torch_dtype")) config["torch_dtype"] = torch_name(dtype);
  return config.dump(2) + "\n";
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text.data();
}

}  // namespace

Result<std::vector<ModelFile>> read_model_files(const std::string& directory) {
  ARTESIAN_TRY(config, read_small_file(directory + "/" + config_name));
  std::vector<ModelFile> files;
  files.push_back({config_name, std::move(config)});
  for (const char* name : tokenizer_files) {
    const std::string path = directory + "/" + name;
    if (::access(path.c_str(), F_OK) != 0) continue;
    ARTESIAN_TRY(text, read_small_file(path));
    files.push_back({name, std::move(text)});
  }
  return files;
}

Result<void> check_checkpoint_target(const std::string& target, std::uint64_t bytes) {
  struct stat status {};
  if (::lstat(target.c_str(), &status) == 0) {
    return save_error(ErrorCode::Invalid, target, "exists already; give a name that does not");
  }
  const std::string parent = parent_of(target);
  if (::stat(parent.c_str(), &status) != 0) {
    return save_error(ErrorCode::Invalid, target, "the folder above it: " + parent, errno);
  }
  if (!S_ISDIR(status.st_mode)) {
    return save_error(ErrorCode::Invalid, target, "the folder above it is none: " + parent);
  }
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    return save_error(ErrorCode::Invalid, target, "cannot write in " + parent, errno);
  }
  struct statvfs space {};
  if (::statvfs(parent.c_str(), &space) != 0) {
    return save_error(ErrorCode::Io, target, "cannot ask for free space", errno);
  }
  const std::uint64_t free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free_bytes < bytes) {
    return save_error(ErrorCode::NoSpace, target,
                      "needs " + format_size(bytes) + ", free are " + format_size(free_bytes));
  }
  return {};
}

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options,
                                   std::vector<TensorDeclaration> tensors)
    : options_(std::move(options)), tensors_(std::move(tensors)) {}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : options_(std::move(other.options_)),
      tensors_(std::move(other.tensors_)),
      shards_(std::move(other.shards_)),
      folder_(std::exchange(other.folder_, {})),
      shard_next_(other.shard_next_),
      tensor_(other.tensor_),
      tensor_written_(other.tensor_written_),
      file_(std::move(other.file_)) {}

CheckpointWriter::~CheckpointWriter() {
  file_.reset();
  std::error_code ignored;  // the cause was returned by the call that failed
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::uint64_t CheckpointWriter::tensor_size(std::size_t tensor) const noexcept {
  std::uint64_t size = dtype_size(options_.dtype);
  for (const std::int64_t extent : tensors_[tensor].shape) {
    size *= static_cast<std::uint64_t>(extent);
  }
  return size;
}

Result<CheckpointWriter> CheckpointWriter::create(CheckpointWriterOptions options,
                                                  std::vector<TensorDeclaration> tensors) {
  while (options.target.size() > 1 && options.target.ends_with('/')) options.target.pop_back();
  std::set<std::string_view> names;
  for (const TensorDeclaration& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return save_error(ErrorCode::Invalid, options.target, "tensor twice: " + tensor.name);
    }
  }
  CheckpointWriter writer(std::move(options), std::move(tensors));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < writer.tensors_.size(); ++i) bytes += writer.tensor_size(i);
  ARTESIAN_TRY_VOID(check_checkpoint_target(writer.options_.target, bytes));
  const std::string folder = writer.options_.target + ".partial-" + std::to_string(::getpid());
  if (::mkdir(folder.c_str(), 0777) != 0) {
    return save_error(ErrorCode::Io, writer.options_.target, "cannot make " + folder, errno);
  }
  writer.folder_ = folder;
  writer.plan_shards();
  ARTESIAN_TRY_VOID(writer.write_small_files());
  ARTESIAN_TRY_VOID(writer.skip_complete_tensors());
  return writer;
}

void CheckpointWriter::plan_shards() {
  shards_.push_back({.file_name = {}, .tensor_first = 0, .tensor_end = 0, .size = 0});
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const std::uint64_t size = tensor_size(tensor);
    if (shards_.back().size != 0 && shards_.back().size + size > options_.shard_size_max) {
      shards_.push_back({.file_name = {}, .tensor_first = tensor, .tensor_end = tensor, .size = 0});
    }
    shards_.back().size += size;
    shards_.back().tensor_end = tensor + 1;
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].file_name = shard_name(i, shards_.size());
  }
}

Result<void> CheckpointWriter::write_small_files() {
  for (const ModelFile& file : options_.files) {
    ARTESIAN_TRY_VOID(write_small_file(
        folder_ + "/" + file.name,
        file.name == config_name ? with_dtype(file.text, options_.dtype) : file.text));
  }
  return {};
}

Result<void> CheckpointWriter::open_next_shard() {
  const Shard& shard = shards_[shard_next_++];
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t offset = 0;
  for (std::size_t tensor = shard.tensor_first; tensor < shard.tensor_end; ++tensor) {
    const std::uint64_t end = offset + tensor_size(tensor);
    header[tensors_[tensor].name] = {{"dtype", safetensors_name(options_.dtype)},
                                     {"shape", tensors_[tensor].shape},
                                     {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append(round_up(8 + text.size(), data_alignment) - 8 - text.size(), ' ');
  const std::uint64_t length = text.size();
  ARTESIAN_TRY(file, OutputFile::create(folder_ + "/" + shard.file_name));
  ARTESIAN_TRY_VOID(file.append(&length, sizeof length));
  ARTESIAN_TRY_VOID(file.append(text.data(), text.size()));
  file_.emplace(std::move(file));
  return {};
}

/// Moves to the first tensor that lacks bytes; opens and finishes shards on the way.
Result<void> CheckpointWriter::skip_complete_tensors() {
  for (;;) {
    const bool shard_open = file_.has_value();
    if (shard_open && tensor_ == shards_[shard_next_ - 1].tensor_end) {
      ARTESIAN_TRY_VOID(file_->finish());
      file_.reset();
      continue;
    }
    if (!shard_open) {
      if (shard_next_ == shards_.size()) return {};
      ARTESIAN_TRY_VOID(open_next_shard());
      continue;
    }
    if (tensor_written_ < tensor_size(tensor_)) return {};
    ++tensor_;
    tensor_written_ = 0;
  }
}

Result<void> CheckpointWriter::append(std::size_t tensor, std::span<const std::byte> bytes) {
  ARTESIAN_CHECK(bytes.empty() || (tensor == tensor_ && tensor < tensors_.size()), tensor, tensor_);
  if (bytes.empty()) return {};
  ARTESIAN_CHECK(bytes.size() <= tensor_size(tensor) - tensor_written_, bytes.size());
  ARTESIAN_TRY_VOID(file_->append(bytes.data(), bytes.size()));
  tensor_written_ += bytes.size();
  return skip_complete_tensors();
}

Result<void> CheckpointWriter::write_index() {
  Json map = Json::object();
  std::uint64_t size = 0;
  for (const Shard& shard : shards_) {
    size += shard.size;
    for (std::size_t i = shard.tensor_first; i < shard.tensor_end; ++i) {
      map[tensors_[i].name] = shard.file_name;
    }
  }
  const Json index = {{"metadata", {{"total_size", size}}}, {"weight_map", std::move(map)}};
  return write_small_file(folder_ + "/model.safetensors.index.json", index.dump(2) + "\n");
}

Result<void> CheckpointWriter::commit() {
  ARTESIAN_CHECK(tensor_ == tensors_.size() && !file_.has_value(), tensor_, tensors_.size());
  if (shards_.size() > 1) ARTESIAN_TRY_VOID(write_index());
  ARTESIAN_TRY_VOID(sync_folder(folder_));
  const char* target = options_.target.c_str();
  if (::renameat2(AT_FDCWD, folder_.c_str(), AT_FDCWD, target, RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) {
      return save_error(ErrorCode::Invalid, options_.target, "came into being meanwhile");
    }
    // A file system without the flag: an empty folder may be replaced, a filled one is refused.
    if (errno != EINVAL || ::rename(folder_.c_str(), target) != 0) {
      return save_error(ErrorCode::Io, options_.target, "cannot rename " + folder_, errno);
    }
  }
  folder_.clear();
  return sync_folder(parent_of(options_.target));
}

}  // namespace artesian::models
