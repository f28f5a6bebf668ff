// Checkpoints of `artesian train`: which one a run resumes from, when it saves, and what a failed
// save means for the run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/train/step_log.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {

struct CheckpointFlags {
  std::string directory;                       // --checkpoint-dir; empty: no checkpoints
  std::optional<std::uint64_t> every;          // --checkpoint-every; absent: only at the end
  std::uint32_t keep = 2;                      // --checkpoint-keep
  bool resume = false;                         // --resume
  std::string from;                            // value of --resume; empty: `directory`
  double grace = 30.0;                         // --grace, seconds
  std::optional<std::uint64_t> data_position;  // --data-position: number of a sample
  bool changed_model = false;                  // --allow-changed-model
  bool optional = false;                       // --checkpoint-optional
  bool together = false;                       // several ranks save at the same steps
  bool first = true;                           // this rank owns the folder (rank 0)
};

/// Properties that a checkpoint must share with the run that resumes from it.
struct RunIdentity {
  std::map<std::string, std::string> model_files;  // config.json and the tokenizer's files, by name
  std::string config;                              // the configuration file's text
  zero3::SavedTrainer data;                        // everything except next_sample and log_line
  zero3::OtherName other_name;                     // the name of a parameter in transformers
};

class Checkpointing {
 public:
  /// Finds the checkpoint to resume from, and adopts its number of threads unless OMP_NUM_THREADS
  /// is set. Errors: Invalid (no such checkpoint), Corrupt, Io.
  static Result<Checkpointing> open(const CheckpointFlags& flags);
  /// Compares the data of the checkpoint to resume from with that of this run, whose sources and
  /// digest may not be known yet. Errors: Invalid.
  Result<void> check_data(const zero3::SavedTrainer& now) const;
  /// Compares the text of the model's config.json with the checkpoint's. Errors: Invalid (it
  /// changes what the model computes, and --allow-changed-model is not given).
  Result<void> check_model(const std::string& config) const;

  /// Opens the folder with an engine that need not have its weights. `steps_total`: absent if not
  /// known yet. Errors, each of which ends the run before it starts: those of
  /// Engine::open_checkpoints; NoSpace; Invalid: a folder with another run's checkpoints.
  Result<void> open_folder(zero3::Engine& engine, std::optional<std::uint64_t> steps_total);
  /// Calls open_folder() and, if there is a checkpoint, loads it into the engine. Returns whether
  /// the engine has its weights. Errors, each of which ends the run before it starts: those of
  /// open_folder and of Engine::load_checkpoint; Invalid: other data.
  Result<bool> begin(zero3::Engine& engine, RunIdentity identity, std::uint64_t steps_total,
                     const zero3::Engine::Progress& progress);
  /// True if there is a checkpoint to resume from.
  bool goes_on() const noexcept { return !found_.empty(); }
  /// The tags to resume from, best first.
  const std::vector<std::string>& found() const noexcept { return found_; }
  /// Steps done before this run began, and the sample with which the next one begins.
  std::uint64_t first_step() const noexcept { return first_step_; }
  std::uint64_t next_sample() const noexcept { return next_sample_; }
  /// The log line of the last step before the resume, if there was one.
  const std::string& log_line() const noexcept { return log_line_; }

  /// The most steps that a run can have made without a checkpoint; 0: no limit. The first save
  /// begins at the first step that is due, and is durable, or has failed, by the next due step;
  /// three failures in a row end the run, unless checkpoints are optional.
  std::uint64_t steps_without_checkpoint() const noexcept;
  /// True if a checkpoint is due after step number `step`.
  bool is_due(std::uint64_t step, bool last) const;
  /// Call it after each step: counts its samples.
  void count(std::uint64_t samples) noexcept { next_sample_ += samples; }
  /// True if a stop was requested, and the grace period is too short for `seconds_more` more
  /// seconds and a save after them.
  bool must_stop_now(const zero3::Engine& engine, double seconds_more) const;
  /// The last step with a durable checkpoint; 0: none.
  std::uint64_t saved_step() const noexcept { return saved_step_; }
  /// The calls below make a save in the background. A save that fails gives a warning, and the run
  /// continues. Errors that end the run: the third failure in a row, unless --checkpoint-optional;
  /// those of the engine's tiers.
  ///
  /// Call this before a step that is due: state updated under its backward is then copied at once.
  void expect(zero3::Engine& engine, std::uint64_t step);
  /// Call it after the step, if there is time for a save; waits for the previous one. `progress`:
  /// called with the bytes copied, within later calls of the engine.
  Result<void> begin_save(zero3::Engine& engine, std::uint64_t step,
                          const zero3::Engine::Progress& progress);
  /// Commits the save once its step is the log's last line, which is made durable first.
  Result<void> commit_save(zero3::Engine& engine, StepLog& step_log);
  /// Checks whether the save is durable. Does nothing if none was committed.
  Result<void> look_after_save(zero3::Engine& engine);
  /// Waits for the save.
  Result<void> finish_save(zero3::Engine& engine);
  /// True if a save was committed, and its outcome has not been reported yet.
  bool is_saving() const noexcept { return saving_.has_value() && saving_->commit_ns.has_value(); }
  /// The failed saves of the run, as one error; success if there were none.
  Result<void> outcome() const;

 private:
  explicit Checkpointing(const CheckpointFlags& flags) : flags_(flags) {}
  Result<void> find(const std::string& directory, const std::string& tag);
  Result<void> choose(const zero3::FolderContent& content, const std::string& directory);
  Result<void> take_tag(const zero3::FolderContent& content, const std::string& tag);
  void set_damaged_aside() const;
  Result<void> take_over(const zero3::CheckpointManifest& manifest);
  void note_changes(const zero3::CheckpointManifest& manifest) const;
  Result<void> check_others(const zero3::Engine& engine) const;
  Result<void> check_room(const zero3::Engine& engine,
                          std::optional<std::uint64_t> steps_total) const;
  void say_slow_folder(const zero3::Engine& engine) const;
  Result<void> load(zero3::Engine& engine, const zero3::Engine::Progress& progress);
  zero3::SaveRequest request_with(zero3::Engine::Progress progress) const;
  Result<void> end_save(const zero3::Engine& engine,
                        Result<std::optional<zero3::SavedCheckpoint>> finished);
  double seconds_of_save(const zero3::Engine& engine) const;
  bool has_time(std::uint64_t step, const zero3::Engine& engine) const;
  Result<void> note_failure(std::uint64_t step, Error error);

  CheckpointFlags flags_;
  RunIdentity identity_;
  std::string found_in_;              // the folder of the checkpoint to resume from
  std::vector<std::string> found_;    // tags in it, best first; empty: the run starts afresh
  std::vector<std::string> damaged_;  // damaged tags in it, which were passed over
  std::string model_config_;          // the config.json in the best one; empty if there is none
  std::optional<zero3::SavedTrainer> saved_;  // description of the run in the best one
  std::uint64_t first_step_ = 0;
  std::uint64_t next_sample_ = 0;
  std::string log_line_;
  /// A save in the background.
  struct Saving {
    std::uint64_t step = 0;
    std::uint64_t next_sample = 0;
    std::uint64_t begin_ns = 0;
    std::optional<std::uint64_t> commit_ns{};
  };
  std::optional<Saving> saving_;
  std::uint64_t saved_step_ = 0;  // the last step with a durable checkpoint
  double save_seconds_ = 0.0;     // seconds of the last save; 0: none yet
  std::uint64_t failed_in_a_row_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t tried_ = 0;
  std::optional<Error> first_failure_;
};

}  // namespace artesian::tools
