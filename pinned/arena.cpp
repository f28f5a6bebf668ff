#include "pinned/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <stdexcept>

#include "base/check.h"
#include "base/units.h"
#include "pinned/aligned_mapping.h"

namespace artesian::pinned {
namespace {

bool addresses_are_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

Error refused(std::uint64_t bytes, int system_error) {
  return make_error(ErrorCode::Exhausted, "cannot reserve addresses for " + format_size(bytes),
                    system_error);
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::reserve(std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(bytes > 0);
  if (addresses_are_limited()) {
    return make_error(ErrorCode::Unsupported, "addresses are limited (ulimit -v)");
  }
  const std::uint64_t size = round_up(bytes, granule_size);
  std::byte* const base = map_aligned(size, PROT_NONE, MAP_NORESERVE);
  if (base == nullptr) return refused(bytes, errno);
  (void)madvise(base, size, MADV_HUGEPAGE);  // if refused, small pages are used
  try {
    return std::unique_ptr<Arena>(new Arena(base, size));
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  (void)munmap(base, size);  // its tables would be too large
  return refused(bytes, ENOMEM);
}

Arena::Arena(std::byte* base, std::uint64_t bytes)
    : base_(base), bytes_(bytes), free_(bytes, page_size), granules_(bytes / granule_size) {}

Arena::~Arena() {
  ARTESIAN_CHECK(munmap(base_, bytes_) == 0, base_, bytes_, errno);
}

std::span<std::byte> Arena::take(std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(bytes > 0);
  if (bytes > bytes_) return {};
  const std::uint64_t length = round_up(bytes, page_size);
  const std::lock_guard lock(mutex_);
  const auto offset = free_.take_low(length);
  if (!offset) return {};
  if (!make_usable(*offset + length)) {
    free_.give(*offset, length);
    return {};
  }
  return use(*offset, length);
}

std::span<std::byte> Arena::take_kept(std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(bytes > 0);
  if (bytes > bytes_) return {};
  const std::uint64_t length = round_up(bytes, page_size);
  const std::lock_guard lock(mutex_);
  const auto offset = highest_kept(length);
  if (!offset) return {};
  free_.take_at(*offset, length);
  return use(*offset, length);
}

/// Returns where `length` bytes are free on granules that are held.
std::optional<std::uint64_t> Arena::highest_kept(std::uint64_t length) const noexcept {
  const auto& runs = free_.runs();
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    std::uint64_t end = std::min(run->offset + run->length, bytes_usable_);
    std::uint64_t begin = end;  // the range between them is held
    while (begin > run->offset && end - begin < length) {
      const std::uint64_t granule = (begin - 1) / granule_size;
      begin = std::max(run->offset, granule * granule_size);
      if (!granules_[granule].held) end = begin;
    }
    if (end - begin >= length) return end - length;
  }
  return std::nullopt;
}

/// Records bytes that are no longer free.
std::span<std::byte> Arena::use(std::uint64_t offset, std::uint64_t length) noexcept {
  const bool is_new = lengths_.emplace(offset, length).second;
  ARTESIAN_CHECK(is_new, offset, length);
  bytes_in_use_peak_ = std::max(bytes_in_use_peak_, bytes_ - free_.bytes_free());
  hold(offset, length);
  return_what_is_over();
  return {base_ + offset, length};
}

std::uint64_t Arena::give_back(void* data) noexcept {
  ARTESIAN_CHECK(contains(data), data, base_, bytes_);
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(data) - base_);
  const std::lock_guard lock(mutex_);
  const auto found = lengths_.find(offset);
  // Otherwise it was freed twice, or never taken.
  ARTESIAN_CHECK(found != lengths_.end(), data, offset);
  const std::uint64_t length = found->second;
  lengths_.erase(found);
  free_.give(offset, length);
  for (std::uint64_t at = offset / granule_size; at * granule_size < offset + length; ++at) {
    ARTESIAN_CHECK(granules_[at].pieces > 0 && granules_[at].held, at);
    if (--granules_[at].pieces == 0) --granules_in_use_;
  }
  return length;
}

ArenaStatistics Arena::statistics() const noexcept {
  const std::lock_guard lock(mutex_);
  return {.bytes_in_use = bytes_ - free_.bytes_free(),
          .bytes_in_use_peak = bytes_in_use_peak_,
          .bytes_held = granules_held_ * granule_size,
          .bytes_held_bound = granules_in_use_peak_ * granule_size,
          .bytes_returned = bytes_returned_};
}

/// Extends the usable range: see Note [Growing].
bool Arena::make_usable(std::uint64_t bytes) noexcept {
  const std::uint64_t needed = round_up(bytes, granule_size);
  if (needed <= bytes_usable_) return true;
  if (mprotect(base_ + bytes_usable_, needed - bytes_usable_, PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  bytes_usable_ = needed;
  return true;
}

void Arena::hold(std::uint64_t offset, std::uint64_t length) noexcept {
  for (std::uint64_t at = offset / granule_size; at * granule_size < offset + length; ++at) {
    Granule& granule = granules_[at];
    if (granule.pieces++ == 0) ++granules_in_use_;
    if (!granule.held) ++granules_held_;
    granule.held = true;
  }
  granules_in_use_peak_ = std::max(granules_in_use_peak_, granules_in_use_);
}

/// Returns granules to the kernel: see Note [Kept granules]. Neighbours are returned in one call.
void Arena::return_what_is_over() noexcept {
  const auto is_kept = [this](std::uint64_t at) {
    return granules_[at].held && granules_[at].pieces == 0;
  };
  std::uint64_t end = bytes_usable_ / granule_size;
  while (granules_held_ > granules_in_use_peak_) {
    while (end > 0 && !is_kept(end - 1)) --end;
    ARTESIAN_CHECK(end > 0, granules_held_, granules_in_use_, granules_in_use_peak_);
    std::uint64_t first = end;
    std::uint64_t left = granules_held_ - granules_in_use_peak_;
    for (; left > 0 && first > 0 && is_kept(first - 1); --left) --first;
    const std::uint64_t size = (end - first) * granule_size;
    // Locked memory (mlockall) cannot be returned: it is then held for good, as its owner wants.
    if (madvise(base_ + first * granule_size, size, MADV_DONTNEED) != 0) return;
    for (std::uint64_t at = first; at < end; ++at) granules_[at].held = false;
    granules_held_ -= end - first;
    bytes_returned_ += size;
    end = first;
  }
}

}  // namespace artesian::pinned
