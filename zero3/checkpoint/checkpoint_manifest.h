// The manifest of a checkpoint, format version 1. It is the file that is written last, and it ends
// with a checksum of all its previous bytes. It lists every other file with its length and a
// digest; for data files the digest is that of their checksums.
//
// A manifest may come from a stranger, with a correct checksum, so everything in it is checked:
// names must not lead out of the folder, parts must lie within their file and their parameter and
// not overlap, and arrays of an unknown kind are refused by name.
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

/// Precedes the digest at the end of the text.
inline constexpr std::string_view manifest_checksum_key = R"("checksum":")";

inline constexpr std::uint64_t checkpoint_version = 1;
inline constexpr std::uint64_t manifest_size_max = std::uint64_t{64} << 20;
inline constexpr std::uint64_t side_file_bytes_max = std::uint64_t{1} << 30;
inline constexpr std::uint64_t sums_bytes_max = std::uint64_t{1} << 30;

struct SavedParameter {
  std::string name{};
  std::vector<std::uint64_t> shape{};
  bool trainable = true;

  std::uint64_t numel()
      const noexcept;  // cannot overflow in a manifest that read_manifest() returned
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
  std::uint64_t step = 0;                   // number of updates so far
  std::vector<std::uint32_t> parameters{};  // indices of parameters

  bool operator==(const SavedGroup&) const = default;
};

struct SavedDataFile {
  std::string name{};  // "rank0.safetensors", "frozen.safetensors"
  std::uint32_t rank = 0;
  std::string node{};            // name of the machine that wrote it
  std::uint64_t bytes = 0;       // size of the file
  std::uint64_t head_bytes = 0;  // bytes of the header before the blocks
  std::string head_digest{};     // XXH3-128 of the header, hex
  std::string sums_digest{};     // digest of the file with the blocks' checksums
  tiering::SnapshotSeed seed{};  // seed of the checkpoint for which the file was first written

  bool operator==(const SavedDataFile&) const = default;
};

/// Any other file: of the caller or of the model.
struct SavedSideFile {
  std::string name{};  // "client-NAME", "model/NAME"
  std::uint64_t bytes = 0;
  std::string digest{};

  bool operator==(const SavedSideFile&) const = default;
};

/// One source of training data; an ordered list of sources makes the stream of tokens.
struct SavedSource {
  std::string name{};        // used in messages
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
  std::uint64_t run_id = 0;  // run id of the process that saved
  std::string created{};     // time, for people
  TrainingState state{};
  std::vector<SavedParameter> parameters{};
  std::vector<SavedGroup> groups{};
  std::vector<SavedPart> parts{};
  std::vector<SavedBufferPlace> buffers{};
  std::vector<SavedDataFile> files{};
  std::vector<SavedSideFile> side_files{};
  std::vector<std::pair<std::string, std::string>>
      aliases{};                        // pairs: another name, the parameter's name
  std::vector<std::string> excluded{};  // names of parameters left out
  std::string config{};                 // the resolved configuration, JSON
  std::map<std::string, std::string>
      machine{};  // facts that results depend on: threads, instruction set
  std::optional<SavedTrainer> trainer{};
};

/// Writes a manifest. Errors: Invalid: a name or text is not UTF-8, or a number is not finite;
/// Exhausted: too long.
Result<std::string> write_manifest(const CheckpointManifest& manifest);

/// Reads and checks a manifest. Errors: Corrupt (damaged or inconsistent), Unsupported (another
/// version, unknown arrays); without the file's name.
Result<CheckpointManifest> read_manifest(std::string_view text);

/// XXH3-128 as 32 hex digits.
std::string digest_of(std::string_view bytes);

}  // namespace artesian::zero3
