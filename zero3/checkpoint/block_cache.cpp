#include "zero3/checkpoint/block_cache.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace artesian::zero3 {

AlignedBytes::AlignedBytes(std::uint64_t length) noexcept
    : size(length), data(static_cast<std::byte*>(std::aligned_alloc(4096, length))) {
  ARTESIAN_CHECK(data != nullptr, length);
}

BlockCache::BlockCache(Load load, std::vector<std::uint64_t> blocks_of, Options options)
    : load_(std::move(load)), blocks_of_(std::move(blocks_of)), options_(options) {
  ARTESIAN_CHECK(options_.blocks != 0);
  for (const std::uint64_t blocks : blocks_of_) taken_.emplace_back(blocks, false);
}

BlockCache::~BlockCache() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const Entry& entry : entries_) ARTESIAN_CHECK(entry.waiting == 0, entry.waiting);
}

BlockCache::Entries::iterator BlockCache::find(Key key) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return entry.key == key; });
}

BlockCache::Entries::iterator BlockCache::add(Key key) {
  make_room();
  entries_.push_back({.key = key, .outcome = {}});
  return std::prev(entries_.end());
}

/// Removes the least recently used blocks that no caller waits for.
void BlockCache::make_room() {
  for (auto entry = entries_.begin();
       entry != entries_.end() && entries_.size() >= options_.blocks;) {
    const bool goes = entry->outcome.has_value() && entry->waiting == 0;
    entry = goes ? entries_.erase(entry) : std::next(entry);
  }
}

/// Asks the threads to read the blocks after this one. If threads could not be created, each block
/// is read when it is taken.
void BlockCache::want_behind(Key key) {
  if (threads_.empty()) {
    try {
      for (std::size_t index = 0; index < options_.threads; ++index) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {
      if (threads_.empty()) return;
    }
  }
  const std::uint64_t end = std::min(blocks_of_[key.file], key.block + 1 + options_.ahead);
  for (Key next{key.file, key.block + 1}; next.block < end; ++next.block) {
    if (entries_.size() >= options_.blocks) make_room();
    if (entries_.size() >= options_.blocks) return;
    if (taken_[next.file][next.block] || find(next) != entries_.end()) continue;
    add(next);
    queue_.push_back(next);
    wanted_.notify_one();
  }
}

/// Reads an entry's block without the lock.
void BlockCache::load(std::unique_lock<std::mutex>& lock, Entries::iterator entry) {
  ARTESIAN_CHECK(!entry->begun && !entry->outcome.has_value(), entry->key.file, entry->key.block);
  entry->begun = true;
  lock.unlock();
  Result<SharedBytes> outcome = load_(entry->key);
  lock.lock();
  entry->outcome = std::move(outcome);
  loaded_.notify_all();
}

void BlockCache::work() {
  sigset_t all;
  sigfillset(&all);
  // The process's signals are handled by other threads.
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return ends_ || !queue_.empty(); });
    if (ends_) return;
    const Key key = queue_.front();
    queue_.pop_front();
    const auto entry = find(key);
    if (entry == entries_.end() || entry->begun) continue;  // read when somebody needs it
    load(lock, entry);
  }
}

Result<SharedBytes> BlockCache::get(Key key) noexcept {
  ARTESIAN_CHECK(key.file < blocks_of_.size() && key.block < blocks_of_[key.file], key.block);
  std::unique_lock lock(mutex_);
  auto entry = find(key);
  const bool failed = entry != entries_.end() && entry->waiting == 0 &&
                      entry->outcome.has_value() && !entry->outcome->has_value();
  if (failed) entries_.erase(entry);  // no caller waits for it yet
  if (failed || entry == entries_.end()) entry = add(key);
  taken_[key.file][key.block] = true;
  entries_.splice(entries_.end(), entries_, entry);
  ++entry->waiting;
  want_behind(key);
  if (!entry->begun) load(lock, entry);
  loaded_.wait(lock, [&] { return entry->outcome.has_value(); });
  --entry->waiting;
  if (entry->outcome->has_value()) return entry->outcome->value();
  Error error = entry->outcome->error();
  if (entry->waiting == 0) entries_.erase(entry);
  return error;
}

}  // namespace artesian::zero3
