#include "tools/train/checkpointing.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "base/clock.h"
#include "base/durable_folder.h"
#include "base/log.h"
#include "base/units.h"
#include "models/model_changes.h"
#include "tools/checkpoint/place.h"
#include "tools/shell/print.h"
#include "tools/shell/process_setup.h"
#include "tools/shell/report_error.h"
#include "zero3/config/changes.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t failures_max = 3;  // failed saves in a row
constexpr double probe_seconds = 1.0;      // length of the probe write before the first step

std::string seconds_text(double seconds) {
  return print("%.1f s", seconds);
}

/// Estimated seconds for writing this many bytes to the folder, from the probe.
double seconds_of(std::uint64_t bytes, const zero3::Engine& engine) {
  const double rate = engine.checkpoints().write_rate();
  ARTESIAN_CHECK(rate > 0.0, rate);
  return static_cast<double>(bytes) / rate;
}

/// The config.json in a run's checkpoint; empty if there is none that can be read.
std::string model_config_of(Folder& checkpoint, const zero3::CheckpointManifest& manifest) {
  const std::string folder(zero3::model_folder_name);
  for (const zero3::SavedSideFile& file : manifest.side_files) {
    if (file.name != folder + "/config.json") continue;
    const auto opened = checkpoint.open_folder(folder);
    if (!opened.has_value()) return "";
    auto text = zero3::read_with_digest(**opened, "config.json", file.bytes, file.digest);
    return text.has_value() ? std::move(text).value() : "";
  }
  return "";
}

}  // namespace

Result<Checkpointing> Checkpointing::open(const CheckpointFlags& flags) {
  Checkpointing made(flags);
  made.next_sample_ = flags.data_position.value_or(0);
  if (!flags.resume) return made;
  const CheckpointPath place =
      flags.from.empty() ? CheckpointPath{flags.directory, ""} : checkpoint_path(flags.from);
  std::error_code ignored;
  if (flags.from.empty() && !std::filesystem::exists(place.directory, ignored)) return made;
  ARTESIAN_TRY_VOID(naming("--resume", made.find(place.directory, place.tag)));
  return made;
}

/// Finds the tags that the run may resume from.
Result<void> Checkpointing::find(const std::string& directory, const std::string& tag) {
  ARTESIAN_TRY(folder, open_system_folder(directory));
  ARTESIAN_TRY(content, zero3::read_checkpoints(*folder));
  ARTESIAN_TRY_VOID(tag.empty() ? choose(content, directory) : take_tag(content, tag));
  if (found_.empty()) {
    log(LogLevel::Info, "--resume: no checkpoint in " + directory + ": starting afresh");
    return {};
  }
  found_in_ = directory;
  ARTESIAN_TRY(chosen, folder->open_folder(found_.front()));
  ARTESIAN_TRY(manifest, zero3::read_manifest_of(*chosen));
  ARTESIAN_TRY_VOID(take_over(manifest));
  model_config_ = model_config_of(*chosen, manifest);
  const auto threads = manifest.machine.find("threads");
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread yet
  if (threads == manifest.machine.end() || std::getenv("OMP_NUM_THREADS") != nullptr) return {};
  int count = 0;
  const std::string& text = threads->second;
  std::from_chars(text.data(), text.data() + text.size(), count);
  if (count < 1 || count > 4096 || count == at::get_num_threads()) return {};
  log(LogLevel::Info,
      fmt::format("--resume: computing with {} threads, as before; {} would be this machine's own",
                  text, at::get_num_threads()));
  at::set_num_threads(count);
  return {};
}

/// Chooses a checkpoint without a named tag: Note [A whole one that is older].
Result<void> Checkpointing::choose(const zero3::FolderContent& content,
                                   const std::string& directory) {
  ARTESIAN_TRY(choice, zero3::choose_checkpoints(content, directory));
  found_ = std::move(choice.tags);
  damaged_ = std::move(choice.damaged);
  if (!choice.warning.empty()) {
    log(LogLevel::Warning, "--resume: " + choice.warning + "; going on from " + found_.front());
  }
  if (!found_.empty() || flags_.from.empty()) return {};
  return make_error(ErrorCode::Invalid, "got " + flags_.from + ", allowed a folder of checkpoints");
}

