#include "tiering/swap_file.h"

#include <fmt/core.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "tiering/superblock.h"
#include "tiering/swap_directory.h"
#include "tiering/swap_lock.h"
#include "tiering/swap_names.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t extent_grain = 4096;
// Far above any disk, and low enough that sums cannot overflow.
constexpr std::uint64_t payload_max = 1ull << 60;
constexpr int directory_retries = 10;

// Bytes of a file with this payload.
std::uint64_t needed_for(std::uint64_t payload) {
  return superblock_region_size + round_up(payload, extent_grain);
}

// `needed`: the file's bytes, of which `reserved` are allocated already.
Error no_space(const SwapFileOptions& options, std::uint64_t needed, std::uint64_t reserved,
               FileSystem& files) {
  // If this run created the directory it is removed by now; its parent is on the same disk.
  const auto parent = std::filesystem::path(options.directory).parent_path().string();
  const bool exists = files.exists(options.directory);
  const auto free_now = files.free_bytes(exists           ? options.directory
                                         : parent.empty() ? "."
                                                          : parent);
  const std::uint64_t available = reserved + (free_now.has_value() ? *free_now : 0);
  Error error = make_error(
      ErrorCode::NoSpace,
      fmt::format("nvme directory is too full: the swap file of rank {} needs {} ({} bytes), free "
                  "are {} ({} bytes); free some space or choose another directory",
                  options.rank, format_size(needed), needed, format_size(available), available),
      ENOSPC);
  error.file = options.directory;
  return error;
}

// Removes slashes at the end, which would hide the parent.
SwapFileOptions normalized(SwapFileOptions options) {
  while (options.directory.size() > 1 && options.directory.back() == '/') {
    options.directory.pop_back();
  }
  return options;
}

// Locks the directory, creating it first. A run that leaves at this moment may remove the directory
// in between: then it is retried.
Result<SwapLock> claim_directory(const SwapFileOptions& options, FileSystem& files) noexcept {
  for (int turn = 0;; ++turn) {
    const bool again = turn < directory_retries;
    auto prepared = prepare_swap_directory(options.directory, files);
    if (!prepared.has_value()) {
      if (again && prepared.error().system_error == ENOENT) continue;
      return std::move(prepared).error();
    }
    auto lock = SwapLock::acquire(options.directory, options.rank, options.run_id, files);
    if (lock.has_value()) return lock;
    if (again && lock.error().system_error == ENOENT) continue;
    leave_swap_directory(options.directory, files);
    if (lock.error().code == ErrorCode::Busy) return lock;
    return swap_directory_error(options.directory, std::move(lock).error());
  }
}

}  // namespace

class SwapFile::Impl {
 public:
  Impl(const SwapFileOptions& options, FileSystem& files, SwapLock lock)
      : options_(options),
        files_(files),
        path_(options.directory + "/" + swap_file_name(options.run_id, options.rank)),
        lock_(std::move(lock)) {}

  ~Impl() { ARTESIAN_CHECK(closed_); }

  // Creates the file and reserves its space. Even after a failure the caller must call close().
  Result<void> create_file() noexcept {
    ARTESIAN_CHECK(file_ == nullptr && !closed_);
    remove_stale_swap_files(options_.directory, options_.rank, files_);
    auto opened = files_.open(path_, {.create = Create::Exclusive, .direct = options_.direct});
    if (!opened.has_value()) {
      return swap_directory_error(options_.directory, std::move(opened).error());
    }
    file_ = std::move(opened).value();
    if (extent_grain % file_->alignment() != 0) {
      return make_error(
          ErrorCode::Unsupported,
          fmt::format(
              "{}: the disk needs transfers aligned to {} bytes, at most 4096 are supported", path_,
              file_->alignment()));
    }
    return grow(options_.bytes);
  }

  // Reserves the space for a payload of `bytes`.
  Result<void> grow(std::uint64_t bytes) noexcept {
    ARTESIAN_CHECK(file_ != nullptr && !closed_);
    ARTESIAN_CHECK(bytes <= payload_max, bytes);
    const std::uint64_t payload = round_up(bytes, extent_grain);
    auto allocated = file_->allocate(superblock_region_size + payload);
    if (!allocated.has_value()) {
      return swap_directory_error(options_.directory, std::move(allocated).error());
    }
    ARTESIAN_CHECK(payload >= bytes_used_, payload, bytes_used_);  // allocated extents must fit
    payload_bytes_ = payload;
    const Superblock superblock{
        .rank = options_.rank, .run_id = options_.run_id, .payload_bytes = payload_bytes_};
    return write_superblock(*file_, superblock);
  }

