// BlockCache: caches blocks of a checkpoint for readers that go through it in several sequences at
// once. When a block is taken, the cache's own threads read the next blocks ahead, since a disk
// with only one transfer at a time idles between transfers. Each block is read once, even if
// several readers ask at the same time, and is evicted when it is the least recently used. Errors
// are not cached: the next request reads again.
//
// Thread: any, several at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"

namespace artesian::zero3 {

/// Bytes aligned for direct transfers.
struct AlignedBytes {
  explicit AlignedBytes(std::uint64_t length) noexcept;
  ~AlignedBytes() { std::free(data); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  const std::uint64_t size;
  std::byte* const data;
};
using SharedBytes = std::shared_ptr<const AlignedBytes>;  // shared with those who copy out of it

class BlockCache {
 public:
  struct Key {
    std::size_t file = 0;
    std::uint64_t block = 0;
    bool operator==(const Key&) const = default;
  };
  struct Options {
    std::size_t blocks = 24;  // most blocks cached or being read, besides those that are waited for
    // blocks read ahead after one that is taken, unless they were taken before
    std::uint64_t ahead = 2;
    std::size_t threads = 4;
  };
  /// Reads a block. Thread: any, several at once.
  using Load = std::function<Result<SharedBytes>(Key)>;

  /// `blocks_of[file]`: the number of blocks of each file.
  BlockCache(Load load, std::vector<std::uint64_t> blocks_of, Options options);
  ~BlockCache();  // waits for reads under way
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Returns a block. Errors: those of the load.
  Result<SharedBytes> get(Key key) noexcept;

 private:
  struct Entry {
    Key key;
    std::optional<Result<SharedBytes>>
        outcome;  // empty while the block is being read or waits for that
    bool begun = false;
    int waiting = 0;
  };
  using Entries = std::list<Entry>;

  Entries::iterator find(Key key);
  Entries::iterator add(Key key);
  void want_behind(Key key);
  void make_room();
  void load(std::unique_lock<std::mutex>& lock, Entries::iterator entry);
  void work();

  const Load load_;
  const std::vector<std::uint64_t> blocks_of_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable wanted_;  // waited on by threads
  std::condition_variable loaded_;  // waited on by callers
  Entries entries_;                 // most recently used last
  std::deque<Key> queue_;
  std::vector<std::vector<bool>> taken_;  // whether a block was taken, by file and block
  bool ends_ = false;
  std::vector<std::thread> threads_;  // started on the first request
};

}  // namespace artesian::zero3
