#include "tools/train/run_ranks.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "zero3/torch/torch_group.h"

namespace artesian::tools {
namespace {

using zero3::StepResult;

constexpr std::array summed{&StepResult::bytes_nvme_read,  &StepResult::bytes_nvme_write,
                            &StepResult::bytes_h2d,        &StepResult::bytes_d2h,
                            &StepResult::bytes_bus,        &StepResult::fetch_demand,
                            &StepResult::fetch_prefetched, &StepResult::fetch_reused};
constexpr std::array largest{&StepResult::live_parameters_max, &StepResult::peak_device,
                             &StepResult::peak_host,           &StepResult::peak_activations,
                             &StepResult::peak_process_rss,    &StepResult::peak_gradients,
                             &StepResult::peak_program,        &StepResult::peak_heap};

}  // namespace

Result<RunRanks> RunRanks::find() {
  RunRanks run;
  ARTESIAN_TRY(launch, comm::this_launch());
  run.launch_ = std::move(launch);
  return run;
}

Result<void> RunRanks::connect(double timeout_seconds) {
  if (!several()) return {};
  ARTESIAN_TRY(group, zero3::connect_ranks(launch_, timeout_seconds));
  group_ = std::move(group);
  return {};
}

std::string RunRanks::program() const {
  if (!several()) return "artesian";
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("artesian: rank {} ({})", rank(), host.data());
}

TrainOptions RunRanks::of_rank(TrainOptions options) const {
  options.checkpoints.together = several();
  options.checkpoints.first = first();
  if (several() && options.device == "cuda") options.device = fmt::format("cuda:{}", launch_.gpu);
  if (first()) return options;
  if (!options.trace.empty()) {  // trace.json becomes trace.rank3.json
    const std::size_t slash = options.trace.rfind('/');
    std::size_t dot = options.trace.rfind('.');
    const bool in_folder = slash != std::string::npos && dot != std::string::npos && dot < slash;
    if (dot == std::string::npos || in_folder) dot = options.trace.size();
    options.trace.insert(dot, fmt::format(".rank{}", rank()));
  }
  options.log_jsonl.clear();
  options.save.clear();
  options.quiet = true;
  return options;
}

Result<zero3::StepResult> RunRanks::of_all(zero3::StepResult result) const {
  if (group_ == nullptr) return result;
  std::array<std::uint64_t, summed.size() + largest.size() + 1> mine{};
  for (std::size_t at = 0; at < summed.size(); ++at) mine[at] = result.*summed[at];
  for (std::size_t at = 0; at < largest.size(); ++at) {
    mine[summed.size() + at] = result.*largest[at];
  }
  mine.back() = static_cast<std::uint64_t>(result.bus_s * 1e9);
  ARTESIAN_TRY(bytes, group_->exchange(std::as_bytes(std::span(mine)), {"figures of a step"}));
  auto theirs = mine;
  std::uint64_t least = ~std::uint64_t{0};
  for (std::uint32_t other = 0; other < ranks(); ++other) {
    std::memcpy(theirs.data(), bytes.data() + other * sizeof theirs, sizeof theirs);
    if (theirs.back() < least) {
      least = theirs.back();
      result.waited_for = other;
    }
    if (other == rank()) continue;
    for (std::size_t at = 0; at < summed.size(); ++at) result.*summed[at] += theirs[at];
    for (std::size_t at = 0; at < largest.size(); ++at) {
      result.*largest[at] = std::max(result.*largest[at], theirs[summed.size() + at]);
    }
  }
  return result;
}

}  // namespace artesian::tools
