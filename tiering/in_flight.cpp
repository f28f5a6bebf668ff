#include "tiering/in_flight.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/keep_for_ever.h"

namespace artesian::tiering {
namespace {

constexpr std::size_t entries_at_start = 64;
constexpr int lines_max = 16;
constexpr auto full_pause = std::chrono::microseconds(100);  // a block takes about this long

bool overlap(const aio::Request& first, const aio::Request& second) {
  return first.file == second.file && first.offset < second.offset + second.length &&
         second.offset < first.offset + first.length;
}

}  // namespace

InFlightTable::InFlightTable() {
  entries_.reserve(entries_at_start);
  for (std::size_t i = 0; i < entries_at_start; ++i) entries_.push_back(std::make_unique<Entry>());
}

InFlightTable::~InFlightTable() {
  for (const auto& entry : entries_) {
    ARTESIAN_CHECK(!entry->busy.load(std::memory_order_acquire), entry->request.offset,
                   entry->request.length);
  }
}

InFlightTable::Entry* InFlightTable::find_free() noexcept {
  for (const auto& entry : entries_) {
    if (!entry->busy.load(std::memory_order_acquire)) return entry.get();
  }
  return nullptr;
}

InFlightTable::Entry& InFlightTable::free_entry(Deadline deadline) noexcept {
  Entry* found = find_free();
  while (found == nullptr && entries_.size() >= transfers_max && monotonic_ns() < deadline.at_ns) {
    std::this_thread::sleep_for(full_pause);  // progress threads remove entries
    found = find_free();
  }
  if (found != nullptr) return *found;
  entries_.push_back(std::make_unique<Entry>());
  return *entries_.back();
}

void InFlightTable::expect_no_overlap(const aio::Request& request) const noexcept {
  for (const auto& entry : entries_) {
    if (!entry->busy.load(std::memory_order_acquire)) continue;
    const bool both_read = entry->request.operation == aio::Operation::Read &&
                           request.operation == aio::Operation::Read;
    ARTESIAN_CHECK(both_read || !overlap(entry->request, request), request.offset, request.length,
                   entry->request.offset, entry->request.length);
  }
}

void InFlightTable::begin(aio::Completion& completion, std::uint32_t shard,
                          const aio::Request& request, BufferLease buffer,
                          Deadline deadline) noexcept {
  ARTESIAN_CHECK(request.file != nullptr && request.length != 0, request.offset, request.length);
  expect_no_overlap(request);
  Entry& entry = free_entry(deadline);
  ARTESIAN_CHECK(!entry.busy.load(std::memory_order_relaxed));
  entry.completion = &completion;
  entry.shard = shard;
  entry.request = request;
  entry.begin_ns = monotonic_ns();
  completion.prepare(request, std::move(buffer), &InFlightTable::finished, &entry);
  entry.busy.store(true, std::memory_order_release);
}

void InFlightTable::finished(aio::Completion&, void* context) noexcept {
  const bool was_busy =
      static_cast<Entry*>(context)->busy.exchange(false, std::memory_order_release);
  ARTESIAN_CHECK(was_busy);
}

void InFlightTable::settle(const aio::Completion& completion) noexcept {
  ARTESIAN_CHECK(completion.ready());
  for (const auto& entry : entries_) {
    if (entry->completion != &completion) continue;
    // The callback is about to run on the progress thread: microseconds.
    while (entry->busy.load(std::memory_order_acquire)) std::this_thread::yield();
  }
}

bool InFlightTable::any() const noexcept {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry->busy.load(std::memory_order_acquire); });
}

aio::Completion* InFlightTable::write_of(std::uint32_t shard) const noexcept {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [shard](const auto& entry) {
    return entry->busy.load(std::memory_order_acquire) && entry->shard == shard &&
           entry->request.operation == aio::Operation::Write;
  });
  return found != entries_.end() ? (*found)->completion : nullptr;
}

std::string InFlightTable::describe(std::uint64_t now_ns) const {
  std::string text;
  int count = 0;
  for (const auto& entry : entries_) {
    if (!entry->busy.load(std::memory_order_acquire) || ++count > lines_max) continue;
    const aio::Request& request = entry->request;
    const double age = static_cast<double>(now_ns - entry->begin_ns) * 1e-9;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.3f s", age);
    text += fmt::format("{}{} of {} at offset {}, length {}, for {}", text.empty() ? "" : "; ",
                        request.operation == aio::Operation::Read ? "read" : "write",
                        request.file->path(), request.offset, request.length, seconds);
  }
  if (count > lines_max) text += fmt::format("; and {} more", count - lines_max);
  return text.empty() ? "nothing" : text;
}

void InFlightTable::abandon() noexcept {
  for (auto& entry : entries_) {
    if (entry->busy.load(std::memory_order_acquire)) keep_for_ever(std::move(entry));
  }
  std::erase(entries_, nullptr);
}

}  // namespace artesian::tiering
