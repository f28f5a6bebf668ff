#include "tools/train.h"

#include <memory>
#include <vector>

#include "base/log.h"
#include "models/checkpoint_weights.h"
#include "models/checkpoint_writer.h"
#include "models/flops.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/token_data.h"
#include "tools/process_setup.h"
#include "tools/report_error.h"
#include "tools/save_model.h"
#include "tools/step_log.h"
#include "zero3/engine.h"

namespace artesian::tools {
namespace {

constexpr const char* program = "artesian";

/// Ends initialisation when the user asks to stop.
class StoppableWeights final : public zero3::WeightSource {
 public:
  explicit StoppableWeights(std::unique_ptr<zero3::WeightSource> source)
      : source_(std::move(source)) {}
  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override {
    if (stop_requested() != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
    return source_->read(parameter, first, target);
  }

 private:
  std::unique_ptr<zero3::WeightSource> source_;
};

class TrainRun {
 public:
  explicit TrainRun(const TrainOptions& options) : options_(options) {}

  int run() {
    auto prepared = prepare();
    if (prepared.has_value()) prepared = build();
    if (!prepared.has_value()) {
      static_cast<void>(close().has_value());
      if (stop_requested() != 0) return stop_exit_code();
      return report_error(program, prepared.error(), 2);
    }
    auto trained = loop();
    progress_->finish();
    if (trained.has_value()) trained = finish();
    auto closed = close();
    if (trained.has_value()) trained = std::move(closed);
    if (!trained.has_value()) return report_error(program, trained.error(), 1);
    return stop_requested() != 0 ? stop_exit_code() : 0;
  }

 private:
  Result<void> prepare();
  Result<void> open_outputs();
  Result<void> choose_steps();
  Result<void> build();
  Result<std::unique_ptr<zero3::WeightSource>> weights() const;
  Result<void> loop();
  Result<zero3::StepResult> one_step(std::uint64_t step);
  Result<void> finish();
  Result<void> close() { return engine_ ? engine_->close() : Result<void>(); }

