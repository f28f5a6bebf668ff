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
  std::string directory;                       // --checkpoint-dir; empty: nothing is saved
  std::optional<std::uint64_t> every;          // --checkpoint-every; absent: at the end alone
  std::uint32_t keep = 2;                      // --checkpoint-keep
  bool resume = false;                         // --resume
  std::string from;                            // its value; empty: the directory
  double grace = 30.0;                         // --grace, seconds
  std::optional<std::uint64_t> data_position;  // --data-position: a sample
  bool changed_model = false;                  // --allow-changed-model
  bool optional = false;                       // --checkpoint-optional
  bool together = false;                       // with other ranks, which save at the same steps
  bool first = true;                           // this rank owns the folder
};

/// What a checkpoint and the run that resumes from it must have in common.
struct RunIdentity {
  std::map<std::string, std::string> model_files;  // config.json and the tokenizer's files, by name
  std::string config;                              // the configuration file's text
  zero3::SavedTrainer data;                        // all but next_sample and log_line
  zero3::OtherName other_name;                     // what transformers calls a parameter
};

class Checkpointing {
 public:
  /// Finds the checkpoint to resume from, and takes its number of threads unless OMP_NUM_THREADS is
  /// set. Errors: Invalid (no such checkpoint), Corrupt, Io.
  static Result<Checkpointing> open(const CheckpointFlags& flags);
  /// Compares the checkpoint to resume from with the description of this run's data, whose sources
  /// and digest may be missing yet. Errors: Invalid.
  Result<void> check_data(const zero3::SavedTrainer& now) const;
  /// Compares the text of the model's config.json with the checkpoint's. Errors: Invalid: it
  /// computes something else, and --allow-changed-model is not given.
  Result<void> check_model(const std::string& config) const;

  /// Opens the folder, by an engine that need not have its weights. `steps_total`: absent: not
  /// known yet. Errors, of which each refuses the run: those of Engine::open_checkpoints; NoSpace;
  /// Invalid: a folder with another run's checkpoints.
  Result<void> open_folder(zero3::Engine& engine, std::optional<std::uint64_t> steps_total);
  /// open_folder(), and where there is a checkpoint, makes the engine what was saved. Returns
  /// whether the engine has its weights. Errors, of which each refuses the run: those of
  /// open_folder and of Engine::load_checkpoint; Invalid: other data.
  Result<bool> begin(zero3::Engine& engine, RunIdentity identity, std::uint64_t steps_total,
                     const zero3::Engine::Progress& progress);
  /// True if there is a checkpoint to resume from.
  bool goes_on() const noexcept { return !found_.empty(); }
  /// The tags to resume from, the best first.
  const std::vector<std::string>& found() const noexcept { return found_; }
  /// Steps done before this run began, and where in the data the next one begins.
  std::uint64_t first_step() const noexcept { return first_step_; }
  std::uint64_t next_sample() const noexcept { return next_sample_; }
  /// The log's line of the last step before the resume, if there was one.
  const std::string& log_line() const noexcept { return log_line_; }

  /// Steps that a run can have taken without a checkpoint; 0: any number. Its first save begins
  /// with the first step that is due, and is durable, or has failed, by the next one that is: three
  /// failures in a row end the run, unless checkpoints are optional.
  std::uint64_t steps_without_checkpoint() const noexcept;
  /// True if a checkpoint is due after step number `step`.
  bool is_due(std::uint64_t step, bool last) const;
  /// After each step: counts its samples.
  void count(std::uint64_t samples) noexcept { next_sample_ += samples; }
  /// True if a stop was asked for, and its grace is too short for `seconds_more` more and a save of
  /// the state after them.
  bool must_stop_now(const zero3::Engine& engine, double seconds_more) const;
  /// The last step that is durable; 0: none is.
  std::uint64_t saved_step() const noexcept { return saved_step_; }
  /// A save is made beside the training, in these calls. One that fails is a warning, and the run
  /// goes on. Errors, which end it: the third failure in a row, unless --checkpoint-optional; those
  /// of the engine's tiers.
  ///
  /// Before a step that is due: what its update makes under backward is copied there.
  void expect(zero3::Engine& engine, std::uint64_t step);
  /// After the step, if the time for a save is left; waits for the one before. `progress`: of what
  /// is copied, within later calls of the engine.
  Result<void> begin_save(zero3::Engine& engine, std::uint64_t step,
                          const zero3::Engine::Progress& progress);
  /// Commits the save once its step is the log's last line, which it makes durable.
  Result<void> commit_save(zero3::Engine& engine, StepLog& step_log);
  /// Checks whether the save is durable. Does nothing if none was committed.
  Result<void> look_after_save(zero3::Engine& engine);
  /// Waits for it.
  Result<void> finish_save(zero3::Engine& engine);
  /// A save was committed, and its outcome has not been reported yet.
  bool is_saving() const noexcept { return saving_.has_value() && saving_->commit_ns.has_value(); }
  /// The failed saves of the run, as one error. Nothing where all went well.
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
  std::string found_in_;                      // the folder of the checkpoint to resume from
  std::vector<std::string> found_;            // tags there, the best first; empty: it starts afresh
  std::vector<std::string> damaged_;          // tags there, passed over
  std::string model_config_;                  // the config.json in the best one; empty: none
  std::optional<zero3::SavedTrainer> saved_;  // what the best one says of its run
  std::uint64_t first_step_ = 0;
  std::uint64_t next_sample_ = 0;
  std::string log_line_;
  /// One that is made beside the training.
  struct Saving {
    std::uint64_t step = 0;
    std::uint64_t next_sample = 0;
    std::uint64_t begin_ns = 0;
    std::optional<std::uint64_t> commit_ns{};
  };
  std::optional<Saving> saving_;
  std::uint64_t saved_step_ = 0;  // the last step that is durable
  double save_seconds_ = 0.0;     // seconds of the last save; 0: none yet
  std::uint64_t failed_in_a_row_ = 0;
  std::uint64_t failed_ = 0;
  std::uint64_t tried_ = 0;
  std::optional<Error> first_failure_;
};

}  // namespace artesian::tools
