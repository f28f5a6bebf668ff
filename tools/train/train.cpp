#include "tools/train/train.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/utf8.h"
#include "models/activation_bytes.h"
#include "models/checkpoint_weights.h"
#include "models/checkpoint_writer.h"
#include "models/data/token_cache.h"
#include "models/data/token_data.h"
#include "models/flops.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "tools/shell/output_paths.h"
#include "tools/shell/print.h"
#include "tools/shell/process_setup.h"
#include "tools/shell/report_error.h"
#include "tools/shell/standard_output.h"
#include "tools/train/checkpointing.h"
#include "tools/train/held_out.h"
#include "tools/train/log_cut.h"
#include "tools/train/run_ranks.h"
#include "tools/train/save_model.h"
#include "tools/train/step_log.h"
#include "tools/train/swap_folders.h"
#include "tools/train/trackers.h"
#include "tools/train/training.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/engine.h"
#include "zero3/torch/token_batch.h"

namespace artesian::tools {
namespace {

class TrainRun {
 public:
  TrainRun(const TrainOptions& options, const CheckMemory& check_memory, RunRanks ranks)
      : ranks_(std::move(ranks)),
        options_(ranks_.of_rank(options)),
        saves_(!options.save.empty()),
        check_memory_(check_memory) {}

  int run() {
    auto prepared = prepare();
    if (prepared.has_value()) prepared = build();
    if (!prepared.has_value()) {
      static_cast<void>(close().has_value());
      if (stop_requested() == 0) {
        return report_error(ranks_.program().c_str(),
                            with_parameter_count(prepared.error(), parameter_count()), 2);
      }
      say_end();
      return stop_exit_code();
    }
    note(loop());
    progress_->finish();
    finish();
    note(close());
    if (!faults_.empty()) report_error(ranks_.program().c_str(), faults_, 1);
    say_end();
    if (!faults_.empty()) return 1;
    if (stop_requested() != 0) return stop_exit_code();
    return stops() ? 128 + SIGTERM : 0;  // the signal that stopped another rank is unknown
  }

 private:
  /// 0 before the model was read
  std::uint64_t parameter_count() const {
    if (model_config_.hidden == 0) return 0;
    std::uint64_t count = 0;
    for (const auto& each : models::model_parameters(model_config_)) count += each.numel();
    return count;
  }

  /// Several ranks stop together, after a step in which one of them was asked to stop.
  bool stops() const { return ranks_.several() ? stops_ : stop_requested() != 0; }
  Result<void> prepare();
  Result<void> read_config(const zero3::ConfigArguments& arguments);
  Result<void> check_memory() const;
  Result<void> choose_budgets();
  std::string log_file() const { return to_stdout() ? "" : options_.log_jsonl; }
  bool to_stdout() const { return options_.log_jsonl == "-"; }
  std::vector<FlagPath> input_paths() const;
  void take_budgets();
  Result<void> open_weights();
  Result<void> check_random_weights() const;
  Result<void> open_data();
  Result<models::TokenData> open_tokens(const char* flag, const std::vector<std::string>& paths,
                                        models::SampleOrder order);
  Result<std::optional<double>> held_out_loss(std::uint64_t step);
  Result<void> rehearse();
  Result<std::unique_ptr<zero3::Engine>> make_engine();
  std::vector<std::pair<std::string, std::string>> facts() const;
  Result<void> prepare_save();
  void choose_steps();
  zero3::SavedTrainer describe_data() const;
  bool has_checkpoints() const noexcept {
    return !options_.checkpoints.directory.empty() || options_.checkpoints.resume;
  }
  Result<void> read_model_files();
  Result<void> check_model() const;
  Result<void> identify();
  LogCut log_cut() const;
  Result<void> check_log() const;
  Result<void> open_outputs();
  Result<void> write_trace() const;
  Result<void> build();
  Result<void> loop();
  Result<zero3::StepResult> one_step();
  Result<void> begin_save(std::uint64_t step);
  Result<bool> end_step(std::uint64_t step);
  Result<void> stop_at(std::uint64_t step);
  bool has_no_time() const;
  Result<void> report_completed(const std::optional<std::string>& digest,
                                const std::optional<double>& held_out = {});
  void finish();
  Result<void> save();
  Error no_step_taken() const;
  Result<void> print_table();
  void say_end() const;
  void note(Result<void> outcome);
  Result<void> close() { return engine_ ? engine_->close() : Result<void>(); }

