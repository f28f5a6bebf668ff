#include "models/checkpoint_writer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file_system.h"
#include "base/log.h"
#include "base/safetensors_header.h"
#include "base/system_file.h"
#include "base/units.h"
#include "kernels/cast.h"

namespace artesian::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t data_alignment = 64;  // for the first data byte, by spaces after the header
constexpr std::uint64_t small_file_size_max = 256u << 20;
constexpr std::uint64_t block_size = 16 << 10;    // upper limit: files occupy multiples of this
constexpr std::uint64_t folder_size = 128 << 10;  // the most that the folder itself occupies
constexpr const char* config_name = "config.json";
constexpr std::array<const char*, 9> tokenizer_files{
    "tokenizer.json",    "tokenizer_config.json",   "vocab.json",
    "merges.txt",        "special_tokens_map.json", "generation_config.json",
    "added_tokens.json", "tokenizer.model",         "chat_template.jinja"};

Error save_error(ErrorCode code, const std::string& target, std::string text, int number = 0) {
  return make_error(code, "save: " + target + ": " + std::move(text), number);
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

/// config.json with the dtype of the saved weights, under the key that the file uses.
std::string with_dtype(const std::string& text, DType dtype) {
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return text;
  const bool modern = config.contains("dtype");
  if (modern) config["dtype"] = torch_name(dtype);
  if (!modern || config.contains("torch_dtype")) config["torch_dtype"] = torch_name(dtype);
  return config.dump(2) + "\n";
}

/// Returns the path used while writing, before the final rename.
std::string partial_of(const std::string& target) {
  return fmt::format("{}.partial-{}", target, ::getpid());
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
      unnamed_(other.unnamed_),
      small_(std::move(other.small_)),
      shard_(other.shard_),
      tensor_(other.tensor_),
      tensor_written_(other.tensor_written_) {}

CheckpointWriter::~CheckpointWriter() {
  shards_.clear();
  std::error_code ignored;  // the failed call has returned the cause
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
  for (ModelFile& file : writer.options_.files) {
    if (file.name == config_name) file.text = with_dtype(file.text, writer.options_.dtype);
  }
  writer.plan_shards();
  std::uint64_t bytes = 0;
  for (const Shard& shard : writer.shards_) bytes += shard.size;
  ARTESIAN_TRY_VOID(check_checkpoint_target(writer.options_.target, bytes));
  ARTESIAN_TRY_VOID(writer.reserve());
  return writer;
}

void CheckpointWriter::plan_shards() {
  shards_.push_back({.file_name = {}, .tensor_first = 0, .tensor_end = 0, .size = 0, .file = {}});
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    const std::uint64_t size = tensor_size(tensor);
    if (shards_.back().size != 0 && shards_.back().size + size > options_.shard_size_max) {
      shards_.push_back(
          {.file_name = {}, .tensor_first = tensor, .tensor_end = tensor, .size = 0, .file = {}});
    }
    shards_.back().size += size;
    shards_.back().tensor_end = tensor + 1;
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].file_name = shard_name(i, shards_.size());
  }
  if (shards_.size() > 1) options_.files.push_back(index());
}

/// The header's length and the header, as they begin the file.
std::string CheckpointWriter::header_of(const Shard& shard) const {
  const SafetensorsType* const type = safetensors_type(options_.dtype);
  std::vector<SafetensorsTensor> tensors;
  std::uint64_t offset = 0;
  for (std::size_t tensor = shard.tensor_first; tensor < shard.tensor_end; ++tensor) {
    const std::vector<std::int64_t>& shape = tensors_[tensor].shape;
    const std::uint64_t end = offset + tensor_size(tensor);
    tensors.push_back({.name = tensors_[tensor].name,
                       .type = type,
                       .shape = {shape.begin(), shape.end()},
                       .begin = offset,
                       .end = end});
    offset = end;
  }
  return write_safetensors_header(tensors, data_alignment);
}

ModelFile CheckpointWriter::index() const {
  Json map = Json::object();
  std::uint64_t size = 0;
  for (const Shard& shard : shards_) {
    size += shard.size;
    for (std::size_t i = shard.tensor_first; i < shard.tensor_end; ++i) {
      map[tensors_[i].name] = shard.file_name;
    }
  }
  const Json index = {{"metadata", {{"total_size", size}}}, {"weight_map", std::move(map)}};
  return {"model.safetensors.index.json", index.dump(2) + "\n"};
}

/// Reserves all files: Note [Reserved bytes].
Result<void> CheckpointWriter::reserve() {
  ARTESIAN_TRY(unnamed, reserve_unnamed());
  unnamed_ = unnamed;
  if (unnamed_) return {};
  ARTESIAN_TRY_VOID(make_folder());
  for (Shard& shard : shards_) {
    ARTESIAN_TRY(file, OutputFile::create(folder_ + "/" + shard.file_name));
    shard.file.emplace(std::move(file));
    ARTESIAN_TRY_VOID(reserve(*shard.file, header_of(shard).size() + shard.size));
  }
  return {};
}

