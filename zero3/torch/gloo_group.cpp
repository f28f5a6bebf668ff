// Makes a group of Gloo's without Python. LibTorch has Gloo inside, and brings the header of its
// class for it, but none of Gloo's own: what that header asks for is in gloo_declarations/. Nothing
// of it is ever defined, called or inherited from here, and CMake tries once whether a program that
// is built so runs with the LibTorch that is there.
#include <fmt/core.h>

#include "zero3/torch/torch_group.h"
#ifdef ARTESIAN_HAVE_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif

#include <chrono>
#include <cmath>
#include <string>

#include "base/check.h"

namespace artesian::zero3 {

#ifdef ARTESIAN_HAVE_GLOO

Result<std::unique_ptr<comm::Group>> connect_ranks(const comm::Launch& launch,
                                                   double deadline_seconds) {
  ARTESIAN_CHECK(launch.place.ranks > 1, launch.place.ranks);
  const auto deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(deadline_seconds * 1e3)));
  const bool serves = launch.place.rank == 0 && !launch.store_is_there;
  try {
    c10d::TCPStoreOptions options;
    options.port = launch.port;
    options.isServer = serves;
    options.numWorkers = launch.place.ranks;
    options.waitWorkers = false;
    options.timeout = deadline;
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("artesian/{}", launch.attempt),
        c10::make_intrusive<c10d::TCPStore>(launch.address, options));
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(launch.place.rank), static_cast<int>(launch.place.ranks),
        c10d::ProcessGroupGloo::Options::create_default(deadline));
    return make_torch_group(std::move(backend), std::move(store),
                            {.place = launch.place, .deadline_seconds = deadline_seconds});
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return make_error(
        ErrorCode::PeerLost,
        fmt::format("rank {} cannot meet the other {} ranks at {}:{}: {}; look at MASTER_ADDR, "
                    "MASTER_PORT and GLOO_SOCKET_IFNAME, and whether all ranks were started",
                    launch.place.rank, launch.place.ranks - 1, launch.address, launch.port,
                    text.substr(0, text.find('\n'))));
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
