#include "aio/path_engines.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace artesian::aio {
namespace {

class PathEngines final : public Engine {
 public:
  explicit PathEngines(std::vector<std::unique_ptr<Engine>> engines) noexcept
      : engines_(std::move(engines)) {
    ARTESIAN_CHECK(!engines_.empty());
  }

  Engine& for_path(std::uint32_t path) noexcept override {
    ARTESIAN_CHECK(path < engines_.size(), path, engines_.size());
    return *engines_[path];
  }
  // Callers that do not use paths get the first engine.
  void submit(std::span<Completion* const> completions) noexcept override {
    engines_[0]->submit(completions);
  }
  Result<void> wait(Completion& completion, Deadline deadline) noexcept override {
    return engines_[0]->wait(completion, deadline);
  }
  void cancel(Completion& completion) noexcept override { engines_[0]->cancel(completion); }
  void abandon(Completion& completion) noexcept override { engines_[0]->abandon(completion); }
  EngineKind kind() const noexcept override { return engines_[0]->kind(); }
  Polling polling() const noexcept override { return engines_[0]->polling(); }

  Result<void> drain(Deadline deadline) noexcept override {
    Result<void> first;
    for (const auto& engine : engines_) {
      auto drained = engine->drain(deadline);
      if (!drained.has_value() && first.has_value()) first = std::move(drained);
    }
    return first;
  }
  std::uint32_t rings() const noexcept override {
    std::uint32_t sum = 0;
    for (const auto& engine : engines_) sum += engine->rings();
    return sum;
  }
  int register_with_ring(std::uint32_t ring,
                         std::span<const std::span<std::byte>> ranges) noexcept override;
  EngineStatistics statistics() const noexcept override;

 private:
  const std::vector<std::unique_ptr<Engine>> engines_;
};

/// Registers the first ring of each path first, so that paths share limited memory.
int PathEngines::register_with_ring(std::uint32_t ring,
                                    std::span<const std::span<std::byte>> ranges) noexcept {
  for (std::uint32_t turn = 0;; ++turn) {
    for (const auto& engine : engines_) {
      if (turn >= engine->rings()) continue;
      if (ring == 0) return engine->register_with_ring(turn, ranges);
      --ring;
    }
    ARTESIAN_CHECK(turn < threads_max, turn, ring);  // this path has fewer rings
  }
}

/// Sums over all paths; for latencies the worst path's, as a step waits for that.
EngineStatistics PathEngines::statistics() const noexcept {
  EngineStatistics all;
  for (const auto& engine : engines_) {
    const EngineStatistics one = engine->statistics();
    for (const auto sum :
         {&EngineStatistics::submit_calls, &EngineStatistics::blocks,
          &EngineStatistics::blocks_registered, &EngineStatistics::blocks_of_registered_files,
          &EngineStatistics::blocks_direct, &EngineStatistics::blocks_misaligned,
          &EngineStatistics::blocks_in_kernel_max, &EngineStatistics::bytes_read,
          &EngineStatistics::bytes_written, &EngineStatistics::continued,
          &EngineStatistics::read_retries}) {
      all.*sum += one.*sum;
    }
    for (const auto worst : {&EngineStatistics::latency_us_p50, &EngineStatistics::latency_us_p95,
                             &EngineStatistics::latency_us_p99}) {
      all.*worst = std::max(all.*worst, one.*worst);
    }
  }
  return all;
}

}  // namespace

Result<std::unique_ptr<Engine>> make_path_engines(
    std::uint32_t count, const std::function<Result<std::unique_ptr<Engine>>()>& make) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (std::uint32_t path = 0; path < std::max(count, 1u); ++path) {
    ARTESIAN_TRY(engine, make());
    engines.push_back(std::move(engine));
  }
  if (engines.size() == 1) return std::move(engines[0]);
  return std::unique_ptr<Engine>(std::make_unique<PathEngines>(std::move(engines)));
}

}  // namespace artesian::aio
