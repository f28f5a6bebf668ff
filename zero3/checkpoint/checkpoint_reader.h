// CheckpointReader: the state in a checkpoint, whatever placement, budget or number of ranks it was
// saved with: any range of any parameter, as fp32. Split master weights are joined.
//
// Note [Verified each time]: every block is read whole, past the page cache, and compared with its
// checksum before a byte of it is used, each time that it is read. The last ones are kept, and what
// comes behind them is read ahead (block_cache.h), so that who goes through a parameter in small
// steps reads each once, and seldom waits. Memory: 24 blocks of at most 1 MiB, and one for each
// thread that reads; and 16 bytes for each block of the checkpoint.
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
  /// Opens DIR/TAG; without a tag the one in `latest`. Checks the manifest, and that every file
  /// that it names is there, whole as far as lengths and digests say, and has each element of each
  /// parameter once. Blocks are not read yet. Errors: Io; Corrupt, naming the file; Unsupported;
  /// Invalid: no such checkpoint.
  static Result<std::unique_ptr<CheckpointReader>> open(FileSystem& files,
                                                        const std::string& directory,
                                                        const std::string& tag) noexcept;

  const CheckpointManifest& manifest() const noexcept { return manifest_; }
  const std::string& tag() const noexcept { return tag_; }
  const std::string& path() const noexcept { return folder_->path(); }
  /// The parameter of this name, or of which it is another name. Nothing: there is none.
  std::optional<std::uint32_t> find(std::string_view name) const;

  /// True if the checkpoint has weights of the parameter, master weights or frozen ones. It has,
  /// unless the parameter was excluded or is empty.
  bool has_weights(std::uint32_t parameter) const noexcept;
  /// True if the parameter was left out on purpose when it was saved.
  bool is_excluded(const std::string& name) const;
  /// As StateSource::read, whichever optimizer's moments those are: `exp_avg` its average,
  /// `exp_avg_sq` its squares. Of a frozen parameter its weights, as fp32, and zero moments. The
  /// range must lie in the parameter, which must not be excluded. Thread: any, several at once.
  Result<void> read(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                    std::span<float> exp_avg, std::span<float> exp_avg_sq) const noexcept;
  /// The bytes of one of the manifest's buffers. Errors: Io, Corrupt.
  Result<std::string> read_buffer(const SavedBufferPlace& place) const noexcept;
  /// A file of the caller's or the model's, by its whole name. Errors: Io, Corrupt; Invalid: it has
  /// none of this name.
  Result<std::string> read_side_file(const std::string& name) const noexcept;

  /// Reads and verifies every block and file. Calls `progress` with bytes done and in all. Returns
  /// at most `faults_max` faults. Errors: Io.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;
  Result<std::vector<Error>> verify(const Progress& progress,
                                    std::size_t faults_max = 5) const noexcept;

 private:
  struct DataFile {
    std::unique_ptr<File> file;
    std::vector<std::uint64_t> ends;  // by block: the offset where the next one begins
    std::vector<std::uint64_t> sums;
  };
  struct Have {  // The parts of a parameter's arrays, sorted, by array.
    std::array<std::vector<SavedPart>, saved_array_count> parts;
    bool needs_squares = false;  // its optimizer has squares
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
  /// The array of a parameter that is such a moment; nothing: it has none.
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
  std::unique_ptr<BlockCache> cache_;  // behind all that it reads from
};

/// Which saved parameter is which of a model's.
struct NameMatch {
  std::vector<std::optional<std::uint32_t>> saved{};  // saved index, by the model's parameter
  std::vector<std::string> missing{};                 // the model's, not in the checkpoint
  std::vector<std::string> unexpected{};              // the checkpoint's, not in the model
};

enum class Strict : std::uint8_t { No, Yes };

/// Another name of a parameter of the model.
using OtherName = std::function<std::string(const std::string& name)>;

/// Matches by name, or another name: the checkpoint's aliases, and then what `other_name` says, if
/// it is not null. Errors: Invalid: a shape differs; if strict: names differ.
Result<NameMatch> match_names(const std::vector<ParameterSpec>& parameters,
                              const CheckpointReader& reader, Strict strict,
                              const OtherName& other_name = nullptr);

}  // namespace artesian::zero3
