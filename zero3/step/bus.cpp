#include "zero3/step/bus.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace artesian::zero3 {
namespace {

constexpr double look_seconds = 1.0;  // between looks at the other ranks

}  // namespace

using tiering::Queue;

Result<void> Bus::all_to_all(std::span<const std::span<const std::byte>> sent,
                             std::span<const std::span<std::byte>> received,
                             const comm::What& what) {
  ARTESIAN_CHECK(sent.size() == group_.ranks() && received.size() == group_.ranks(), sent.size());
  const std::uint64_t begin_ns = monotonic_ns();
  auto moved = move(sent, received, what);
  if (!moved.has_value()) {
    devices_.abort();
    static_cast<void>(device_.finish_all());  // so that its memory may be given back
  }
  std::uint64_t bytes = 0;
  for (std::uint32_t peer = 0; peer < group_.ranks(); ++peer) {
    if (peer != group_.rank()) bytes += sent[peer].size();
  }
  group_.count_on_device(bytes, monotonic_ns() - begin_ns);
  return moved;
}

Result<void> Bus::move(std::span<const std::span<const std::byte>> sent,
                       std::span<const std::span<std::byte>> received, const comm::What& what) {
  ARTESIAN_TRY_VOID(devices_.enqueue_all_to_all(sent, received, what));
  ARTESIAN_TRY(end, device_.record(Queue::Bus));
  const double usual = device_.wait_seconds();
  auto waited = wait(end, what);
  device_.set_wait_seconds(usual);
  return waited;
}

Result<void> Bus::wait(tiering::DeviceFence end, const comm::What& what) {
  const double seconds = group_.deadline_seconds();
  const Deadline deadline = Deadline::after_seconds(seconds);
  device_.set_wait_seconds(std::min(look_seconds, seconds));
  while (true) {
    auto passed = device_.finish(end);
    if (passed.has_value() || passed.error().code != ErrorCode::Timeout) return passed;
    ARTESIAN_TRY_VOID(devices_.check());
    if (monotonic_ns() > deadline.at_ns) return group_.overdue(what.text());
  }
}

Result<void> Bus::all_gather(std::span<std::byte> image, std::uint32_t unit,
                             const comm::What& what) {
  const std::uint32_t ranks = group_.ranks();
  ARTESIAN_CHECK(image.size() % ranks == 0, image.size(), ranks);
  ARTESIAN_TRY(units, group_.exchange(std::as_bytes(std::span(&unit, 1)),
                                      {"which parameters the ranks gather"}));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::uint32_t theirs = 0;
    std::memcpy(&theirs, units.data() + rank * sizeof theirs, sizeof theirs);
    if (theirs == unit) continue;
    return make_error(ErrorCode::Invalid,
                      fmt::format("rank {} gathers unit {}, and rank {} unit {}; all ranks must "
                                  "run the same model",
                                  rank, theirs, group_.rank(), unit));
  }
  const std::size_t share = image.size() / ranks;
  const std::vector<std::span<const std::byte>> sent(ranks,
                                                     image.subspan(group_.rank() * share, share));
  std::vector<std::span<std::byte>> received;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    received.push_back(rank == group_.rank() ? std::span<std::byte>()
                                             : image.subspan(rank * share, share));
  }
  return all_to_all(sent, received, what);
}

}  // namespace artesian::zero3