Result<void> Checkpointing::take_tag(const zero3::FolderContent& content, const std::string& tag) {
  const auto has = [&](const zero3::FoundCheckpoint& each) { return each.tag == tag; };
  if (std::any_of(content.found.begin(), content.found.end(), has)) {
    found_ = {tag};
    return {};
  }
  const std::string other = zero3::newest_of(content.found);
  const auto damaged = std::find_if(content.damaged.begin(), content.damaged.end(),
                                    [&](const auto& each) { return each.first == tag; });
  if (damaged != content.damaged.end()) {
    Error error = damaged->second;
    if (!other.empty()) error.message += "; " + other + " is whole";
    return error;
  }
  return make_error(ErrorCode::Invalid, "got " + tag + ", allowed a checkpoint that is there" +
                                            (other.empty() ? "" : ", such as " + other));
}

/// Checks that the data is the same, so that the next sample is the right one.
Result<void> Checkpointing::check_data(const zero3::SavedTrainer& now) const {
  if (flags_.data_position.has_value() || !saved_.has_value()) return {};
  const zero3::SavedTrainer& saved = *saved_;
  std::string what;
  const auto compare = [&](const char* name, const std::string& before, const std::string& after) {
    if (before == after || !what.empty()) return;
    what = std::string(name) + " was " + before + ", is " + after;
  };
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  compare("--seq-len", number(saved.sequence_length), number(now.sequence_length));
  compare("--order", saved.order, now.order);
  compare("--seed", number(saved.seed), number(now.seed));
  const auto stream = [](const zero3::SavedTrainer& of) {
    std::string text;
    for (const zero3::SavedSource& source : of.sources) {
      text += fmt::format("{}{} tokens with digest {}", text.empty() ? "" : " and ", source.tokens,
                          source.digest);
    }
    return text;
  };
  if (!now.sources.empty()) compare("--data", stream(saved), stream(now));
  if (what.empty()) return {};
  return make_error(ErrorCode::Invalid,
                    "--resume: " + what +
                        "; take what it was trained on, or say at which sample of this data it is "
                        "to go on: --data-position N");
}

Result<void> Checkpointing::check_model(const std::string& config) const {
  std::string changes;
  for (const std::string& change : models::model_changes(model_config_, config)) {
    changes += (changes.empty() ? "" : "; ") + change;
  }
  if (changes.empty()) return {};
  if (!flags_.changed_model) {
    return make_error(ErrorCode::Invalid,
                      "--resume: config.json of --model is not the checkpoint's: " + changes +
                          "; give the model that was trained, or go on as another: "
                          "--allow-changed-model");
  }
  log(LogLevel::Warning, "--resume: the model goes on as another: " + changes);
  return {};
}

/// Adopts the run's state from the checkpoint.
Result<void> Checkpointing::take_over(const zero3::CheckpointManifest& manifest) {
  first_step_ = saved_step_ = manifest.state.step;
  saved_ = manifest.trainer;
  if (!manifest.trainer.has_value()) {
    if (flags_.data_position.has_value()) return {};
    return make_error(ErrorCode::Invalid,
                      "the checkpoint does not say where in the data it is: it is no run's "
                      "of `artesian train`; add --data-position N");
  }
  next_sample_ = flags_.data_position.value_or(manifest.trainer->next_sample);
  log_line_ = manifest.trainer->log_line;
  return {};
}

/// Refuses a folder with another run's checkpoints, as saving there would fail at the first tag of
/// theirs.
Result<void> Checkpointing::check_others(const zero3::Engine& engine) const {
  const zero3::FolderContent& content = engine.checkpoints().found();
  if (content.found.empty() && content.damaged.empty()) return {};
  std::error_code ignored;
  if (!found_.empty() && std::filesystem::equivalent(found_in_, flags_.directory, ignored)) {
    return {};
  }
  const std::string there =
      content.found.empty() ? content.damaged.front().first : zero3::newest_of(content.found);
  return make_error(ErrorCode::Invalid,
                    "--checkpoint-dir: got " + flags_.directory + " with " + there +
                        " of another run, allowed a folder without checkpoints; "
                        "go on from it with --resume, or use another folder");
}