  RunRanks ranks_;
  const TrainOptions options_;
  const bool saves_;    // true on rank 0
  bool stops_ = false;  // with several ranks: some rank was asked to stop after the last step
  const CheckMemory& check_memory_;
  models::ModelConfig model_config_;
  std::vector<models::ModelFile> model_files_;  // read if checkpoints or --save need them
  std::optional<models::CheckpointWriter> save_;
  bool saved_ = false;
  zero3::Config config_;
  std::uint64_t length_ = 0;
  std::uint64_t steps_ = 0;
  std::unique_ptr<models::TokenData> data_;
  std::unique_ptr<HeldOut> held_out_;
  std::optional<Checkpointing> checkpointing_;
  RunIdentity identity_;
  bool resumed_ = false;
  std::uint64_t step_begin_ns_ = 0;
  std::unique_ptr<StepLog> step_log_;
  std::unique_ptr<Trackers> trackers_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<zero3::Module> module_;
  std::unique_ptr<FiniteWeights> weights_;
  std::set<std::string> bad_weights_;
  std::unique_ptr<zero3::Engine> engine_;
  std::unique_ptr<Progress> progress_;
  Summary summary_;
  zero3::Budgets budgets_;
  bool rehearsed_ = false;
  std::optional<Error> refused_;  // error found by rehearse()
  std::vector<Error> faults_;     // errors of training and of the outputs after it
};

Result<void> TrainRun::prepare() {
  ARTESIAN_TRY_VOID(check_open_files());
  ARTESIAN_TRY_VOID(naming("--device", zero3::check_device(options_.device)));
  ARTESIAN_TRY_VOID(
      check_outputs({{"--log-jsonl", log_file()}, {"--trace", options_.trace}}, input_paths()));
  ARTESIAN_TRY_VOID(check_writable({{"--log-jsonl", log_file()}, {"--trace", options_.trace}}));
  ARTESIAN_TRY(checkpointing, Checkpointing::open(options_.checkpoints));
  checkpointing_.emplace(std::move(checkpointing));
  ARTESIAN_TRY_VOID(check_log());
  ARTESIAN_TRY(model_config, naming("--model", models::read_model_config(options_.model)));
  model_config_ = std::move(model_config);
  ARTESIAN_TRY_VOID(read_model_files());
  ARTESIAN_TRY_VOID(check_model());
  for (const std::string& note : model_config_.notes) log(LogLevel::Info, note);
  const auto positions = static_cast<std::uint64_t>(model_config_.positions_max);
  length_ = options_.length.value_or(std::min<std::uint64_t>(positions, 1024));
  if (length_ == 0 || length_ > positions) {
    return make_error(ErrorCode::Invalid,
                      fmt::format("--seq-len: got {}, allowed 1 to {}, {}", length_, positions,
                                  model_config_.positions_limit));
  }
  zero3::ConfigArguments arguments{.micro_batch_size = options_.micro_batch,
                                   .accumulation_steps = options_.accumulation,
                                   .lr = options_.lr,
                                   .steps = options_.steps,
                                   .steps_later = !options_.steps.has_value(),
                                   .hidden_size = static_cast<std::uint64_t>(model_config_.hidden),
                                   .world_size = ranks_.ranks()};
  ARTESIAN_TRY_VOID(checkpointing_->check_data(describe_data()));
  ARTESIAN_TRY_VOID(read_config(arguments));
  ARTESIAN_TRY_VOID(ranks_.connect(options_.rank_timeout));
  ARTESIAN_TRY_VOID(check_memory());
  ARTESIAN_TRY_VOID(choose_budgets());
  warn_of_swap_folders(config_);
  ARTESIAN_TRY_VOID(open_weights());
  ARTESIAN_TRY_VOID(prepare_save());
  ARTESIAN_TRY_VOID(open_data());
  ARTESIAN_TRY_VOID(identify());
  choose_steps();
  if (options_.steps.has_value()) return {};
  arguments.steps_later = false;
  arguments.steps_of_data = steps_;
  ARTESIAN_TRY_VOID(read_config(arguments));
  take_budgets();
  return {};
}

/// Everything that can refuse a run is checked before text is tokenised, which takes minutes: this
/// includes an engine with its memory, folders and disks, which is made once as a test.
Result<void> TrainRun::open_data() {
  // All ranks alike, even those whose tokens are cached.
  if (ranks_.several()) ARTESIAN_TRY_VOID(rehearse());
  for (const auto& [flag, paths] :
       {std::pair{"--data", &options_.data}, std::pair{"--eval-data", &options_.eval_data}}) {
    for (const std::string& path : *paths) {
      ARTESIAN_TRY(files, naming(flag, models::list_data(path, options_.text_field)));
      static_cast<void>(files);  // they are checked again when they are opened
    }
  }
  const auto order =
      options_.shuffled ? models::SampleOrder::Shuffled : models::SampleOrder::Sequential;
  ARTESIAN_TRY(data, open_tokens("--data", options_.data, order));
  data_ = std::make_unique<models::TokenData>(std::move(data));
  if (options_.eval_data.empty()) return {};
  ARTESIAN_TRY(held_out,
               open_tokens("--eval-data", options_.eval_data, models::SampleOrder::Sequential));
  held_out_ = std::make_unique<HeldOut>(std::move(held_out), config_.micro_batch_size, length_);
  return {};
}

Result<models::TokenData> TrainRun::open_tokens(const char* flag,
                                                const std::vector<std::string>& paths,
                                                models::SampleOrder order) {
  const models::TokenDataOptions data_options{
      .paths = paths,
      .text_field = options_.text_field,
      .model_directory = options_.model,
      .vocab_size = model_config_.vocab_size,
      .sequence_length = static_cast<std::int64_t>(length_),
      .order = order,
      .seed = options_.seed,
      .stopped = [] { return stop_requested() != 0; },
      .token_cache = options_.token_cache ? models::default_token_cache() : "",
      .before_long_work = [this] { return rehearse(); }};
  auto data = models::TokenData::open(data_options);
  if (data.has_value() || !refused_.has_value()) return naming(flag, std::move(data));
  return *refused_;
}

/// Runs once. Notes are logged only when the engine is made again for the run.
Result<void> TrainRun::rehearse() {
  if (rehearsed_) return {};
  rehearsed_ = true;
  set_log_level(LogLevel::Error);
  auto engine = make_engine();
  auto opened = engine.has_value() ? checkpointing_->open_folder(**engine, options_.steps)
                                   : Result<void>(std::move(engine).error());
  auto closed = engine.has_value() ? (*engine)->close() : Result<void>();
  set_log_level(ranks_.log_level(options_));
  if (!closed.has_value()) refused_ = std::move(closed).error();
  if (!opened.has_value()) refused_ = std::move(opened).error();
  if (refused_.has_value()) return *refused_;
  return {};
}

std::vector<FlagPath> TrainRun::input_paths() const {
  std::vector<FlagPath> inputs{
      {"--config", options_.config}, {"--model", options_.model}, {"--save", options_.save}};
  for (const std::string& path : options_.data) inputs.push_back({"--data", path});
  for (const std::string& path : options_.eval_data) inputs.push_back({"--eval-data", path});
  return inputs;
}

/// Logs the notes once the config is complete. Faults of the file name the flag; faults in the file
/// name the key.
Result<void> TrainRun::read_config(const zero3::ConfigArguments& arguments) {
  auto config = zero3::read_config(options_.config, arguments);
  if (!config.has_value()) {
    const bool in_it = config.error().code != ErrorCode::Io;
    return in_it ? std::move(config).error() : naming("--config", std::move(config).error());
  }
  config_ = std::move(config).value();
  if (arguments.steps_later) return {};
  for (const std::string& note : config_.notes) log(LogLevel::Info, note);
  return {};
}

/// Refuses a micro-batch whose hidden states alone exceed the memory of this machine or of the GPU.
Result<void> TrainRun::check_memory() const {
  const auto tokens = static_cast<double>(config_.micro_batch_size) * static_cast<double>(length_);
  const double needed = tokens * static_cast<double>(model_config_.hidden) * sizeof(float);
  ARTESIAN_TRY(index, zero3::device_index(options_.device));
  std::uint64_t free = available_memory();
  if (free == 0 && !index.has_value()) {
    return make_error(ErrorCode::Exhausted,
                      "available memory: got 0 bytes from /proc/meminfo, sysinfo and the control "
                      "groups; mount /proc, or end what takes the memory");
  }
  if (index.has_value()) {
    ARTESIAN_TRY(on_device, zero3::free_device_memory(*index));
    free = on_device;
  }
  const auto available = static_cast<double>(free);
  if (needed <= available) return {};
  return make_error(
      ErrorCode::Exhausted,
      fmt::format("train_micro_batch_size_per_gpu: got {} samples of {} tokens, allowed at most "
                  "{}, whose hidden states alone fill the available memory; lower it or --seq-len",
                  config_.micro_batch_size, length_,
                  static_cast<std::uint64_t>(available / needed *
                                             static_cast<double>(config_.micro_batch_size))));
}

/// Reads the model's files that checkpoints and --save need, now, as they may be gone later.
Result<void> TrainRun::read_model_files() {
  if (!has_checkpoints() && options_.save.empty()) return {};
  ARTESIAN_TRY(files, naming("--model", models::read_model_files(options_.model)));
  model_files_ = std::move(files);
  return {};
}

/// Refuses to resume with a model that computes something else.
Result<void> TrainRun::check_model() const {
  if (!checkpointing_->goes_on()) return {};
  for (const models::ModelFile& file : model_files_) {
    if (file.name == "config.json") return checkpointing_->check_model(file.text);
  }
  return {};
}

/// Describes the data as far as known before it is read.
zero3::SavedTrainer TrainRun::describe_data() const {
  return {.seed = options_.seed,
          .order = options_.shuffled ? "shuffled" : "sequential",
          .sequence_length = length_};
}

/// Collects the description of the run for checkpoints.
Result<void> TrainRun::identify() {
  if (!has_checkpoints()) return {};
  for (const models::ModelFile& file : model_files_) {
    identity_.model_files.emplace(file.name, file.text);
  }
  identity_.other_name = [config = model_config_](const std::string& name) {
    return models::saved_name(config, name);
  };
  ARTESIAN_TRY(digest, naming("--data", data_->digest()));
  std::string name;
  for (const std::string& path : options_.data) name += (name.empty() ? "" : ", ") + path;
  identity_.data = describe_data();
  identity_.data.sources = {{as_utf8(name), data_->tokens(), digest}};
  std::ifstream config(options_.config, std::ios::binary);
  identity_.config.assign(std::istreambuf_iterator<char>(config), {});
  if (!zero3::is_utf8(identity_.config)) identity_.config.clear();
  return {};
}

/// From --steps, or --epochs over the data, or one epoch.
void TrainRun::choose_steps() {
  const std::uint64_t per_epoch =
      std::max<std::uint64_t>(data_->samples() / config_.train_batch_size, 1);
  steps_ = options_.steps.value_or(per_epoch * options_.epochs.value_or(1));
}

/// Reserves the space for --save, so that trained weights are not lost because a disk is full.
Result<void> TrainRun::prepare_save() {
  if (options_.save.empty()) return {};
  ARTESIAN_TRY(writer, naming("--save", tools::prepare_save(config_, model_config_,
                                                            {.target = options_.save,
                                                             .files = model_files_,
                                                             .fp32 = options_.save_fp32})));
  save_.emplace(std::move(writer));
  return {};
}

LogCut TrainRun::log_cut() const {
  return {.step = checkpointing_->first_step(),
          .line = checkpointing_->log_line(),
          .lines_max = checkpointing_->steps_without_checkpoint()};
}

/// Checks the log as far as possible now; it is checked again when it is opened.
Result<void> TrainRun::check_log() const {
  return options_.checkpoints.resume ? tools::check_log(log_file(), log_cut()) : Result<void>();
}

/// Truncates the files of an earlier run, only once nothing else can refuse this one.
Result<void> TrainRun::open_outputs() {
  if (options_.checkpoints.resume) ARTESIAN_TRY_VOID(cut_log(log_file(), log_cut()));
  ARTESIAN_TRY(step_log, StepLog::open(options_.log_jsonl, options_.checkpoints.resume
                                                               ? StepLog::Begin::GoOn
                                                               : StepLog::Begin::Anew));
  step_log_ = std::make_unique<StepLog>(std::move(step_log));
  trackers_ = std::make_unique<Trackers>(config_);
  return write_trace();  // a path that cannot be written is reported now
}

Result<void> TrainRun::write_trace() const {
  if (timeline_ == nullptr) return {};
  return naming("--trace", timeline_->write(options_.trace));
}

Result<void> TrainRun::open_weights() {
  std::unique_ptr<zero3::WeightSource> source;
  const auto parameters = models::model_parameters(model_config_);
  if (!options_.random_weights && models::has_checkpoint(options_.model)) {
    ARTESIAN_TRY(checkpoint,
                 naming("--model", models::CheckpointWeights::open(options_.model, model_config_)));
    source = std::make_unique<models::CheckpointWeights>(std::move(checkpoint));
  } else {
    ARTESIAN_TRY_VOID(check_random_weights());
    source = std::make_unique<zero3::RandomWeights>(parameters, options_.seed);
  }
  std::vector<std::string> names;
  for (const zero3::ParameterSpec& parameter : parameters) names.push_back(parameter.name);
  weights_ = std::make_unique<FiniteWeights>(std::move(source), std::move(names),
                                             "--model: " + options_.model, config_.param_dtype);
  return {};
}

Result<void> TrainRun::check_random_weights() const {
  if (!options_.random_weights) {
    auto none = models::check_no_other_weights(options_.model);
    if (!none.has_value()) {
      none.error().message += "; or start at random: --init";
      return naming("--model", std::move(none).error());
    }
    if (checkpointing_->goes_on()) return {};
    log(LogLevel::Info,
        fmt::format("--model: no weights in {}; initialising at random from --seed {}",
                    options_.model, options_.seed));
  }
  return {};
}

/// Runs once, since free memory differs when the engine is made a second time.
Result<void> TrainRun::choose_budgets() {
  module_ = models::make_module(model_config_);
  const auto planned = [&](const zero3::Budgets& budgets) -> Result<std::uint64_t> {
    ARTESIAN_TRY(compute_dtype, zero3::choose_compute_dtype(config_, /*native=*/true));
    return models::planned_activations({.model = &model_config_,
                                        .config = &config_,
                                        .parameters = &module_->parameters(),
                                        .stages = &module_->stages(),
                                        .tokens = config_.micro_batch_size * length_,
                                        .compute_dtype = compute_dtype,
                                        .budget = budgets.activations,
                                        .gpu = options_.device != "cpu"},
                                       budgets.host);
  };
  ARTESIAN_TRY(budgets,
               zero3::choose_budgets(config_, options_.device, planned, ranks_.local_ranks()));
  budgets_ = budgets;
  take_budgets();
  return check_memory_({.config = &config_,
                        .model = &model_config_,
                        .length = length_,
                        .device = options_.device,
                        .budgets = budgets_,
                        .ranks = ranks_.ranks()});
}

void TrainRun::take_budgets() {
  config_.artesian.device_memory = budgets_.device;
  config_.artesian.host_memory = budgets_.host;
  config_.artesian.activation_memory = budgets_.activations;
}

Result<std::unique_ptr<zero3::Engine>> TrainRun::make_engine() {
  const std::uint64_t tokens = config_.micro_batch_size * length_;
  auto engine = zero3::Engine::create(
      *module_, config_,
      {.device = options_.device,
       .group = ranks_.group(),
       .facts = facts(),
       .timeline = timeline_.get(),
       .stop = [this] { return ranks_.several() ? stop_requested() != 0 : has_no_time(); },
       .input_elements = models::stage_input_elements(model_config_, tokens)});
  if (!engine.has_value()) return naming_directory(config_, std::move(engine).error());
  return engine;
}

/// Facts that must be equal on all ranks, beside those that the engine compares.
std::vector<std::pair<std::string, std::string>> TrainRun::facts() const {
  std::vector<std::pair<std::string, std::string>> facts{
      {"--seed", std::to_string(options_.seed)},
      {"the order of samples", options_.shuffled ? "shuffled" : "sequential"},
      {"--seq-len", std::to_string(length_)},
      {"--save", saves_ ? "given" : "not given"},
      {"--eval-data", options_.eval_data.empty() ? "not given" : "given"},
      {"--checkpoint-every", std::to_string(options_.checkpoints.every.value_or(0))},
      {"--checkpoint-dir", options_.checkpoints.directory.empty() ? "not given" : "given"},
      {"--resume", checkpointing_->found().empty() ? "afresh" : checkpointing_->found().front()}};
  if (data_ != nullptr) {
    facts.emplace_back("the tokens of --data", std::to_string(data_->tokens()));
    facts.emplace_back("the number of steps", std::to_string(steps_));
  }
  return facts;
}

Result<void> TrainRun::build() {
  progress_ = std::make_unique<Progress>(
      Progress::Options{.quiet = options_.quiet,
                        .steps_total = steps_,
                        .steps_per_print = config_.steps_per_print.value_or(0),
                        .breakdown = config_.wall_clock_breakdown,
                        .budgets = budgets_});
  if (!options_.trace.empty()) timeline_ = std::make_unique<Timeline>();
  ARTESIAN_TRY(engine, make_engine());
  engine_ = std::move(engine);
  const auto report = [&](std::uint64_t done, std::uint64_t total) {
    progress_->initializing(done, total);
  };
  auto resumed = checkpointing_->begin(*engine_, std::move(identity_), steps_, report);
  progress_->finish();
  ARTESIAN_TRY(has_weights, std::move(resumed));
  resumed_ = has_weights;
  ARTESIAN_TRY_VOID(open_outputs());
  if (resumed_) return {};
  const FiniteWeights& weights = *weights_;
  // With several ranks none stops alone, as the others would wait for it.
  std::unique_ptr<zero3::WeightSource> source = std::move(weights_);
  if (!ranks_.several()) source = std::make_unique<StoppableWeights>(std::move(source));
  auto initialized = engine_->initialize(*source, report);
  progress_->finish();
  bad_weights_ = weights.found();
  return initialized;
}

Result<zero3::StepResult> TrainRun::one_step() {
  step_begin_ns_ = monotonic_ns();
  const std::uint64_t samples = config_.micro_batch_size;
  std::vector<zero3::TokenBatch> tokens;
  std::vector<zero3::Batch> batches;
  for (std::uint64_t micro = 0; micro < config_.accumulation_steps; ++micro) {
    zero3::TokenBatch& batch = tokens.emplace_back(samples, length_);
    const std::uint64_t number = micro * ranks_.ranks() + ranks_.rank();
    const std::uint64_t first = checkpointing_->next_sample() + number * samples;
    ARTESIAN_TRY_VOID(fill(*data_, first, samples, batch));
    batches.push_back(batch.batch());  // its memory does not move with `tokens`
  }
  ARTESIAN_TRY(losses, engine_->forward_backward(batches));
  static_cast<void>(losses);                // the step's result has the mean
  ARTESIAN_TRY_VOID(report_completed({}));  // the previous step, updated under this one's forward
  ARTESIAN_TRY_VOID(checkpointing_->commit_save(*engine_, *step_log_));
  if (checkpointing_->is_saving()) progress_->finish();
  ARTESIAN_TRY_VOID(checkpointing_->look_after_save(*engine_));
  checkpointing_->count(config_.train_batch_size);
  ARTESIAN_TRY(result, engine_->step());
  stops_ = result.stop;
  return result;
}

/// A step is reported when its update is complete.
Result<void> TrainRun::report_completed(const std::optional<std::string>& digest,
                                        const std::optional<double>& held_out) {
  auto own = engine_->take_completed();
  if (!own.has_value()) return {};
  const std::uint64_t own_written = own->bytes_nvme_write;
  ARTESIAN_TRY(of_all, ranks_.of_all(*std::move(own)));
  const zero3::StepResult* const result = &of_all;
  const double flops = models::flops_per_token(model_config_, length_);
  const double tflops = flops * static_cast<double>(result->tokens) /
                        (result->step_s > 0 ? result->step_s : 1.0) * 1e-12;
  step_log_->write(*result, {.tflops = tflops, .digest = digest, .held_out_loss = held_out});
  trackers_->write(*result, held_out);
  summary_.add(*result, held_out, own_written);
  progress_->step(*result, held_out);
  return {};
}

Result<void> TrainRun::loop() {
  const std::uint64_t first = checkpointing_->first_step();
  bool last = (stop_requested() != 0 && !ranks_.several()) || first >= steps_;
  for (std::uint64_t step = first; !last; ++step) {
    checkpointing_->expect(*engine_, step + 1);
    auto result = one_step();
    if (!result.has_value() && result.error().code == ErrorCode::Cancelled) return stop_at(step);
    if (!result.has_value()) {  // not an error of the last step, unless its update failed
      static_cast<void>(engine_->finish_update().has_value());
      static_cast<void>(report_completed({}).has_value());
      return std::move(result).error();
    }
    if (result->end.has_value()) {
      ARTESIAN_TRY_VOID(report_completed({}));
      return *std::move(result->end);
    }
    ARTESIAN_TRY(ended, end_step(step + 1));
    last = ended;
  }
  return {};
}

Result<void> TrainRun::begin_save(std::uint64_t step) {
  return checkpointing_->begin_save(
      *engine_, step,
      [this, step](std::uint64_t done, std::uint64_t all) { progress_->saving(step, done, all); });
}

/// Does the work between two steps: saves and evaluates the last step if that is due, and reports
/// it if it is the final one. Returns whether it is.
Result<bool> TrainRun::end_step(std::uint64_t step) {
  const bool due = checkpointing_->is_due(step, step == steps_);
  if (due) ARTESIAN_TRY_VOID(begin_save(step));
  ARTESIAN_TRY(held_out, held_out_loss(step));
  // Asked once, after the parts that may take long, as the last line has the digest.
  const bool last = step == steps_ || stops();
  const bool saves = checkpointing_->is_due(step, last);
  if (saves && !due) ARTESIAN_TRY_VOID(begin_save(step));
  std::optional<std::string> digest;
  if (last && (step == steps_ || !saves)) {  // otherwise the run continues, or has little time left
    ARTESIAN_TRY(hex, engine_->digest());
    digest = std::move(hex);
  }
  if (last) ARTESIAN_TRY_VOID(engine_->finish_update());
  ARTESIAN_TRY_VOID(report_completed(digest, held_out));
  if (!last) return false;
  progress_->finish();
  ARTESIAN_TRY_VOID(checkpointing_->commit_save(*engine_, *step_log_));
  ARTESIAN_TRY_VOID(checkpointing_->finish_save(*engine_));
  return true;
}

/// Ends the run in the middle of a step for which there is no time; the result is the previous
/// step.
Result<void> TrainRun::stop_at(std::uint64_t step) {
  ARTESIAN_TRY_VOID(engine_->abandon_step());
  ARTESIAN_TRY_VOID(engine_->finish_update());
  ARTESIAN_TRY_VOID(report_completed({}));
  progress_->finish();
  ARTESIAN_TRY_VOID(checkpointing_->commit_save(*engine_, *step_log_));  // the save of that step
  ARTESIAN_TRY_VOID(checkpointing_->finish_save(*engine_));
  if (step == checkpointing_->saved_step()) return {};
  ARTESIAN_TRY_VOID(begin_save(step));
  ARTESIAN_TRY_VOID(checkpointing_->commit_save(*engine_, *step_log_));
  return checkpointing_->finish_save(*engine_);
}

/// True if the current step would take longer than the time left after a stop.
bool TrainRun::has_no_time() const {
  if (stop_requested() == 0) return false;
  const double gone = seconds_since(step_begin_ns_);
  const double usual = summary_.steps() == 0 ? 0.0 : summary_.last().step_s;
  return checkpointing_->must_stop_now(*engine_, std::max(usual - gone, 0.0));
}

/// The held-out loss if one is due: every --eval-every steps, and after the last. A stop does not
/// wait for it.
Result<std::optional<double>> TrainRun::held_out_loss(std::uint64_t step) {
  const bool due =
      step == steps_ || (options_.eval_every.has_value() && step % *options_.eval_every == 0);
  if (held_out_ == nullptr || !due || stops()) return std::optional<double>();
  // Ranks complete an evaluation together, since they learn of a stop only in a step.
  const auto broken_off = [this] { return !ranks_.several() && stop_requested() != 0; };
  auto loss = held_out_->loss(*engine_, broken_off);
  if (!loss.has_value() && loss.error().code == ErrorCode::Cancelled) {
    return std::optional<double>();
  }
  if (!loss.has_value()) return naming("--eval-data", std::move(loss).error());
  return std::optional<double>(*loss);
}

/// Does each part even if earlier ones failed, above all saving the weights, which took long to
/// train.
void TrainRun::finish() {
  if (summary_.steps() == 0 && !resumed_) return;  // stopped before the first step
  const bool whole = faults_.empty() && !stops();
  if (whole && summary_.all_skipped()) faults_.push_back(no_step_taken());
  note(checkpointing_->outcome());
  note(naming("--save", save()));
  note(step_log_->close());
  trackers_->close();
  note(write_trace());
  note(print_table());
}

/// The error of a run that reached its end without an effective step.
Error TrainRun::no_step_taken() const {
  const std::uint64_t steps = summary_.steps();
  const zero3::StepResult& last = summary_.last();
  std::string text =
      fmt::format("no step was taken: {} skipped, as {} not finite; ",
                  steps == 1 ? std::string("the only one was") : fmt::format("all {} were", steps),
                  std::isfinite(last.loss) ? "gradients were" : "the loss was");
  if (!bad_weights_.empty()) {
    text += "weights that are not finite are in " + FiniteWeights::list(bad_weights_) +
            "; repair them, or start at random: --init";
  } else if (std::isfinite(last.loss) && config_.param_dtype == DType::Float16) {
    const bool fixed = config_.loss_scale.loss_scale > 0;
    text += (fixed ? "fp16.loss_scale is " : "the loss scale has come down to ") +
            print("%g", last.loss_scale) +
            (fixed ? ": a smaller one" : ": more steps, or a smaller fp16.initial_scale_power");
  } else {
    text += "look at the data, the weights and the learning rate";
  }
  return make_error(ErrorCode::Invalid, std::move(text));
}

Result<void> TrainRun::save() {
  if (!saves_) return {};
  if (summary_.all_skipped()) {
    log(LogLevel::Warning, "--save: nothing is saved: no step has changed the weights");
    return {};
  }
  if (!engine_->weights_readable()) {
    return make_error(ErrorCode::Invalid,
                      "nothing is saved: after this error the weights are not known to be right");
  }
  // With several ranks the others send their shares of the weights.
  ARTESIAN_TRY_VOID(save_model(*engine_, model_config_, save_.has_value() ? &*save_ : nullptr));
  saved_ = true;
  if (!faults_.empty()) {
    log(LogLevel::Info, "--save: all the same the weights are in " + options_.save +
                            ", as they were after the last step that changed them");
  }
  return {};
}

Result<void> TrainRun::print_table() {
  if (options_.quiet) return {};
  summary_.print(to_stdout() ? stderr : stdout, budgets_,
                 options_.device == "cpu" ? Summary::DeviceMemory::OfTheProcess
                                          : Summary::DeviceMemory::OfAGpu,
                 engine_->path_use(), engine_->describe_io(), engine_->placement().inputs,
                 ranks_.ranks());
  return flush_stdout();
}

/// Prints how the run ended as the last line. With --quiet, a run that did everything prints
/// nothing.
void TrainRun::say_end() const {
  const std::uint64_t before = resumed_ ? checkpointing_->first_step() : 0;
  const std::uint64_t steps = before + summary_.steps();
  const bool stopped = stop_requested() != 0;
  const bool whole = faults_.empty() && !stopped;
  if (whole && options_.quiet) return;
  std::string line = stopped           ? "stopped by " + stop_signal_name()
                     : faults_.empty() ? "done"
                                       : "ended by an error";
  line +=
      steps == 0 ? " before the first step" : fmt::format(" after step {} of {}", steps, steps_);
  if (!options_.save.empty()) {
    line += saved_ ? "; saved to " + options_.save : std::string("; nothing is saved");
  }
  std::fputs((log_text(LogLevel::Info, line) + "\n").c_str(), stderr);
}

void TrainRun::note(Result<void> outcome) {
  if (!outcome.has_value()) faults_.push_back(std::move(outcome).error());
}

}  // namespace

int train(const TrainOptions& options, const CheckMemory& check_memory) {
  auto ranks = RunRanks::find();
  if (!ranks.has_value()) return report_error("artesian", ranks.error(), 2);
  set_log_level(ranks->log_level(options));
  if (!ranks->first()) set_log_program(ranks->program());
  return TrainRun(options, check_memory, std::move(ranks).value()).run();
}

}  // namespace artesian::tools
