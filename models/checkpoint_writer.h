// Writes a Hugging Face directory in one pass: safetensors in shards, their index, config.json and
// the tokenizer's files. Tensors are declared first, and their bytes appended in order, in pieces,
// so that no tensor is ever complete in memory. All files are written to a folder beside the
// target, made durable, and renamed at the end, so that the target is complete or does not exist. A
// writer that dies before commit() removes what it wrote.
//
// Note [Reserved bytes]: between create() and the first append() there may be weeks of training, in
// which others fill the disk. So create() reserves the space of all files at once, in unnamed
// files, which are invisible and disappear with the process. On a file system without unnamed files
// (NFS), a folder with named ones is visible from the start. If a file system cannot reserve space,
// a warning is logged.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "models/file_io.h"

namespace artesian::models {

struct TensorDeclaration {
  std::string name;  // as saved, see saved_name()
  std::vector<std::int64_t> shape;
};

/// A small file of a model directory, completely in memory.
struct ModelFile {
  std::string name;
  std::string text;
};

/// Reads config.json and the tokenizer's files of a model directory. Call it before training, as
/// the directory may be gone at its end. Errors: Io; Invalid (not a regular file, larger than 256
/// MiB).
Result<std::vector<ModelFile>> read_model_files(const std::string& directory);

struct CheckpointWriterOptions {
  std::string target;            // the folder to create: it must not exist, its parent must
  std::vector<ModelFile> files;  // written beside the weights; config.json gets their dtype
  DType dtype = DType::Float32;  // stored type of all tensors
  // bytes of data; a larger tensor gets its own shard
  std::uint64_t shard_size_max = 5'000'000'000;
};

/// Checks that a checkpoint of this many bytes could be written now: the target does not exist, and
/// its parent is a writable folder with enough space. Call it before training. Errors: Invalid,
/// NoSpace, Io.
Result<void> check_checkpoint_target(const std::string& target, std::uint64_t bytes);

class CheckpointWriter {
 public:
  /// Checks the target and reserves its bytes. Errors: Invalid (the target exists; duplicate or
  /// missing names), NoSpace, Io.
  static Result<CheckpointWriter> create(CheckpointWriterOptions options,
                                         std::vector<TensorDeclaration> tensors);
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;
  ~CheckpointWriter();

  /// The dtype of all tensors.
  DType dtype() const noexcept { return options_.dtype; }

  /// Appends the next bytes of tensor `tensor`, which must be the first incomplete one. Errors:
  /// NoSpace, Io.
  Result<void> append(std::size_t tensor, std::span<const std::byte> bytes);

  /// As append, for values, which are rounded to the dtype of the file.
  Result<void> append_rounded(std::size_t tensor, std::span<const float> values);

  /// Call it after the last byte: syncs and renames. Errors: NoSpace, Io; Invalid if the target was
  /// created meanwhile. If renaming fails, the complete folder remains under the name in the error.
  Result<void> commit();

 private:
  struct Shard {
    std::string file_name;
    std::size_t tensor_first;
    std::size_t tensor_end;
    std::uint64_t size;              // bytes of data
    std::optional<OutputFile> file;  // open until it is complete
  };
  CheckpointWriter(CheckpointWriterOptions options, std::vector<TensorDeclaration> tensors);

  void plan_shards();
  std::string header_of(const Shard& shard) const;
  ModelFile index() const;
  Result<void> reserve();
  Result<bool> reserve_unnamed();
  Result<void> reserve(OutputFile& file, std::uint64_t bytes);
  Result<void> make_folder();
  Result<void> begin();
  Result<void> begin_shard(Shard& shard);
  Result<void> finish_shard(Shard& shard);
  Result<void> skip_complete_tensors();
  std::uint64_t tensor_size(std::size_t tensor) const noexcept;

  CheckpointWriterOptions options_;
  std::vector<TensorDeclaration> tensors_;
  std::vector<Shard> shards_;
  std::string folder_;  // folder being written; empty before creation and after the rename
  bool unnamed_ = false;
  std::optional<OutputFile>
      small_;  // unnamed file that reserves the space of everything except the shards
  std::optional<std::size_t> shard_;    // the current shard; empty before the first byte
  std::size_t tensor_ = 0;              // the first incomplete tensor
  std::uint64_t tensor_written_ = 0;    // bytes written of it
  std::vector<std::uint16_t> rounded_;  // buffer of append_rounded
};

}  // namespace artesian::models
