// The manifest of a checkpoint, format version 1: the last file of it that is written, and the only
// one that is believed by itself: it ends with a checksum of all bytes before. Every other file is
// named in it with its length and a digest, the data files by way of their checksums.
//
// A manifest may come from a stranger, with a right checksum. So nothing in it is believed before
// it is checked: names lead nowhere, parts lie within their file and their parameter and do not
// overlap, and arrays of an unknown kind are refused by name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tiering/snapshot_file.h"
#include "zero3/plan/checkpoint_layout.h"
#include "zero3/plan/checkpoint_lineage.h"
#include "zero3/step/training_state.h"

namespace artesian::zero3 {

/// Stands before the digest that closes the text.
inline constexpr std::string_view manifest_checksum_key = R"("checksum":")";

inline constexpr std::uint64_t checkpoint_version = 1;
inline constexpr std::uint64_t manifest_size_max = std::uint64_t{64} << 20;
inline constexpr std::uint64_t side_file_bytes_max = std::uint64_t{1} << 30;
inline constexpr std::uint64_t sums_bytes_max = std::uint64_t{1} << 30;

struct SavedParameter {
  std::string name{};
  std::vector<std::uint64_t> shape{};
  bool trainable = true;

  std::uint64_t numel() const noexcept;  // cannot overflow in a manifest that was read
  bool operator==(const SavedParameter&) const = default;
};

/// Parameters that are updated in the same way.
struct SavedGroup {
  std::string optimizer{};  // "adam", "adamw"
  double beta1 = 0.0;
  double beta2 = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
  double lr = 0.0;                          // learning rate of the last step
  std::uint64_t step = 0;                   // updates that it has had
  std::vector<std::uint32_t> parameters{};  // indices

  bool operator==(const SavedGroup&) const = default;
};

struct SavedDataFile {
  std::string name{};  // "rank0.safetensors", "frozen.safetensors"
  std::uint32_t rank = 0;
  std::string node{};            // the machine that wrote it
  std::uint64_t bytes = 0;       // size of the file
  std::uint64_t head_bytes = 0;  // of these, the header before the blocks
  std::string head_digest{};     // XXH3-128, hex
  std::string sums_digest{};     // digest of the file with the blocks' checksums
  tiering::SnapshotSeed seed{};  // seed of the checkpoint for which the file was first written

  bool operator==(const SavedDataFile&) const = default;
};

/// Any other file: the caller's, the model's.
struct SavedSideFile {
  std::string name{};  // "client-NAME", "model/NAME"
  std::uint64_t bytes = 0;
  std::string digest{};

  bool operator==(const SavedSideFile&) const = default;
};

/// The source of training data: an ordered list of these makes the stream of tokens.
struct SavedSource {
  std::string name{};        // for messages
  std::uint64_t tokens = 0;  // length
  std::string digest{};      // digest over evenly spread blocks of token ids

  bool operator==(const SavedSource&) const = default;
};

struct SavedTrainer {
  std::uint64_t next_sample = 0;  // the first sample of the next step
  std::uint64_t seed = 0;
  std::string order{};  // "shuffled", "sequential"
  std::uint64_t sequence_length = 0;
  std::vector<SavedSource> sources{};
  std::string tokenizer_digest{};
  std::string log_line{};  // the step's line in the log

  bool operator==(const SavedTrainer&) const = default;
};

struct CheckpointManifest {
  CheckpointLink link{};     // id, parent, lineage, serial
  std::uint64_t run_id = 0;  // of the process that saved
  std::string created{};     // for people
  TrainingState state{};
  std::vector<SavedParameter> parameters{};
  std::vector<SavedGroup> groups{};
  std::vector<SavedPart> parts{};
  std::vector<SavedBufferPlace> buffers{};
  std::vector<SavedDataFile> files{};
  std::vector<SavedSideFile> side_files{};
  std::vector<std::pair<std::string, std::string>> aliases{};  // another name, the parameter's
  std::vector<std::string> excluded{};                         // names of parameters left out
  std::string config{};                                        // the resolved configuration, JSON
  std::map<std::string, std::string> machine{};  // what bits depend on: threads, instruction set
  std::optional<SavedTrainer> trainer{};
};

/// Errors: Invalid: a name or text is not UTF-8, or a number not finite; Exhausted: too long.
Result<std::string> write_manifest(const CheckpointManifest& manifest);

/// Errors: Corrupt (damage, or what cannot be), Unsupported (another version, unknown arrays):
/// without the file's name.
Result<CheckpointManifest> read_manifest(std::string_view text);

/// XXH3-128 as 32 hex digits.
std::string digest_of(std::string_view bytes);

}  // namespace artesian::zero3