/// Refuses a run whose checkpoints, as many as exist at once, would not fit.
Result<void> Checkpointing::check_room(const zero3::Engine& engine,
                                       std::optional<std::uint64_t> steps_total) const {
  const std::uint64_t total = steps_total.value_or(first_step_ + 1);
  const std::uint64_t left = total > first_step_ ? total - first_step_ : 0;
  const std::uint64_t every = flags_.every.value_or(std::max<std::uint64_t>(left, 1));
  const std::uint64_t saves = (left + every - 1) / every;
  if (saves == 0) return {};
  const zero3::Checkpoints& checkpoints = engine.checkpoints();
  const std::uint64_t bytes = checkpoints.data_bytes();
  const std::uint64_t needed = zero3::bytes_to_come({.checkpoint_bytes = bytes,
                                                     .saves = saves,
                                                     .keep = flags_.keep,
                                                     .present = checkpoints.found().found.size(),
                                                     .spares = 1});
  std::error_code failure;
  const auto space = std::filesystem::space(flags_.directory, failure);
  if (failure || needed <= space.available) return {};
  return make_error(
      ErrorCode::NoSpace,
      fmt::format("--checkpoint-dir: got {} free beside the room of one, allowed at least {}: "
                  "checkpoints of {}, the newest {} and the one that is being written; "
                  "--checkpoint-keep 1, a folder on another disk, or --save without checkpoints",
                  format_size(space.available), format_size(needed), format_size(bytes),
                  flags_.keep));
}

/// Logs the keys that differ from the checkpoint's configuration.
void Checkpointing::note_changes(const zero3::CheckpointManifest& manifest) const {
  const auto before = zero3::read_json(manifest.config, "the checkpoint's configuration");
  const auto after = zero3::read_json(identity_.config, "--config");
  if (!before.has_value() || !after.has_value()) return;  // an unknown key has no effect
  for (const std::string& change : zero3::config_changes(*before, *after)) {
    log(LogLevel::Info, "--resume: " + change);
  }
}

/// Loads the first of the found checkpoints that is not damaged.
Result<void> Checkpointing::load(zero3::Engine& engine, const zero3::Engine::Progress& progress) {
  for (std::size_t index = 0;; ++index) {
    const std::uint64_t begin = monotonic_ns();
    auto loaded = engine.load_checkpoint(
        {.directory = found_in_, .tag = found_[index], .other_name = identity_.other_name},
        progress);
    if (loaded.has_value()) {
      log(LogLevel::Info,
          fmt::format("--resume: going on from {}, step {}, read in {}", found_[index],
                      loaded->manifest.state.step, seconds_text(seconds_since(begin))));
      ARTESIAN_TRY_VOID(naming("--resume", take_over(loaded->manifest)));
      note_changes(loaded->manifest);
      set_damaged_aside();
      return {};
    }
    const bool damaged = loaded.error().code == ErrorCode::Corrupt && index + 1 < found_.size();
    if (!damaged) return naming("--resume", std::move(loaded).error());
    log(LogLevel::Warning,
        "--resume: " + loaded.error().to_string() + "; going on from " + found_[index + 1]);
    damaged_.push_back(found_[index]);
  }
}

/// Renames damaged checkpoints in the run's own folder, whose lock the engine holds. Failures do
/// not stop the training.
void Checkpointing::set_damaged_aside() const {
  std::error_code ignored;
  if (flags_.directory.empty() || damaged_.empty() || !flags_.first) return;
  if (!std::filesystem::equivalent(found_in_, flags_.directory, ignored)) return;
  const auto folder = open_system_folder(flags_.directory);
  for (const std::string& tag : damaged_) {
    if (!folder.has_value()) return;
    const auto done = zero3::set_aside(**folder, tag);
    if (!done.has_value()) log(LogLevel::Warning, "checkpoints: " + done.error().to_string());
  }
}