/// False: the file system has no unnamed files, or cannot give them names.
Result<bool> CheckpointWriter::reserve_unnamed() {
  const std::string parent = parent_of(options_.target);
  const std::string folder = partial_of(options_.target);
  auto small = OutputFile::create_unnamed(parent, folder);
  if (!small.has_value() || !small->link().has_value()) return false;
  static_cast<void>(::unlink(folder.c_str()));
  // A file that was named cannot become unnamed again.
  small = OutputFile::create_unnamed(parent, folder);
  if (!small.has_value()) return false;
  std::uint64_t bytes = folder_size;
  for (const ModelFile& file : options_.files) bytes += round_up(file.text.size(), block_size);
  ARTESIAN_TRY_VOID(reserve(*small, bytes));
  for (Shard& shard : shards_) {
    ARTESIAN_TRY(file, OutputFile::create_unnamed(parent, folder + "/" + shard.file_name));
    shard.file.emplace(std::move(file));
    ARTESIAN_TRY_VOID(reserve(*shard.file, header_of(shard).size() + shard.size));
  }
  small_.emplace(std::move(small).value());
  return true;
}

Result<void> CheckpointWriter::reserve(OutputFile& file, std::uint64_t bytes) {
  auto reserved = file.reserve(bytes);
  if (reserved.has_value()) return {};
  if (reserved.error().code != ErrorCode::Unsupported) {
    Error error = std::move(reserved).error();
    error.message = "save: " + options_.target + ": " + error.message;
    return error;
  }
  log_once(LogLevel::Info, "save: " + options_.target +
                               ": its file system reserves no bytes; keep what it needs free until "
                               "the end");
  return {};
}

/// Creates the folder with everything except the shards.
Result<void> CheckpointWriter::make_folder() {
  const std::string folder = partial_of(options_.target);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    return save_error(ErrorCode::Io, options_.target, "cannot make " + folder, errno);
  }
  folder_ = folder;
  for (const ModelFile& file : options_.files) {
    ARTESIAN_TRY_VOID(write_small_file(folder_ + "/" + file.name, file.text));
  }
  return {};
}

/// Called before the first byte.
Result<void> CheckpointWriter::begin() {
  if (shard_.has_value()) return {};
  small_.reset();  // the folder's files replace the reservation
  if (folder_.empty()) ARTESIAN_TRY_VOID(make_folder());
  shard_ = 0;
  ARTESIAN_TRY_VOID(begin_shard(shards_.front()));
  return skip_complete_tensors();
}

Result<void> CheckpointWriter::begin_shard(Shard& shard) {
  const std::string header = header_of(shard);
  shard.file->write_directly();
  return shard.file->append(header.data(), header.size());
}

Result<void> CheckpointWriter::finish_shard(Shard& shard) {
  if (unnamed_) ARTESIAN_TRY_VOID(shard.file->link());
  ARTESIAN_TRY_VOID(shard.file->finish());
  shard.file.reset();
  return {};
}

/// Goes to the first incomplete tensor; begins and finishes shards on the way.
Result<void> CheckpointWriter::skip_complete_tensors() {
  while (*shard_ < shards_.size()) {
    Shard& shard = shards_[*shard_];
    while (tensor_ < shard.tensor_end) {
      if (tensor_written_ < tensor_size(tensor_)) return {};
      ++tensor_;
      tensor_written_ = 0;
    }
    ARTESIAN_TRY_VOID(finish_shard(shard));
    if (++*shard_ < shards_.size()) ARTESIAN_TRY_VOID(begin_shard(shards_[*shard_]));
  }
  return {};
}

Result<void> CheckpointWriter::append(std::size_t tensor, std::span<const std::byte> bytes) {
  ARTESIAN_TRY_VOID(begin());
  ARTESIAN_CHECK(bytes.empty() || (tensor == tensor_ && tensor < tensors_.size()), tensor, tensor_);
  if (bytes.empty()) return {};
  ARTESIAN_CHECK(bytes.size() <= tensor_size(tensor) - tensor_written_, bytes.size());
  ARTESIAN_TRY_VOID(shards_[*shard_].file->append(bytes.data(), bytes.size()));
  tensor_written_ += bytes.size();
  return skip_complete_tensors();
}

Result<void> CheckpointWriter::append_rounded(std::size_t tensor, std::span<const float> values) {
  if (options_.dtype == DType::Float32) return append(tensor, std::as_bytes(values));
  rounded_.resize(values.size());
  static_cast<void>(kernels::narrow(values.data(), rounded_.data(), options_.dtype, values.size()));
  return append(tensor, std::as_bytes(std::span(rounded_)));
}

Result<void> CheckpointWriter::commit() {
  ARTESIAN_TRY_VOID(begin());
  ARTESIAN_CHECK(tensor_ == tensors_.size() && *shard_ == shards_.size(), tensor_, tensors_.size());
  ARTESIAN_TRY_VOID(system_files().sync_directory(folder_));
  // Complete from here on, so nobody must remove it.
  const std::string folder = std::exchange(folder_, {});
  const char* target = options_.target.c_str();
  if (::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, target, RENAME_NOREPLACE) == 0) {
    return system_files().sync_directory(parent_of(options_.target));
  }
  const std::string where = "; all is in " + folder;
  if (errno == EEXIST) {
    return save_error(ErrorCode::Invalid, options_.target, "came into being meanwhile" + where);
  }
  // The file system lacks the flag: rename may replace an empty folder, but refuses a filled one.
  if (!may_lack_call(errno) || ::rename(folder.c_str(), target) != 0) {
    return save_error(ErrorCode::Io, options_.target, "cannot rename" + where, errno);
  }
  return system_files().sync_directory(parent_of(options_.target));
}

}  // namespace artesian::models
