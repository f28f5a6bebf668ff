// InFlightTable: the transfers of a tier store that the engine has not finished. It answers
// `writing`, detects overlapping transfers, and describes what hangs when a deadline passes.
//
// The table is bounded: `begin` waits until fewer than `transfers_max` are in flight. If none ends
// before the deadline, the disk hangs, and those who wait for the transfers get the error.
//
// Note [A transfer's last touch]: a completion becomes ready just before its callback runs, and its
// owner may then reuse or destroy it. So the callback touches only the table's own entry, and
// entries live as long as the table. `settle` covers the moment between readiness and callback.
//
// Thread: all from the compute thread, except the callback, on progress threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "base/clock.h"

namespace artesian::tiering {

class InFlightTable {
 public:
  static constexpr std::size_t transfers_max = 4096;

  InFlightTable();
  ~InFlightTable();  // checks that nothing is in flight, unless `abandon` was called

  /// Prepares the completion for a transfer of shard `shard` and keeps it in the table until it is
  /// ready. Checks that no transfer in flight overlaps it, unless both are reads.
  void begin(aio::Completion& completion, std::uint32_t shard, const aio::Request& request,
             BufferLease buffer, Deadline deadline) noexcept;
  /// Updates the table for a completion that is ready.
  void settle(const aio::Completion& completion) noexcept;
  bool any() const noexcept;
  bool writing(std::uint32_t shard) const noexcept { return write_of(shard) != nullptr; }
  /// Returns a write of the shard that is in flight, or null.
  aio::Completion* write_of(std::uint32_t shard) const noexcept;
  /// One clause per transfer: operation, file, offset, length, age; at most `lines_max`.
  std::string describe(std::uint64_t now_ns) const;
  /// For an engine that will never finish: keeps the entries alive for ever, as the kernel may
  /// still report.
  void abandon() noexcept;

 private:
  struct Entry {
    std::atomic<bool> busy{false};
    aio::Completion* completion = nullptr;
    std::uint32_t shard = 0;
    aio::Request request;
    std::uint64_t begin_ns = 0;
  };

  static void finished(aio::Completion& completion, void* context) noexcept;
  Entry* find_free() noexcept;
  Entry& free_entry(Deadline deadline) noexcept;
  void expect_no_overlap(const aio::Request& request) const noexcept;

  // as many as were ever in flight at once
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace artesian::tiering
