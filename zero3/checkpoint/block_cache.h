// BlockCache: blocks of a checkpoint that somebody goes through, in several rows at once. Whoever
// takes a block finds those behind it on their way: threads of its own read them, since a disk that
// has one transfer at a time is idle between two. Each block is read once, however many ask for it
// at the same time, and kept until others have been used since. Errors are kept for nobody: the
// next who asks reads again.
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

/// Bytes that are aligned for transfers past the page cache.
struct AlignedBytes {
  explicit AlignedBytes(std::uint64_t length) noexcept;
  ~AlignedBytes() { std::free(data); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  const std::uint64_t size;
  std::byte* const data;
};
using SharedBytes = std::shared_ptr<const AlignedBytes>;  // shared_ptr: by who copies out of it

class BlockCache {
 public:
  struct Key {
    std::size_t file = 0;
    std::uint64_t block = 0;
    bool operator==(const Key&) const = default;
  };
  struct Options {
    std::size_t blocks = 24;  // kept, or on their way, at most; but those that are waited for
    std::uint64_t ahead = 2;  // read behind one that is taken, unless they were taken before
    std::size_t threads = 4;
  };
  /// Reads a block. Thread: any, several at once.
  using Load = std::function<Result<SharedBytes>(Key)>;

  /// `blocks_of[file]`: how many it has.
  BlockCache(Load load, std::vector<std::uint64_t> blocks_of, Options options);
  ~BlockCache();  // waits for reads under way
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Errors: those of the load.
  Result<SharedBytes> get(Key key) noexcept;

 private:
  struct Entry {
    Key key;
    std::optional<Result<SharedBytes>> outcome;  // nothing: it is on its way, or waits for that
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
  Entries entries_;                 // the last used one last
  std::deque<Key> queue_;
  std::vector<std::vector<bool>> taken_;  // whether a block was taken, by file and block
  bool ends_ = false;
  std::vector<std::thread> threads_;  // started with the first block
};

}  // namespace artesian::zero3