  const TrainOptions& options_;
  models::ModelConfig model_config_;
  zero3::Config config_;
  std::uint64_t length_ = 0;
  std::uint64_t steps_ = 0;
  std::unique_ptr<models::TokenData> data_;
  std::unique_ptr<StepLog> step_log_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<zero3::Module> module_;
  std::unique_ptr<zero3::Engine> engine_;
  std::unique_ptr<Progress> progress_;
  Summary summary_;
  zero3::Budgets budgets_;
};

Result<void> TrainRun::prepare() {
  ARTESIAN_TRY(model_config, models::read_model_config(options_.model));
  model_config_ = std::move(model_config);
  for (const std::string& note : model_config_.notes) log(LogLevel::Info, note);
  const auto positions = static_cast<std::uint64_t>(model_config_.positions_max);
  length_ = options_.length.value_or(std::min<std::uint64_t>(positions, 1024));
  if (length_ == 0 || length_ > positions) {
    return make_error(ErrorCode::Invalid, "--seq-len: got " + std::to_string(length_) +
                                              ", allowed 1 to " + std::to_string(positions) +
                                              ", the model's positions");
  }
  zero3::ConfigArguments arguments{
      .micro_batch_size = options_.micro_batch,
      .accumulation_steps = options_.accumulation,
      .lr = options_.lr,
      .steps = options_.steps,
      .hidden_size = static_cast<std::uint64_t>(model_config_.gpt2.hidden)};
  ARTESIAN_TRY(config, zero3::read_config(options_.config, arguments));
  config_ = std::move(config);
  for (const std::string& note : config_.notes) log(LogLevel::Info, note);
  ARTESIAN_TRY(data, models::TokenData::open(
                         {.path = options_.data,
                          .model_directory = options_.model,
                          .vocab_size = model_config_.vocab_size,
                          .sequence_length = static_cast<std::int64_t>(length_),
                          .order = options_.shuffled ? models::SampleOrder::Shuffled
                                                     : models::SampleOrder::Sequential,
                          .seed = options_.seed}));
  data_ = std::make_unique<models::TokenData>(std::move(data));
  ARTESIAN_TRY_VOID(choose_steps());
  return open_outputs();
}

/// --steps, or --epochs over the data, or one epoch.
Result<void> TrainRun::choose_steps() {
  if (options_.steps.has_value()) {
    steps_ = *options_.steps;
    return {};
  }
  const std::uint64_t per_epoch = data_->samples() / config_.train_batch_size;
  steps_ = std::max<std::uint64_t>(per_epoch * options_.epochs.value_or(1), 1);
  return {};
}

Result<void> TrainRun::open_outputs() {
  if (!options_.save.empty()) {
    const auto bytes = save_size(config_, models::model_parameters(model_config_), options_.save_fp32);
    ARTESIAN_TRY_VOID(models::check_checkpoint_target(options_.save, bytes));
  }
  ARTESIAN_TRY(step_log, StepLog::open(options_.log_jsonl));
  step_log_ = std::make_unique<StepLog>(std::move(step_log));
  if (options_.trace.empty()) return {};
  timeline_ = std::make_unique<Timeline>();
  return timeline_->write(options_.trace);  // a path that cannot be written shows now
}

Result<std::unique_ptr<zero3::WeightSource>> TrainRun::weights() const {
  if (!options_.random_weights && models::has_checkpoint(options_.model)) {
    ARTESIAN_TRY(checkpoint, models::CheckpointWeights::open(options_.model, model_config_));
    return std::unique_ptr<zero3::WeightSource>(
        std::make_unique<models::CheckpointWeights>(std::move(checkpoint)));
  }
  if (!options_.random_weights) {
    log(LogLevel::Info, "--model: no weights in " + options_.model +
                            "; initialising at random from --seed " +
                            std::to_string(options_.seed));
  }
  return std::unique_ptr<zero3::WeightSource>(
      std::make_unique<models::RandomWeights>(module_->parameters(), options_.seed));
}

Result<void> TrainRun::build() {
  module_ = models::make_module(model_config_);
  budgets_ = zero3::choose_budgets(config_);
  config_.artesian.device_memory = budgets_.device;
  config_.artesian.host_memory = budgets_.host;
  progress_ = std::make_unique<Progress>(
      Progress::Options{.quiet = options_.quiet,
                        .steps_total = steps_,
                        .steps_per_print = config_.steps_per_print.value_or(0),
                        .breakdown = config_.wall_clock_breakdown,
                        .budgets = budgets_});
  ARTESIAN_TRY(source, weights());
  ARTESIAN_TRY(engine, zero3::Engine::create(*module_, config_,
                                             {.samples = config_.micro_batch_size,
                                              .length = length_,
                                              .timeline = timeline_.get()}));
  engine_ = std::move(engine);
  StoppableWeights stoppable(std::move(source));
  const auto report = [&](std::uint64_t done, std::uint64_t total) {
    progress_->initializing(done, total);
  };
  auto initialized = engine_->initialize(stoppable, report);
  progress_->finish();
  return initialized;
}

Result<zero3::StepResult> TrainRun::one_step(std::uint64_t step) {
  const std::uint64_t samples = config_.micro_batch_size;
  std::vector<std::int64_t> ids(samples * length_);
  std::vector<std::int64_t> targets(samples * length_);
  for (std::uint64_t micro = 0; micro < config_.accumulation_steps; ++micro) {
    for (std::uint64_t sample = 0; sample < samples; ++sample) {
      const std::uint64_t number = step * config_.train_batch_size + micro * samples + sample;
      ARTESIAN_TRY_VOID(data_->sample(number, std::span(ids).subspan(sample * length_, length_),
                                      std::span(targets).subspan(sample * length_, length_)));
    }
    ARTESIAN_TRY(loss, engine_->forward_backward(ids, targets));
    static_cast<void>(loss);  // the step's result holds the mean
  }
  return engine_->step();
}

Result<void> TrainRun::loop() {
  const double flops = models::flops_per_token(model_config_, length_);
  for (std::uint64_t step = 0; step < steps_ && stop_requested() == 0; ++step) {
    ARTESIAN_TRY(result, one_step(step));
    std::optional<std::string> digest;
    if (step + 1 == steps_ || stop_requested() != 0) {
      ARTESIAN_TRY(hex, engine_->digest());
      digest = std::move(hex);
    }
    const double tflops = flops * static_cast<double>(result.tokens) /
                          (result.step_s > 0 ? result.step_s : 1.0) * 1e-12;
    ARTESIAN_TRY_VOID(step_log_->write(result, tflops, digest));
    summary_.add(result);
    progress_->step(result);
    if (digest.has_value()) break;
  }
  return {};
}

Result<void> TrainRun::finish() {
  if (!options_.save.empty()) {
    ARTESIAN_TRY_VOID(save_model(*engine_, model_config_, module_->parameters(),
                                 {.target = options_.save,
                                  .source_directory = options_.model,
                                  .fp32 = options_.save_fp32}));
  }
  if (timeline_ != nullptr) ARTESIAN_TRY_VOID(timeline_->write(options_.trace));
  if (!options_.quiet) summary_.print(stdout, budgets_);
  return {};
}

}  // namespace

int train(const TrainOptions& options) {
  return TrainRun(options).run();
}

}  // namespace artesian::tools
