#include "pinned/free_list.h"

#include <algorithm>

#include "base/check.h"

namespace artesian::pinned {

FreeList::FreeList(std::uint64_t bytes, std::uint64_t grain)
    : bytes_(bytes), grain_(grain), bytes_free_(bytes) {
  ARTESIAN_CHECK(grain > 0 && bytes > 0 && bytes % grain == 0, bytes, grain);
  // Free runs never touch each other, so there are at most half as many as grains (the reserved
  // memory stays untouched until used).
  runs_.reserve(bytes / grain / 2 + 1);
  runs_.push_back({.offset = 0, .length = bytes});
}

std::optional<std::uint64_t> FreeList::take_low(std::uint64_t length) noexcept {
  ARTESIAN_CHECK(length > 0 && length % grain_ == 0, length);
  const auto run = std::find_if(runs_.begin(), runs_.end(),
                                [length](const Run& each) { return each.length >= length; });
  if (run == runs_.end()) return std::nullopt;
  const std::uint64_t offset = run->offset;
  run->offset += length;
  run->length -= length;
  if (run->length == 0) runs_.erase(run);
  bytes_free_ -= length;
  return offset;
}

std::optional<std::uint64_t> FreeList::take_high(std::uint64_t length) noexcept {
  ARTESIAN_CHECK(length > 0 && length % grain_ == 0, length);
  const auto run = std::find_if(runs_.rbegin(), runs_.rend(),
                                [length](const Run& each) { return each.length >= length; });
  if (run == runs_.rend()) return std::nullopt;
  run->length -= length;
  const std::uint64_t offset = run->offset + run->length;
  if (run->length == 0) runs_.erase(std::prev(run.base()));
  bytes_free_ -= length;
  return offset;
}

void FreeList::take_at(std::uint64_t offset, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(length > 0 && length % grain_ == 0 && offset % grain_ == 0, offset, length);
  const auto next =
      std::upper_bound(runs_.begin(), runs_.end(), offset,
                       [](std::uint64_t wanted, const Run& run) { return wanted < run.offset; });
  ARTESIAN_CHECK(next != runs_.begin(), offset);
  const auto run = std::prev(next);
  const std::uint64_t end = run->offset + run->length;
  ARTESIAN_CHECK(offset + length <= end, offset, length, end);
  bytes_free_ -= length;
  run->length = offset - run->offset;
  const Run rest{.offset = offset + length, .length = end - offset - length};
  if (run->length == 0 && rest.length == 0) {
    runs_.erase(run);
  } else if (run->length == 0) {
    *run = rest;
  } else if (rest.length != 0) {
    ARTESIAN_CHECK(runs_.size() < runs_.capacity(), runs_.size());
    runs_.insert(next, rest);
  }
}

void FreeList::give(std::uint64_t offset, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(length > 0 && length % grain_ == 0 && offset % grain_ == 0, offset, length);
  ARTESIAN_CHECK(offset < bytes_ && length <= bytes_ - offset, offset, length, bytes_);
  const auto next =
      std::upper_bound(runs_.begin(), runs_.end(), offset,
                       [](std::uint64_t wanted, const Run& run) { return wanted < run.offset; });
  const bool has_next = next != runs_.end();
  const bool has_previous = next != runs_.begin();
  if (has_next) ARTESIAN_CHECK(offset + length <= next->offset, offset, length, next->offset);
  const bool joins_next = has_next && offset + length == next->offset;
  bytes_free_ += length;
  if (has_previous) {
    const auto previous = std::prev(next);
    const std::uint64_t end = previous->offset + previous->length;
    ARTESIAN_CHECK(end <= offset, end, offset, length);  // otherwise it was freed twice
    if (end == offset) {
      previous->length += length + (joins_next ? next->length : 0);
      if (joins_next) runs_.erase(next);
      return;
    }
  }
  if (joins_next) {
    next->offset = offset;
    next->length += length;
    return;
  }
  ARTESIAN_CHECK(runs_.size() < runs_.capacity(), runs_.size());
  runs_.insert(next, {.offset = offset, .length = length});
}

std::uint64_t FreeList::longest() const noexcept {
  std::uint64_t length = 0;
  for (const Run& run : runs_) length = std::max(length, run.length);
  return length;
}

}  // namespace artesian::pinned