Result<void> Checkpointing::open_folder(zero3::Engine& engine,
                                        std::optional<std::uint64_t> steps_total) {
  const std::uint64_t every = engine.config().artesian.checkpoint_every;
  if (!flags_.every.has_value() && every != 0) flags_.every = every;
  if (flags_.directory.empty()) return {};
  ARTESIAN_TRY_VOID(naming(
      "--checkpoint-dir",
      engine.open_checkpoints(
          {.directory = flags_.directory, .keep = flags_.keep, .probe_seconds = probe_seconds})));
  ARTESIAN_TRY_VOID(check_others(engine));
  ARTESIAN_TRY_VOID(check_room(engine, steps_total));
  say_slow_folder(engine);
  return {};
}

/// Warns of a folder that is so slow that training waits.
void Checkpointing::say_slow_folder(const zero3::Engine& engine) const {
  const std::uint64_t bytes = engine.checkpoints().data_bytes();
  const double rate = engine.checkpoints().write_rate();
  const double state_rate = engine.disk_write_rate();
  if (!zero3::holds_up_training(bytes, rate, state_rate)) return;
  const auto a_second = [](double value) {
    return format_size(static_cast<std::uint64_t>(value)) + "/s";
  };
  log(LogLevel::Warning,
      fmt::format("--checkpoint-dir: {} takes {}, the disks of the state {}: training waits for "
                  "most of the {} in which a checkpoint of {} is written; use a folder on a faster "
                  "disk, or save less often (--checkpoint-every)",
                  flags_.directory, a_second(rate), a_second(state_rate),
                  seconds_text(seconds_of(bytes, engine)), format_size(bytes)));
}

Result<bool> Checkpointing::begin(zero3::Engine& engine, RunIdentity identity,
                                  std::uint64_t steps_total,
                                  const zero3::Engine::Progress& progress) {
  identity_ = std::move(identity);
  ARTESIAN_TRY_VOID(check_data(identity_.data));
  ARTESIAN_TRY_VOID(open_folder(engine, steps_total));
  if (!found_.empty()) ARTESIAN_TRY_VOID(load(engine, progress));
  return !found_.empty();
}

bool Checkpointing::is_due(std::uint64_t step, bool last) const {
  if (flags_.directory.empty()) return false;
  return last || (flags_.every.has_value() && step % *flags_.every == 0);
}

/// Returns the duration of the last save, or an estimate from its bytes.
double Checkpointing::seconds_of_save(const zero3::Engine& engine) const {
  if (save_seconds_ != 0.0) return save_seconds_;
  return seconds_of(engine.checkpoints().data_bytes(), engine);
}

bool Checkpointing::must_stop_now(const zero3::Engine& engine, double seconds_more) const {
  if (stop_requested() == 0 || flags_.directory.empty()) return false;
  return seconds_more + seconds_of_save(engine) > flags_.grace - seconds_since_stop();
}

/// True if there is time for a save, also after a stop was requested.
bool Checkpointing::has_time(std::uint64_t step, const zero3::Engine& engine) const {
  if (stop_requested() == 0) return true;
  const double needed = seconds_of_save(engine);
  const double left = flags_.grace - seconds_since_stop();
  if (needed <= left) return true;
  log(LogLevel::Warning,
      fmt::format("no checkpoint is saved: it would take about {}, and of --grace {} there are {}; "
                  "{}{} steps are lost",
                  seconds_text(needed), print("%g", flags_.grace),
                  seconds_text(std::max(left, 0.0)),
                  saved_step_ == 0 ? "there is none, and all "
                                   : fmt::format("global_step{} stands, and ", saved_step_),
                  step - saved_step_));
  return false;
}

Result<void> Checkpointing::note_failure(std::uint64_t step, Error error) {
  ++failed_;
  ++failed_in_a_row_;
  log(LogLevel::Warning,
      fmt::format("checkpoint of step {}: {}; training goes on", step, error.to_string()));
  if (!first_failure_.has_value()) first_failure_ = error;
  if (failed_in_a_row_ < failures_max || flags_.optional) return {};
  error.message = fmt::format(
      "{} checkpoints in a row could not be saved, the last one: {}; make room, use another "
      "folder, or train on without: --checkpoint-optional",
      failures_max, error.message);
  return error;
}

