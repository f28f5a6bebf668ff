#include "pinned/pool.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "base/huge_page.h"
#include "base/log.h"
#include "base/units.h"
#include "pinned/free_list.h"
#include "pinned/memory_range.h"

namespace artesian::pinned {
namespace {

// 0 if rounding up would overflow: such a request never fits.
std::uint64_t rounded_size(std::uint64_t bytes) {
  return round_up(bytes, page_size);
}

}  // namespace

class Pool::Impl {
 public:
  Impl(MemoryRange range, std::string name)
      : range_(std::move(range)), name_(std::move(name)), free_(range_.bytes(), page_size) {}

  ~Impl() {
    ARTESIAN_CHECK(free_.bytes_free() + bytes_abandoned_ == range_.bytes(), free_.bytes_free(),
                   bytes_abandoned_, range_.bytes());
    if (bytes_abandoned_ != 0) range_.keep_for_ever();
  }

  std::optional<std::uint64_t> take(std::unique_lock<std::mutex>& lock, std::uint64_t size,
                                    Placement placement) noexcept {
    ARTESIAN_CHECK(lock.mutex() == &mutex_ && lock.owns_lock());
    const auto offset = placement == Placement::Low ? free_.take_low(size) : free_.take_high(size);
    if (offset) bytes_in_use_peak_ = std::max(bytes_in_use_peak_, bytes_in_use());
    return offset;
  }

  std::uint64_t bytes_in_use() const noexcept { return range_.bytes() - free_.bytes_free(); }

  Error too_long(std::uint64_t bytes) const {
    return make_error(ErrorCode::Exhausted, name_ + ": no free run of " + format_size(bytes) +
                                                ": " + format_size(free_.bytes_free()) + " of " +
                                                format_size(range_.bytes()) + " are free, " +
                                                format_size(free_.longest()) +
                                                " of them in one piece; raise the memory budget");
  }

  MemoryRange range_;
  const std::string name_;
  mutable std::mutex mutex_;
  FreeList free_;  // the members from here on are under mutex_
  std::uint64_t bytes_abandoned_ = 0;
  std::uint64_t bytes_in_use_peak_ = 0;
};

Result<std::unique_ptr<Pool>> Pool::create(const PoolOptions& options) noexcept {
  if (options.bytes == 0) {
    return make_error(ErrorCode::Invalid, options.name + ": a pool of 0 bytes");
  }
  const std::uint64_t bytes = rounded_size(options.bytes);
  if (bytes == 0) {
    return make_error(ErrorCode::Exhausted,
                      options.name + ": no address range of " + format_size(options.bytes));
  }
  ARTESIAN_TRY(range, MemoryRange::map(bytes, options.name));
  if (const auto placed = range.place(options.nodes); !placed.has_value()) {
    log_once(LogLevel::Warning, placed.error().to_string());
  }
  if (options.lock == Lock::Try) range.lock();
  return std::unique_ptr<Pool>(new Pool(std::make_unique<Impl>(std::move(range), options.name)));
}

std::unique_ptr<Pool> Pool::over(std::span<std::byte> range, const std::string& name,
                                 std::function<void()> release) {
  auto borrowed = MemoryRange::borrow(range.data(), range.size(), std::move(release));
  return std::unique_ptr<Pool>(new Pool(std::make_unique<Impl>(std::move(borrowed), name)));
}

Pool::Pool(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Pool::~Pool() = default;  // Impl checks that every lease was returned

void Pool::fault_in() noexcept {
  const std::lock_guard lock(impl_->mutex_);
  ARTESIAN_CHECK(impl_->bytes_in_use_peak_ == 0, impl_->bytes_in_use_peak_);
  impl_->range_.fault_in();
}

Result<BufferLease> Pool::lease(std::uint64_t bytes, Placement placement) noexcept {
  ARTESIAN_CHECK(bytes > 0);
  const std::uint64_t size = rounded_size(bytes);
  std::unique_lock lock(impl_->mutex_);
  if (size == 0) return impl_->too_long(bytes);
  const auto offset = impl_->take(lock, size, placement);
  if (!offset) return impl_->too_long(bytes);
  return BufferLease(impl_->range_.data() + *offset, size, this);
}

void Pool::give_back(std::byte* data, std::uint64_t size) noexcept {
  ARTESIAN_CHECK(data >= impl_->range_.data(), data, impl_->range_.data());
  const std::lock_guard lock(impl_->mutex_);
  impl_->free_.give(static_cast<std::uint64_t>(data - impl_->range_.data()), size);
}

void Pool::abandon(std::byte* data, std::uint64_t size) noexcept {
  ARTESIAN_CHECK(data >= impl_->range_.data(), data, impl_->range_.data());
  const std::lock_guard lock(impl_->mutex_);
  impl_->bytes_abandoned_ += size;
}

std::span<std::byte> Pool::range() const noexcept {
  return {impl_->range_.data(), impl_->range_.bytes()};
}

PoolStatistics Pool::statistics() const noexcept {
  const std::lock_guard lock(impl_->mutex_);
  return {.bytes_reserved = impl_->range_.bytes(),
          .bytes_in_use = impl_->bytes_in_use(),
          .bytes_in_use_peak = impl_->bytes_in_use_peak_,
          .bytes_free_largest = impl_->free_.longest(),
          .locked = impl_->range_.locked(),
          .bytes_on_huge_pages = impl_->range_.bytes_on_huge_pages(),
          .huge_pages = impl_->range_.huge_pages(),
          .nodes = impl_->range_.nodes()};
}

}  // namespace artesian::pinned