  // Removes everything, continuing after failures; returns the first failure.
  Result<void> close() noexcept {
    ARTESIAN_CHECK(!closed_);
    closed_ = true;
    Result<void> outcome;
    if (file_ != nullptr) {
      file_.reset();
      outcome = files_.remove(path_);
      // The file is gone already, as close() promises.
      if (!outcome.has_value() && outcome.error().system_error == ENOENT) outcome = {};
    }
    auto released = lock_.release();
    if (outcome.has_value() && !released.has_value()) outcome = std::move(released);
    leave_swap_directory(options_.directory, files_);
    return outcome;
  }

  Result<Extent> allocate(std::uint64_t bytes) noexcept {
    ARTESIAN_CHECK(bytes > 0 && !closed_, bytes);
    ARTESIAN_CHECK(bytes_used_ <= payload_bytes_, bytes_used_, payload_bytes_);
    const std::uint64_t left = payload_bytes_ - bytes_used_;
    if (bytes >
        left) {  // `left` is a multiple of the grain, so rounding `bytes` up changes nothing
      Error error =
          make_error(ErrorCode::Exhausted,
                     "swap file is used up: an extent of " + format_size(bytes) + " was asked, " +
                         format_size(left) + " of " + format_size(payload_bytes_) + " are left");
      error.file = path_;
      return error;
    }
    const Extent extent{.offset = superblock_region_size + bytes_used_,
                        .length = round_up(bytes, extent_grain)};
    bytes_used_ += extent.length;
    ARTESIAN_CHECK(extent.offset % extent_grain == 0, extent.offset);
    ARTESIAN_CHECK(bytes_used_ <= payload_bytes_, bytes_used_, payload_bytes_);
    return extent;
  }

  const SwapFileOptions options_;
  FileSystem& files_;
  const std::string path_;
  SwapLock lock_;
  std::unique_ptr<File> file_;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t bytes_used_ = 0;
  bool closed_ = false;
};

Result<std::unique_ptr<SwapFile>> SwapFile::create(const SwapFileOptions& given,
                                                   FileSystem& files) noexcept {
  const SwapFileOptions options = normalized(given);
  if (options.bytes > payload_max) return no_space(options, options.bytes, 0, files);
  ARTESIAN_TRY(lock, claim_directory(options, files));
  auto impl = std::make_unique<Impl>(options, files, std::move(lock));
  auto created = impl->create_file();
  if (created.has_value()) return std::unique_ptr<SwapFile>(new SwapFile(std::move(impl)));
  (void)impl->close().has_value();  // the first error is the one to report
  if (created.error().code == ErrorCode::NoSpace) {
    return no_space(options, needed_for(options.bytes), 0, files);
  }
  return std::move(created).error();
}

Result<void> SwapFile::grow(std::uint64_t bytes) noexcept {
  if (bytes <= impl_->payload_bytes_) return {};
  const std::uint64_t reserved = needed_for(impl_->payload_bytes_);
  if (bytes > payload_max) return no_space(impl_->options_, bytes, reserved, impl_->files_);
  auto grown = impl_->grow(bytes);
  if (grown.has_value() || grown.error().code != ErrorCode::NoSpace) return grown;
  return no_space(impl_->options_, needed_for(bytes), reserved, impl_->files_);
}

Result<void> SwapFile::grow_into_half(std::uint64_t bytes) noexcept {
  const std::string& directory = impl_->options_.directory;
  const std::uint64_t reserved = needed_for(impl_->payload_bytes_);
  const std::uint64_t more = std::max(needed_for(bytes), reserved) - reserved;
  ARTESIAN_TRY(free, impl_->files_.free_bytes(directory));
  if (more <= free / 2) return grow(bytes);
  Error error =
      make_error(ErrorCode::NoSpace,
                 "of the " + format_size(free) + " that are free half at most is taken, " +
                     format_size(more) + " are needed; free some space",
                 ENOSPC);
  error.file = directory;
  return error;
}

SwapFile::SwapFile(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

SwapFile::~SwapFile() = default;  // Impl checks that close() was called

Result<Extent> SwapFile::allocate(std::uint64_t bytes) noexcept {
  return impl_->allocate(bytes);
}

File& SwapFile::file() noexcept {
  ARTESIAN_CHECK(impl_->file_ != nullptr);
  return *impl_->file_;
}

std::uint64_t SwapFile::bytes_used() const noexcept {
  return impl_->bytes_used_;
}

Result<void> SwapFile::close() noexcept {
  return impl_->close();
}

}  // namespace artesian::tiering