zero3::SaveRequest Checkpointing::request_with(zero3::Engine::Progress progress) const {
  return {.model = identity_.model_files,
          .trainer = identity_.data,
          .config = identity_.config,
          .progress = std::move(progress)};
}

std::uint64_t Checkpointing::steps_without_checkpoint() const noexcept {
  std::uint64_t steps = 0;
  const bool any =
      flags_.optional || __builtin_mul_overflow(flags_.every.value_or(0), failures_max + 1, &steps);
  return any ? 0 : steps;
}

void Checkpointing::expect(zero3::Engine& engine, std::uint64_t step) {
  if (saving_.has_value() || !is_due(step, false) || stop_requested() != 0) return;
  static_cast<void>(engine.expect_checkpoint());  // begin_save() will return the same error
}

Result<void> Checkpointing::begin_save(zero3::Engine& engine, std::uint64_t step,
                                       const zero3::Engine::Progress& progress) {
  ARTESIAN_TRY_VOID(finish_save(engine));
  if (!flags_.together && !has_time(step, engine)) return {};
  ++tried_;
  const std::uint64_t begin = monotonic_ns();
  auto begun = engine.begin_checkpoint(request_with(progress));
  if (!begun.has_value()) return note_failure(step, std::move(begun).error());
  saving_ = Saving{.step = step, .next_sample = next_sample_, .begin_ns = begin};
  return {};
}

Result<void> Checkpointing::commit_save(zero3::Engine& engine, StepLog& step_log) {
  if (!saving_.has_value() || saving_->commit_ns.has_value()) return {};
  zero3::SavedTrainer trainer = identity_.data;
  trainer.next_sample = saving_->next_sample;
  trainer.log_line = step_log.last_line();
  // If the log cannot be made durable, its lines may be lost in a power cut; the checkpoint is
  // saved anyway.
  auto synced = step_log.sync();
  if (!synced.has_value()) log(LogLevel::Warning, synced.error().to_string());
  saving_->commit_ns = monotonic_ns();
  return engine.commit_checkpoint(std::move(trainer));
}

Result<void> Checkpointing::look_after_save(zero3::Engine& engine) {
  if (!is_saving()) return {};
  auto finished = engine.finish_checkpoint(0.0);
  if (!finished.has_value() && finished.error().code == ErrorCode::Timeout) return {};
  return end_save(engine, std::move(finished));
}

Result<void> Checkpointing::finish_save(zero3::Engine& engine) {
  return is_saving()
             ? end_save(engine, engine.finish_checkpoint(engine.checkpoints().commit_seconds()))
             : Result<void>();
}

/// Logs the outcome of the save.
Result<void> Checkpointing::end_save(const zero3::Engine& engine,
                                     Result<std::optional<zero3::SavedCheckpoint>> finished) {
  const Saving done = *std::exchange(saving_, std::nullopt);
  if (!finished.has_value()) return note_failure(done.step, std::move(finished).error());
  const zero3::SavedCheckpoint& saved = **finished;  // it exists, as a save was committed
  failed_in_a_row_ = 0;
  saved_step_ = done.step;
  save_seconds_ = seconds_of(saved.bytes_written, engine) + seconds_since(*done.commit_ns);
  log(LogLevel::Info, "checkpoint " + saved.tag + ": " + format_size(saved.bytes_written) + " in " +
                          seconds_text(seconds_since(done.begin_ns)));
  return {};
}

Result<void> Checkpointing::outcome() const {
  const bool ended = failed_in_a_row_ >= failures_max && !flags_.optional;  // reported elsewhere
  if (failed_ == 0 || ended) return {};
  Error error = *first_failure_;
  error.message = fmt::format("{} of {} checkpoints could not be saved, the first one: {}", failed_,
                              tried_, error.message);
  return error;
}

}  // namespace artesian::tools
