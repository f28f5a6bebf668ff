#include "tools/plan/measure.h"

#include <algorithm>

#include "models/registry.h"
#include "tools/train/made_up_tokens.h"
#include "tools/train/training.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t steps_before = 3;  // recorded steps; the first one prefetches nothing
constexpr std::uint64_t steps_measured = 3;

/// Describes what a run lacks; empty if it can run.
std::string lacking(const zero3::Config& config) {
  const zero3::ZeroConfig& zero = config.zero;
  const auto pathless = [](const zero3::OffloadConfig& offload) {
    return offload.device == zero3::Offload::Nvme && offload.nvme_paths.empty();
  };
  return pathless(zero.offload_param) || pathless(zero.offload_optimizer)
             ? "the config names no nvme_path for it; add one"
             : "";
}

class Measurement {
 public:
  Measurement(const PlanCase& plan, const Candidate& candidate)
      : plan_(plan),
        config_(config_of_run(plan, candidate)),
        module_(models::make_module(*plan.model)),
        tokens_({.vocabulary = plan.model->vocab_size,
                 .micro_batches = config_.accumulation_steps,
                 .samples = config_.micro_batch_size,
                 .length = plan.length}) {}

  /// Returns the median step.
  Result<double> run(const std::string& device) {
    const std::uint64_t tokens = config_.micro_batch_size * plan_.length;
    auto made = zero3::Engine::create(
        *module_, config_,
        {.device = device, .input_elements = models::stage_input_elements(*plan_.model, tokens)});
    if (!made.has_value()) return naming_directory(config_, std::move(made).error());
    zero3::Engine& engine = **made;
    auto seconds = train(engine);
    auto closed = engine.close();
    if (seconds.has_value() && !closed.has_value()) return std::move(closed).error();
    return seconds;
  }

 private:
  Result<double> train(zero3::Engine& engine) {
    StoppableWeights weights(std::make_unique<zero3::RandomWeights>(module_->parameters(), 1));
    ARTESIAN_TRY_VOID(engine.initialize(weights));
    std::vector<double> seconds;
    for (std::uint64_t step = 0; step < steps_before + steps_measured; ++step) {
      if (stop_requested() != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
      ARTESIAN_TRY(result, one_step(engine));
      if (result.end.has_value()) return *std::move(result.end);
      if (step >= steps_before) seconds.push_back(result.step_s);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  Result<zero3::StepResult> one_step(zero3::Engine& engine) {
    ARTESIAN_TRY(losses, engine.forward_backward(tokens_.next()));
    static_cast<void>(losses);
    return engine.step();
  }

  const PlanCase& plan_;
  const zero3::Config config_;
  const std::unique_ptr<zero3::Module> module_;
  MadeUpTokens tokens_;
};

}  // namespace

Result<std::vector<std::string>> measure_candidates(const PlanCase& plan,
                                                    std::vector<Candidate>& candidates,
                                                    const MeasureOptions& options) {
  std::vector<std::string> notes;
  const auto pass_over = [&](const Candidate& candidate, const std::string& why) {
    notes.push_back("--measure: " + candidate.name + " was not run: " + why);
  };
  std::uint64_t measured = 0;
  for (Candidate& candidate : candidates) {
    if (measured == options.count) break;
    const std::string lacks = lacking(candidate.config);
    if (!lacks.empty()) {
      pass_over(candidate, lacks);
      continue;
    }
    if (options.progress) options.progress(candidate, measured + 1);
    auto seconds = Measurement(plan, candidate).run(options.device);
    if (!seconds.has_value() && seconds.error().code == ErrorCode::NoSpace) {
      pass_over(candidate, seconds.error().to_string());
      continue;
    }
    if (!seconds.has_value()) return std::move(seconds).error();
    candidate.measured_seconds = *seconds;
    ++measured;
  }
  return notes;
}

}  // namespace artesian::tools
