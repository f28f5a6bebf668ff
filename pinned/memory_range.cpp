#include "pinned/memory_range.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/huge_page.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "pinned/aligned_mapping.h"
#include "pinned/huge_pages.h"

namespace artesian::pinned {
namespace {

constexpr std::uint64_t widened_from = 64ull << 10;  // see Note [Small ranges]

// After each range, so that no other mapping adjoins it.
constexpr std::uint64_t guard_bytes = 4096;
// In smaller ranges some small pages are normal, and not worth a warning.
constexpr std::uint64_t told_from = 32ull << 20;

// The text contains neither name nor size, so that log_once logs it once for the whole process.
void warn_not_locked(const std::string& reason, const std::string& remedy) {
  log_once(LogLevel::Warning, "cannot page-lock transfer buffers: " + reason +
                                  "; going on with pageable memory, which gives the same results, "
                                  "slower. " +
                                  remedy);
}

void warn_refused(int system_error) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  warn_not_locked(system_error_text(system_error) + "; the memlock limit is " +
                      (unlimited ? "unlimited" : format_size(limit.rlim_cur)),
                  "To lift the limit: `ulimit -l unlimited` before the start, or "
                  "LimitMEMLOCK=infinity in the systemd unit");
}

}  // namespace

Result<MemoryRange> MemoryRange::map(std::uint64_t bytes, const std::string& name) noexcept {
  ARTESIAN_CHECK(bytes > 0 && bytes % 4096 == 0, bytes);
  // Widens small ranges: see Note [Small ranges].
  const bool widen =
      bytes < huge_page_size && bytes >= widened_from && huge_pages_allowed() == HugePages::Allowed;
  const std::uint64_t kept_bytes = widen ? huge_page_size : bytes;
  std::byte* const data = map_aligned(kept_bytes + guard_bytes, PROT_READ | PROT_WRITE);
  if (data == nullptr) {
    return make_error(ErrorCode::Exhausted,
                      "cannot reserve " + format_size(bytes) + " of memory for " + name +
                          "; lower the memory budget",
                      errno);
  }
  MemoryRange range(data, bytes, kept_bytes);
  (void)mprotect(data + kept_bytes, guard_bytes, PROT_NONE);
  (void)madvise(data, kept_bytes, MADV_HUGEPAGE);  // the result is counted later
  // A forked child (such as a data loader) must neither copy nor write memory that is in flight
  // here.
  (void)madvise(data, kept_bytes, MADV_DONTFORK);
  return range;
}

MemoryRange MemoryRange::borrow(std::byte* data, std::uint64_t bytes,
                                std::function<void()> release) {
  ARTESIAN_CHECK(data != nullptr && bytes > 0 && bytes % 4096 == 0, bytes);
  ARTESIAN_CHECK(release != nullptr);
  MemoryRange range(data, bytes, bytes);
  range.release_ = std::move(release);
  return range;
}

MemoryRange::MemoryRange(MemoryRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      bytes_mapped_(std::exchange(other.bytes_mapped_, 0)),
      locked_(other.locked_),
      bytes_huge_(other.bytes_huge_),
      nodes_(std::move(other.nodes_)),
      release_(std::move(other.release_)) {}

MemoryRange::~MemoryRange() {
  if (data_ == nullptr) return;
  if (release_) {
    release_();
    return;
  }
  ARTESIAN_CHECK(munmap(data_, bytes_mapped_ + guard_bytes) == 0, data_, bytes_mapped_, errno);
}

Result<void> MemoryRange::place(const NodePolicy& policy) noexcept {
  ARTESIAN_CHECK(!release_);
  if (policy.nodes.empty()) return {};
  constexpr std::uint32_t word_bits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(policy.nodes.back() / word_bits + 1);
  for (const std::uint32_t node : policy.nodes) mask[node / word_bits] |= 1ul << node % word_bits;
  // Both modes are preferences rather than bindings, as a run that needs more than a node has must
  // continue.
  const int mode = policy.nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  // The kernel reads one bit less than told.
  const unsigned long bits = mask.size() * word_bits + 1;
  if (syscall(SYS_mbind, data_, bytes_mapped_, mode, mask.data(), bits, 0u) == 0) {
    nodes_ = policy;
    return {};
  }
  // Without the node's number, so that there is one warning for all pools of a process.
  return make_error(ErrorCode::Unsupported,
                    "cannot place memory on a NUMA node; going on with memory of any node, which "
                    "gives the same results, slower. In a container: --cap-add=SYS_NICE",
                    errno);
}

void MemoryRange::lock() noexcept {
  ARTESIAN_CHECK(!release_);
  // Locking faults everything in at once. If memory is short the kernel does not refuse that but
  // kills the process.
  const std::uint64_t available = available_memory();
  if (available != 0 && bytes_ > available) {
    warn_not_locked("there is less memory available than the budgets allow",
                    "To lock it: lower the memory budgets, or make room");
    return;
  }
  // Locking a part of a huge page would split it.
  locked_ = mlock(data_, bytes_mapped_) == 0 || mlock(data_, bytes_) == 0;
  if (locked_) return count_huge_pages();
  const int system_error = errno;
  // If memory ran out, a part of the range was already locked: unlock it.
  (void)munlock(data_, bytes_mapped_);
  (void)madvise(data_, bytes_mapped_, MADV_DONTNEED);
  warn_refused(system_error);
}

void MemoryRange::fault_in() noexcept {
  ARTESIAN_CHECK(!release_);
  if (locked_ || bytes_ > available_memory()) return;
  volatile std::byte* const bytes = data_;
  for (std::uint64_t at = 0; at < bytes_; at += 4096) bytes[at] = std::byte{0};
  count_huge_pages();
}

std::uint64_t MemoryRange::bytes_on_huge_pages() const noexcept {
  return std::min(bytes_huge_, bytes_);
}

bool MemoryRange::huge_pages() const noexcept {
  return bytes_huge_ >= round_down(bytes_mapped_, huge_page_size) / 4 * 3;
}

void MemoryRange::count_huge_pages() noexcept {
  const std::uint64_t most = round_down(bytes_mapped_, huge_page_size);
  if (most == 0) return;
  const PageCount count = count_pages(data_, bytes_mapped_);
  bytes_huge_ = count.bytes_huge;
  const bool chance = most < told_from && huge_pages_allowed() == HugePages::Allowed;
  // Under a sanitizer locked memory need not be resident.
  if (!huge_pages() && !chance && count.bytes_resident >= most) warn_of_small_pages(count);
}

}  // namespace artesian::pinned
