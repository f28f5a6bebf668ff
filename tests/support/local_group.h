// LocalGroup: N ranks as threads of one process. Each operation waits until all ranks have come to
// it, moves the bytes, and lets them go, after delays by chance if it is told to. It fails as
// groups of processes do: a rank that is gone, one that does not come within the deadline, one that
// does something else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "comm/group.h"

namespace artesian::test_support {

struct LocalRanksOptions {
  double deadline_seconds = 60.0;
  std::uint64_t delays = 0;  // seed of delays up to a millisecond; 0: none
};

/// What the ranks of one run share.
class LocalRanks {
 public:
  explicit LocalRanks(std::uint32_t ranks, LocalRanksOptions options = {})
      : options_(options), offers_(ranks) {}

  std::uint32_t ranks() const noexcept { return static_cast<std::uint32_t>(offers_.size()); }
  std::uint64_t delays() const noexcept { return options_.delays; }
  /// Operations that all ranks have done.
  std::uint64_t operations() const noexcept { return operations_; }

  Result<void> move(std::uint32_t rank, std::span<const std::span<const std::byte>> sent,
                    std::span<const std::span<std::byte>> received, const std::string& what) {
    std::unique_lock lock(mutex_);
    if (failed_) return *failed_;
    offers_[rank] = {what, {sent.begin(), sent.end()}};
    if (auto met = meet(lock, what); !met.has_value()) return met;
    // All have come, and none goes on before all have taken what is theirs.
    for (std::uint32_t peer = 0; peer < ranks() && !failed_; ++peer) {
      if (peer == rank) continue;
      const std::span<const std::byte> bytes = offers_[peer].sent[rank];
      if (bytes.size() != received[peer].size() || offers_[peer].what != what) {
        failed_ = make_error(ErrorCode::Invalid, "rank " + std::to_string(peer) + " is in \"" +
                                                     offers_[peer].what + "\", rank " +
                                                     std::to_string(rank) + " in \"" + what + "\"");
        changed_.notify_all();
        break;
      }
      if (!bytes.empty()) std::memcpy(received[peer].data(), bytes.data(), bytes.size());
    }
    if (failed_) return *failed_;
    if (rank == 0) ++operations_;
    return meet(lock, what);
  }

  /// The rank has ended: whoever waits for it fails.
  void leave(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    if (!failed_) {
      failed_ = make_error(ErrorCode::PeerLost, "rank " + std::to_string(rank) + " is gone");
    }
    changed_.notify_all();
  }

 private:
  struct Offer {
    std::string what;
    std::vector<std::span<const std::byte>> sent;
  };
  Result<void> meet(std::unique_lock<std::mutex>& lock, const std::string& what) {
    const std::uint64_t turn = turn_;
    if (++come_ == ranks()) {
      come_ = 0;
      ++turn_;
      changed_.notify_all();
      return {};
    }
    const auto deadline = std::chrono::duration<double>(options_.deadline_seconds);
    const bool met =
        changed_.wait_for(lock, deadline, [&] { return turn_ != turn || failed_.has_value(); });
    if (met && turn_ != turn) return {};
    if (!failed_) failed_ = make_error(ErrorCode::PeerLost, "nobody has come to \"" + what + "\"");
    changed_.notify_all();
    return *failed_;
  }

  const LocalRanksOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offers_;
  std::uint32_t come_ = 0;
  std::uint64_t turn_ = 0;
  std::uint64_t operations_ = 0;
  std::optional<Error> failed_;
};

class LocalGroup final : public comm::Group {
 public:
  /// Bytes that this rank has sent in operations that are about something of that kind.
  std::uint64_t bytes_sent_of(const std::string& kind) const {
    const auto found = sent_.find(kind);
    return found == sent_.end() ? 0 : found->second;
  }

  LocalGroup(LocalRanks& ranks, std::uint32_t rank)
      : Group({.rank = rank,
               .ranks = ranks.ranks(),
               .local_rank = rank,
               .local_ranks = ranks.ranks()}),
        shared_(ranks) {}

 private:
  Result<void> move(std::span<const std::span<const std::byte>> sent,
                    std::span<const std::span<std::byte>> received, const comm::What& what,
                    std::uint64_t operation) override {
    if (shared_.delays() != 0) {
      const std::uint64_t draw = random_word(shared_.delays(), rank(), operation);
      std::this_thread::sleep_for(std::chrono::microseconds(draw % 1000));
    }
    for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
      if (peer != rank()) sent_[what.kind] += sent[peer].size();
    }
    return shared_.move(rank(), sent, received, what.text());
  }

  LocalRanks& shared_;
  std::map<std::string, std::uint64_t> sent_;  // bytes, by kind
};

/// Runs `work` as every rank of a run, each in a thread of its own.
inline void run_ranks(LocalRanks& ranks, const std::function<void(comm::Group& group)>& work) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      LocalGroup group(ranks, rank);
      work(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace artesian::test_support
