// LocalGroup: N ranks as threads of one process. Each operation waits until all ranks have reached
// it, moves the bytes, and returns, after random delays if told to. It fails as groups of processes
// do: if a rank is gone, does not arrive within the deadline, or calls another operation.
#pragma once

#include <algorithm>
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
      : options_(options), ranks_(ranks) {}

  std::uint32_t ranks() const noexcept { return ranks_; }
  std::uint64_t delays() const noexcept { return options_.delays; }
  double deadline_seconds() const noexcept { return options_.deadline_seconds; }
  /// Operations that all ranks have done.
  std::uint64_t operations() const noexcept { return operations_; }

  /// An operation that is under way: each rank's memory for it.
  struct Operation {
    struct Offer {
      std::string what;
      std::vector<std::span<const std::byte>> sent;
      std::vector<std::span<std::byte>> received;
    };
    std::vector<Offer> offers;
    std::uint32_t come = 0;
    std::uint32_t served = 0;
  };

  Result<std::shared_ptr<Operation>> offer(std::uint32_t rank, std::uint64_t number,
                                           Operation::Offer given) {
    const std::lock_guard lock(mutex_);
    if (failed_) return *failed_;
    auto& operation = operations_under_way_[number];
    if (operation == nullptr) {
      operation = std::make_shared<Operation>();
      operation->offers.resize(ranks());
    }
    operation->offers[rank] = std::move(given);
    auto shared = operation;
    if (++shared->come == ranks()) {
      operations_under_way_.erase(number);
      changed_.notify_all();
    }
    return shared;
  }

  Result<void> take(std::uint32_t rank, Operation& operation) {
    std::unique_lock lock(mutex_);
    const auto& mine = operation.offers[rank];
    ARTESIAN_TRY_VOID(meet(lock, operation.come, mine.what));
    // All have arrived. None returns before all have taken their part.
    for (std::uint32_t peer = 0; peer < ranks() && !failed_; ++peer) {
      if (peer == rank) continue;
      const auto& theirs = operation.offers[peer];
      const std::span<const std::byte> bytes = theirs.sent[rank];
      if (bytes.size() != mine.received[peer].size() || theirs.what != mine.what) {
        failed_ = make_error(ErrorCode::Invalid,
                             "rank " + std::to_string(peer) + " is in \"" + theirs.what +
                                 "\", rank " + std::to_string(rank) + " in \"" + mine.what + "\"");
        changed_.notify_all();
        break;
      }
      if (!bytes.empty()) std::memcpy(mine.received[peer].data(), bytes.data(), bytes.size());
    }
    if (failed_) return *failed_;
    if (rank == 0) ++operations_;
    if (++operation.served == ranks()) changed_.notify_all();
    return meet(lock, operation.served, mine.what);
  }

  /// The rank has ended: ranks that wait for it fail.
  void leave(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    if (!failed_) {
      failed_ = make_error(ErrorCode::PeerLost, "rank " + std::to_string(rank) + " is gone");
    }
    changed_.notify_all();
  }

 private:
  /// Waits until `count` has reached the number of ranks.
  Result<void> meet(std::unique_lock<std::mutex>& lock, const std::uint32_t& count,
                    const std::string& what) {
    const auto deadline = std::chrono::duration<double>(options_.deadline_seconds);
    const bool met =
        changed_.wait_for(lock, deadline, [&] { return count == ranks() || failed_.has_value(); });
    if (met && count == ranks()) return {};
    if (!failed_) failed_ = make_error(ErrorCode::PeerLost, "nobody has come to \"" + what + "\"");
    changed_.notify_all();
    return *failed_;
  }

  const LocalRanksOptions options_;
  const std::uint32_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Operation>> operations_under_way_;  // incomplete
  std::uint64_t operations_ = 0;
  std::optional<Error> failed_;
};

class LocalGroup final : public comm::Group {
 public:
  /// Bytes that this rank has sent in operations of that kind.
  std::uint64_t bytes_sent_of(const std::string& kind) const {
    const auto found = sent_.find(kind);
    return found == sent_.end() ? 0 : found->second;
  }

  /// Counts bytes that this rank has sent beside the group's own operations.
  void count(const std::string& kind, std::uint64_t bytes) { sent_[kind] += bytes; }
  LocalRanks& shared() noexcept { return shared_; }
  double deadline_seconds() const noexcept override { return shared_.deadline_seconds(); }

  /// Operations that this rank waited for after later ones, of another kind, had begun.
  std::uint64_t beside_others() const noexcept { return beside_; }

  LocalGroup(LocalRanks& ranks, std::uint32_t rank)
      : Group({.rank = rank,
               .ranks = ranks.ranks(),
               .local_rank = rank,
               .local_ranks = ranks.ranks()}),
        shared_(ranks) {}

 private:
  class Moving final : public Begun {
   public:
    Moving(LocalGroup& group, std::string kind, std::uint64_t number,
           std::shared_ptr<LocalRanks::Operation> operation)
        : group_(group),
          kind_(std::move(kind)),
          number_(number),
          operation_(std::move(operation)) {}
    Result<void> wait() override {
      const bool beside = std::any_of(
          group_.begun_.begin(), group_.begun_.end(),
          [this](const auto& last) { return last.first != kind_ && last.second > number_; });
      if (beside) ++group_.beside_;
      group_.delay(2 * number_ + 1);
      return group_.shared_.take(group_.rank(), *operation_);
    }

   private:
    LocalGroup& group_;
    const std::string kind_;
    const std::uint64_t number_;
    const std::shared_ptr<LocalRanks::Operation> operation_;
  };

  Result<std::unique_ptr<Begun>> begin(std::span<const std::span<const std::byte>> sent,
                                       std::span<const std::span<std::byte>> received,
                                       const comm::What& what, std::uint64_t operation) override {
    delay(2 * operation);
    begun_[what.kind] = operation;
    for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
      if (peer != rank()) sent_[what.kind] += sent[peer].size();
    }
    ARTESIAN_TRY(offered, shared_.offer(rank(), operation,
                                        {what.text(),
                                         {sent.begin(), sent.end()},
                                         {received.begin(), received.end()}}));
    return std::unique_ptr<Begun>(
        std::make_unique<Moving>(*this, what.kind, operation, std::move(offered)));
  }

  void delay(std::uint64_t place) const {
    if (shared_.delays() == 0) return;
    const std::uint64_t draw = random_word(shared_.delays(), rank(), place);
    std::this_thread::sleep_for(std::chrono::microseconds(draw % 500));
  }

  LocalRanks& shared_;
  std::map<std::string, std::uint64_t> sent_;   // bytes, by kind
  std::map<std::string, std::uint64_t> begun_;  // the last operation, by kind
  std::uint64_t beside_ = 0;                    // see beside_others()
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
