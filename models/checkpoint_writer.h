// Writes a Hugging Face directory in one pass: safetensors in shards, their index, config.json and
// the tokenizer's files. Tensors are declared first and their bytes appended in order, in pieces,
// so that nothing is ever whole in memory. All goes into a folder beside the target, is made
// durable, and is renamed at the end: the target either is complete or does not exist. A writer
// that dies before commit() removes what it wrote.
//
// Note [Reserved bytes]: between create() and the first append() lies a training, of weeks perhaps,
// in which others fill the disk. So create() takes the room of all files there and then: in files
// without a name, which nobody sees and which are gone with the process however it ends. A file
// system that has no such files (NFS) shows the folder of named ones from the start, and one that
// cannot promise room at all is a line in the log.
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

/// A small file of a model directory, whole.
struct ModelFile {
  std::string name;
  std::string text;
};

/// config.json and the tokenizer's files of a model directory. For the time before training: at its
/// end the directory may be gone. Errors: Io; Invalid (not a regular file, larger than 256 MiB).
Result<std::vector<ModelFile>> read_model_files(const std::string& directory);

struct CheckpointWriterOptions {
  std::string target;            // the folder to make; must not exist, its parent must
  std::vector<ModelFile> files;  // written beside the weights, config.json with their dtype
  DType dtype = DType::Float32;  // stored type of all tensors
  std::uint64_t shard_size_max = 5'000'000'000;  // bytes of data; a larger tensor has its own shard
};

/// Checks that a checkpoint of this many bytes could be written now: the target is free, its parent
/// is a writable folder with that much space. For the time before training. Errors: Invalid,
/// NoSpace, Io.
Result<void> check_checkpoint_target(const std::string& target, std::uint64_t bytes);

class CheckpointWriter {
 public:
  /// Checks the target and reserves its bytes. Errors: Invalid (target exists, names twice or
  /// none), NoSpace, Io.
  static Result<CheckpointWriter> create(CheckpointWriterOptions options,
                                         std::vector<TensorDeclaration> tensors);
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;
  ~CheckpointWriter();

  /// The dtype of all tensors.
  DType dtype() const noexcept { return options_.dtype; }

  /// The next bytes of tensor `tensor`, which must be the first one that is not complete.
  /// Errors: NoSpace, Io.
  Result<void> append(std::size_t tensor, std::span<const std::byte> bytes);

  /// The same of values, rounded to the dtype of the file.
  Result<void> append_rounded(std::size_t tensor, std::span<const float> values);

  /// After the last byte: syncs and renames. Errors: NoSpace, Io; Invalid if the target came into
  /// being meanwhile. What cannot be renamed stays, whole, under the name that the error tells.
  Result<void> commit();

 private:
  struct Shard {
    std::string file_name;
    std::size_t tensor_first;
    std::size_t tensor_end;
    std::uint64_t size;              // bytes of data
    std::optional<OutputFile> file;  // until it is complete
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
  std::string folder_;  // where it is written; empty before creation and after the rename
  bool unnamed_ = false;
  std::optional<OutputFile> small_;     // unnamed: the room of all but the shards
  std::optional<std::size_t> shard_;    // under way; none before the first byte
  std::size_t tensor_ = 0;              // first incomplete
  std::uint64_t tensor_written_ = 0;    // bytes of it
  std::vector<std::uint16_t> rounded_;  // buffer of append_rounded
};

}  // namespace artesian::models
