// CheckpointReader: reads the state in a checkpoint: any range of any parameter, as fp32,
// independent of the placement, budget and number of ranks with which it was saved. Split master
// weights are joined.
//
// Note [Verified each time]: every block is read completely, with direct I/O, and compared with its
// checksum before use, each time that it is read. The last blocks are cached, and the following
// ones are read ahead (block_cache.h), so that a reader going through a parameter in small steps
// reads each block once and seldom waits. Memory: 24 blocks of at most 1 MiB, one more for each
// reading thread, and 16 bytes for each block of the checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/durable_folder.h"
#include "base/file_system.h"
#include "zero3/checkpoint/block_cache.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

class CheckpointReader {
 public:
  /// Opens DIR/TAG; without a tag that of `latest`. Checks the manifest, the length and digest of
  /// every file that it lists, and that each element of each parameter is stored once. Blocks are
  /// not read yet. Errors: Io; Corrupt, naming the file; Unsupported; Invalid: no such checkpoint.
  static Result<std::unique_ptr<CheckpointReader>> open(FileSystem& files,
                                                        const std::string& directory,
                                                        const std::string& tag) noexcept;

  const CheckpointManifest& manifest() const noexcept { return manifest_; }
  const std::string& tag() const noexcept { return tag_; }
  const std::string& path() const noexcept { return folder_->path(); }
  /// The index of the parameter with this name or alias; empty if there is none.
  std::optional<std::uint32_t> find(std::string_view name) const;

  /// True if the checkpoint has weights of the parameter (master weights, or frozen ones). False if
  /// the parameter was excluded or is empty.
  bool has_weights(std::uint32_t parameter) const noexcept;
  /// True if the parameter was excluded on purpose when the checkpoint was saved.
  bool is_excluded(const std::string& name) const;
  /// As StateSource::read, for any optimizer: `exp_avg` gets its average, `exp_avg_sq` its squares.
  /// For a frozen parameter, returns its weights as fp32, and zero moments. The range must lie in
  /// the parameter, which must not be excluded. Thread: any, several at once.
  Result<void> read(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                    std::span<float> exp_avg, std::span<float> exp_avg_sq) const noexcept;
  /// The bytes of one of the manifest's buffers. Errors: Io, Corrupt.
  Result<std::string> read_buffer(const SavedBufferPlace& place) const noexcept;
  /// A file of the caller's or the model's, by its full name. Errors: Io, Corrupt; Invalid: there
  /// is no such file.
  Result<std::string> read_side_file(const std::string& name) const noexcept;

  /// Reads and verifies every block and file. Calls `progress` with the bytes done and the total.
  /// Returns at most `faults_max` faults. Errors: Io.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;
  Result<std::vector<Error>> verify(const Progress& progress,
                                    std::size_t faults_max = 5) const noexcept;

 private:
  struct DataFile {
    std::unique_ptr<File> file;
    std::vector<std::uint64_t> ends;  // by block: the offset at which the next block begins
    std::vector<std::uint64_t> sums;
  };
  struct Have {  // The parts of a parameter's arrays, sorted, by array.
    std::array<std::vector<SavedPart>, saved_array_count> parts;
    bool needs_squares = false;  // its optimizer keeps squares
  };

  CheckpointReader(std::unique_ptr<Folder> folder, std::string tag) noexcept
      : folder_(std::move(folder)), tag_(std::move(tag)) {}
  Result<void> open_files() noexcept;
  Result<void> open_file(const SavedDataFile& file) noexcept;
  Result<void> sort_parts();
  Result<void> check_parameter(std::uint32_t parameter) const;
  bool has(std::uint32_t parameter, SavedArray array) const noexcept {
    return !have_[parameter].parts[static_cast<std::size_t>(array)].empty();
  }
  /// The array that holds this moment of a parameter; empty if there is none.
  std::optional<SavedArray> find_moment(std::uint32_t parameter, MomentKind kind) const noexcept;
  Result<SharedBytes> load(std::size_t file, std::uint64_t block) const noexcept;
  Result<void> read_bytes(std::size_t file, std::uint64_t offset,
                          std::span<std::byte> target) const noexcept;
  Result<void> read_array(std::uint32_t parameter, SavedArray array, std::uint64_t first,
                          std::uint64_t count, std::byte* target) const noexcept;
  Result<void> read_split(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                          std::span<float> exp_avg_sq) const noexcept;
  Result<void> read_floats(std::uint32_t parameter, SavedArray array, std::uint64_t first,
                           std::span<float> target) const noexcept;
  Result<void> check_side_files(std::vector<Error>& faults, std::size_t faults_max) const noexcept;

  std::unique_ptr<Folder> folder_;
  std::string tag_;
  CheckpointManifest manifest_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
  std::vector<Have> have_;  // by saved parameter
  std::vector<DataFile> data_;
  std::unique_ptr<BlockCache> cache_;  // declared after everything that it reads from
};

/// Which saved parameter corresponds to which of the model's.
struct NameMatch {
  std::vector<std::optional<std::uint32_t>> saved{};  // saved index, by the model's parameter
  std::vector<std::string> missing{};     // the model's parameters that the checkpoint lacks
  std::vector<std::string> unexpected{};  // the checkpoint's parameters that the model lacks
};

enum class Strict : std::uint8_t { No, Yes };

/// Another name of a parameter of the model.
using OtherName = std::function<std::string(const std::string& name)>;

/// Matches parameters by name, then by the checkpoint's aliases, then by `other_name` if it is not
/// null. Errors: Invalid: a shape differs; if strict: a name has no match.
Result<NameMatch> match_names(const std::vector<ParameterSpec>& parameters,
                              const CheckpointReader& reader, Strict strict,
                              const OtherName& other_name = nullptr);

}  // namespace artesian::zero3
