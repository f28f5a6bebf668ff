// Creates a Gloo group without Python. LibTorch contains Gloo and the header of its class for it,
// but not Gloo's own headers; the declarations that the header needs are in gloo_declarations/.
// Nothing of Gloo is defined, called or inherited here, and CMake tests whether a program built in
// this way runs with the present LibTorch.
#include <fmt/core.h>

#include "zero3/torch/torch_group.h"
#ifdef ARTESIAN_HAVE_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/detached_call.h"

namespace artesian::zero3 {

#ifdef ARTESIAN_HAVE_GLOO

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using SharedStore = c10::intrusive_ptr<c10d::Store>;

/// At least long enough for an answer.
milliseconds until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
  return std::max(left, milliseconds(1000));
}

struct Met {
  SharedStore store;
  std::string missing{};  // ranks that had not arrived at the deadline
};

SharedStore open_store(const comm::Launch& launch, Clock::time_point end) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = launch.place.rank == 0 && !launch.store_is_there;
  options.numWorkers = launch.place.ranks;
  options.waitWorkers = false;
  options.timeout = until(end);
  return c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("artesian/{}", launch.attempt),
      c10::make_intrusive<c10d::TCPStore>(launch.address, options));
}

/// Each rank announces its arrival, so that those who wait in vain can name the missing ranks. May
/// throw.
Met meet(const comm::Launch& launch, Clock::time_point end) {
  const std::string came = "came/";
  Met met{.store = open_store(launch, end)};
  met.store->set(came + std::to_string(launch.place.rank), std::string("1"));
  met.store->add("came", 1);  // a counter, which is cheaper to poll than all ranks' keys
  while (met.store->add("came", 0) < static_cast<std::int64_t>(launch.place.ranks)) {
    if (Clock::now() >= end) break;
    std::this_thread::sleep_for(milliseconds(20));
  }
  met.missing = ranks_without(*met.store, came, launch.place.ranks);
  if (met.missing.empty()) return met;
  // The rank that serves the store ends last, so that the others, whose deadlines are later, can
  // read it.
  met.store->add("left", 1);
  const bool serves = launch.place.rank == 0 && !launch.store_is_there;
  const auto last = Clock::now() + std::chrono::seconds(2);
  while (serves && met.store->add("left", 0) < met.store->add("came", 0) && Clock::now() < last) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  return met;
}

Error absent(const std::string& names, const comm::Launch& launch, double deadline_seconds) {
  return make_error(
      ErrorCode::PeerLost,
      fmt::format("rank {} has not come within {} s to {}:{}, where rank {} waits; "
                  "look at why it ended, or was not started",
                  names, deadline_seconds, launch.address, launch.port, launch.place.rank));
}

Error not_met(const std::string& names, const comm::Launch& launch, const std::string& why) {
  return make_error(
      ErrorCode::PeerLost,
      fmt::format("{}rank {} cannot meet the other {} ranks at {}:{}: {}; look at MASTER_ADDR, "
                  "MASTER_PORT and GLOO_SOCKET_IFNAME, and whether all ranks were started",
                  names.empty() ? "" : "rank " + names + " is gone: ", launch.place.rank,
                  launch.place.ranks - 1, launch.address, launch.port,
                  why.substr(0, why.find('\n'))));
}

}  // namespace

Result<std::unique_ptr<comm::Group>> connect_ranks(const comm::Launch& launch,
                                                   double deadline_seconds) {
  const comm::Place& place = launch.place;
  ARTESIAN_CHECK(place.ranks > 1, place.ranks);
  const Clock::time_point end =
      Clock::now() + milliseconds(static_cast<std::int64_t>(std::llround(deadline_seconds * 1e3)));
  // One of the ranks serves the store, unless the launcher does.
  const bool first_serves = place.rank != 0 && !launch.store_is_there;
  const auto call = [launch, end]() -> Result<Met> {
    try {
      return meet(launch, end);
    } catch (const std::exception& error) {
      return make_error(ErrorCode::PeerLost, error.what());
    }
  };
  ARTESIAN_TRY(started, DetachedCall<Met>::start("meeting the other ranks", call));
  auto met = started.wait(Deadline::after_seconds(deadline_seconds + 4.0));
  if (!met.has_value()) {
    if (first_serves && Clock::now() >= end) return absent("0", launch, deadline_seconds);
    return not_met(first_serves ? "0" : "", launch, met.error().message);
  }
  if (!met->missing.empty()) return absent(met->missing, launch, deadline_seconds);
  try {
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        met->store, static_cast<int>(place.rank), static_cast<int>(place.ranks),
        c10d::ProcessGroupGloo::Options::create_default(until(end)));
    return make_torch_group(std::move(backend), met->store,
                            {.place = place, .deadline_seconds = deadline_seconds});
  } catch (const std::exception& error) {
    std::string names = silent_ranks(met->store, place).value_or("");
    if (names.empty() && first_serves) names = "0";
    return not_met(names, launch, error.what());
  }
}

#else

Result<std::unique_ptr<comm::Group>> connect_ranks(const comm::Launch& launch, double) {
  return make_error(ErrorCode::Unsupported,
                    fmt::format("{} ranks: not supported with the LibTorch that this was built "
                                "for, whose Gloo was not found to work; start one process",
                                launch.place.ranks));
}

#endif

}  // namespace artesian::zero3
