#include "zero3/torch/torch_group.h"

#include <ATen/ops/from_blob.h>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/detached_call.h"

namespace artesian::zero3 {
namespace {

using std::chrono::milliseconds;

/// The first line of a backend's message, without source locations.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

class TorchGroup final : public comm::Group {
 public:
  TorchGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
             const TorchGroupOptions& options)
      : Group(options.place),
        backend_(std::move(backend)),
        store_(std::move(store)),
        deadline_(static_cast<std::int64_t>(std::llround(options.deadline_seconds * 1e3))) {}

  Error overdue(const std::string& what) const override {
    return silent(rank() == 0 ? 1 : 0, what);
  }
  double deadline_seconds() const noexcept override {
    return static_cast<double>(deadline_.count()) * 1e-3;
  }

 private:
  struct Transfer {
    std::uint32_t peer;
    c10::intrusive_ptr<c10d::Work> work;
  };
  class Moving final : public Begun {
   public:
    Moving(const TorchGroup& group, std::string what) : group_(group), what_(std::move(what)) {}
    Result<void> wait() override { return group_.wait(transfers, what_); }
    std::vector<Transfer> transfers;

   private:
    const TorchGroup& group_;
    const std::string what_;
  };

  Result<std::unique_ptr<Begun>> begin(std::span<const std::span<const std::byte>> sent,
                                       std::span<const std::span<std::byte>> received,
                                       const comm::What& what, std::uint64_t operation) override {
    const auto tag = static_cast<int>(operation & std::uint64_t{std::numeric_limits<int>::max()});
    auto moving = std::make_unique<Moving>(*this, what.text());
    std::uint32_t peer = 0;
    const auto in_flight = [&](auto bytes, const auto& start) {
      // Gloo needs tensors; it writes only to received bytes.
      auto* const data = const_cast<std::byte*>(bytes.data());
      std::vector<at::Tensor> tensors{
          at::from_blob(data, {static_cast<std::int64_t>(bytes.size())}, at::kByte)};
      moving->transfers.push_back({peer, start(tensors)});
    };
    try {
      // In a different order on each rank, so that not all send to the same rank.
      for (std::uint32_t step = 1; step < ranks(); ++step) {
        peer = (rank() + ranks() - step) % ranks();
        if (received[peer].empty()) continue;
        in_flight(received[peer], [&](std::vector<at::Tensor>& tensors) {
          return backend_->recv(tensors, static_cast<int>(peer), tag);
        });
      }
      for (std::uint32_t step = 1; step < ranks(); ++step) {
        peer = (rank() + step) % ranks();
        if (sent[peer].empty()) continue;
        in_flight(sent[peer], [&](std::vector<at::Tensor>& tensors) {
          return backend_->send(tensors, static_cast<int>(peer), tag);
        });
      }
    } catch (const std::exception& error) {
      return lost(peer, what.text(), error.what());
    }
    return std::unique_ptr<Begun>(std::move(moving));
  }

  Result<void> wait(const std::vector<Transfer>& transfers, const std::string& what) const {
    const auto begin = std::chrono::steady_clock::now();
    std::uint32_t peer = 0;
    try {
      for (const Transfer& transfer : transfers) {
        peer = transfer.peer;
        const auto gone =
            std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
        transfer.work->wait(std::max(deadline_ - gone, milliseconds(1)));
      }
    } catch (const std::exception& error) {
      const auto gone = std::chrono::steady_clock::now() - begin;
      const bool timed_out = gone >= deadline_;
      return timed_out ? silent(peer, what) : lost(peer, what, error.what());
    }
    return {};
  }

  Error lost(std::uint32_t peer, const std::string& what, const std::string& why) const {
    return make_error(ErrorCode::PeerLost,
                      fmt::format("rank {} is gone: rank {} was waiting for {}: {}", peer, rank(),
                                  what, first_line(why)));
  }

  Error silent(std::uint32_t peer, const std::string& what) const {
    // Rank 0 serves the store, unless the launcher does, which then ends all ranks anyway.
    std::string names = silent_ranks(store_, place()).value_or("0");
    if (names.empty()) names = std::to_string(peer);
    return make_error(
        ErrorCode::PeerLost,
        fmt::format("rank {} has not answered for {:.0f} s: rank {} was waiting for {}", names,
                    deadline_seconds(), rank(), what));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::intrusive_ptr<c10d::Store> store_;
  const milliseconds deadline_;
};

}  // namespace

std::string ranks_without(c10d::Store& store, const std::string& prefix, std::uint32_t ranks) {
  std::string names;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (store.check({prefix + std::to_string(rank)})) continue;
    names += (names.empty() ? "" : ", ") + std::to_string(rank);
  }
  return names;
}

/// The rank that serves the store may be the one that is gone or silent: then a call may never
/// return.
std::optional<std::string> silent_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                                        const comm::Place& place) {
  const auto ask = [store, place]() -> Result<std::string> {
    const std::string gave_up = "gave_up/";
    try {
      store->set(gave_up + std::to_string(place.rank), std::string("1"));
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return ranks_without(*store, gave_up, place.ranks);
    } catch (const std::exception& error) {
      return make_error(ErrorCode::PeerLost, error.what());
    }
  };
  auto started = DetachedCall<std::string>::start("asking which rank is silent", ask);
  if (!started.has_value()) return {};
  auto names = started->wait(Deadline::after_seconds(2.0));
  return names.has_value() ? std::optional(*std::move(names)) : std::nullopt;
}

Result<std::unique_ptr<comm::Group>> make_torch_group(c10::intrusive_ptr<c10d::Backend> backend,
                                                      c10::intrusive_ptr<c10d::Store> store,
                                                      const TorchGroupOptions& options) {
  ARTESIAN_CHECK(backend && store);
  const auto ranks = static_cast<std::uint32_t>(backend->getSize());
  const auto rank = static_cast<std::uint32_t>(backend->getRank());
  if (ranks != options.place.ranks || rank != options.place.rank) {
    return make_error(ErrorCode::Invalid,
                      fmt::format("process group: got rank {} of {}, allowed rank {} of {}", rank,
                                  ranks, options.place.rank, options.place.ranks));
  }
  return std::unique_ptr<comm::Group>(
      std::make_unique<TorchGroup>(std::move(backend), std::move(store), options));
}

}  // namespace artesian::zero3
