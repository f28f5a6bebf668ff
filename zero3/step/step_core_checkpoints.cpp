// The part of StepCore that saves and loads its state.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/durable_folder.h"
#include "base/log.h"
#include "zero3/checkpoint/checkpoint_folder.h"
#include "zero3/step/step_core.h"

namespace artesian::zero3 {
namespace {

void say_other(const std::string& why, const std::string& other) {
  log(LogLevel::Warning, "load_checkpoint: " + why + "; going on from " + other);
}

/// One optimizer's moments are meaningless for another.
Result<void> check_same_optimizer(const CheckpointManifest& manifest, const OptimizerConfig& config,
                                  const std::string& directory) {
  for (const SavedGroup& group : manifest.groups) {
    const OptimizerForm* saved = find_optimizer(group.optimizer);
    if (group.parameters.empty() || (saved != nullptr && saved->type == config.type)) continue;
    return make_error(
        ErrorCode::Invalid,
        fmt::format("checkpoint in {}: got the optimizer {}, allowed {}, as optimizer.type; set it "
                    "to the checkpoint's, or load weights without optimizer states",
                    directory, group.optimizer, saved_name(config)));
  }
  return {};
}

}  // namespace

double StepCore::disk_write_rate() const noexcept {
  auto shares = state_->optimizer_shares();
  if (shares.empty()) shares = state_->param_shares();
  std::vector<tiering::PathDisk> disks;
  std::vector<double> weights;
  for (const tiering::PathShare& path : shares) {
    if (path.share == 0) continue;
    disks.push_back(state_->disks()[path.path]);
    weights.push_back(path.share);
  }
  return tiering::striped_speed(disks, weights).write_bytes_per_s;
}

Result<void> StepCore::open_checkpoints(const CheckpointPlace& place) {
  if (step_state_ == StepState::Closed) return check(StepCall::Save, "open_checkpoints");
  ARTESIAN_TRY_VOID(check_not_saving("open_checkpoints"));
  if (checkpoints_->is_open()) {
    ARTESIAN_TRY_VOID(agree_on(checkpoints_->close(), "the former folder of checkpoints"));
  }
  ARTESIAN_TRY_VOID(checkpoints_->open(place));
  if (last_link_.has_value()) checkpoints_->go_on_from(*last_link_);
  return {};
}

Result<void> StepCore::leave_checkpoints() {
  if (checkpoints_ == nullptr || !checkpoints_->is_open()) return {};
  ARTESIAN_TRY_VOID(check_not_saving("leave_checkpoints"));
  return checkpoints_->close();
}

TrainingState StepCore::training_state() const {
  TrainingState state;
  state.step = step_;
  state.updates = updates_;
  for (std::uint32_t parameter = 0; parameter < shape_.parameters.size(); ++parameter) {
    state.parameter_steps.push_back(update_count(parameter));
  }
  state.skipped_in_a_row = guard_.skipped_in_a_row();
  state.scaler = scaler_.state();
  return state;
}

/// Groups as in the last update, or before any update as in the first one; frozen parameters are in
/// none.
std::vector<SavedGroup> StepCore::saved_groups() const {
  const StepConstants constants = step_constants(last_rate_.value_or(scheduled_rate()), 1.0);
  std::vector<SavedGroup> groups;
  for (const GroupStep& group : constants.groups) {
    groups.push_back({.optimizer = saved_name(config_.optimizer),
                      .beta1 = group.beta1,
                      .beta2 = group.beta2,
                      .eps = group.eps,
                      .weight_decay = group.weight_decay,
                      .lr = group.lr,
                      .step = 0,
                      .parameters = {}});
  }
  for (std::uint32_t parameter = 0; parameter < shape_.parameters.size(); ++parameter) {
    const ParameterSpec& spec = shape_.parameters[parameter];
    if (!spec.trainable) continue;
    ARTESIAN_CHECK(spec.group < groups.size(), spec.group, groups.size());
    SavedGroup& group = groups[spec.group];
    group.step = std::max(group.step, update_count(parameter));
    group.parameters.push_back(parameter);
  }
  return groups;
}

/// Opens the save's folder; in a folder named only by the request all checkpoints are kept.
Result<void> StepCore::open_for(const SaveRequest& request) {
  const bool open = checkpoints_->is_open();
  if (!request.directory.empty()) {
    if (open && checkpoints_->directory() == request.directory) return {};
    return open_checkpoints({.directory = request.directory, .keep = 0, .reserve = false});
  }
  if (open) return {};
  return make_error(ErrorCode::Invalid,
                    "save_checkpoint(): got no folder; name one, or call open_checkpoints() first");
}

Result<void> StepCore::check_not_saving(const char* call) const {
  if (!checkpoints_->under_way()) return {};
  return make_error(ErrorCode::Busy, std::string(call) +
                                         "(): a checkpoint is being saved; call "
                                         "finish_checkpoint() first");
}

Result<void> StepCore::expect_checkpoint(const SaveRequest& request) {
  ARTESIAN_TRY_VOID(check(StepCall::ExpectSave, "expect_checkpoint"));
  if (options_.group != nullptr) return {};  // nothing is updated under backward
  ARTESIAN_TRY_VOID(check_not_saving("expect_checkpoint"));
  const StepFigures::Mark before = figures_->mark();
  auto opened = open_for(request);
  if (opened.has_value()) checkpoints_->expect(request, step_ + 1);
  figures_->leave_out(before);
  return opened;
}

Result<void> StepCore::begin_checkpoint(const SaveRequest& request) {
  ARTESIAN_TRY_VOID(check(StepCall::Save, "begin_checkpoint"));
  const bool expected = checkpoints_->expects(step_);
  if (!expected && checkpoints_->expects_any()) {  // left by an abandoned step
    give_up_checkpoint(make_error(ErrorCode::Cancelled, "checkpoint: another step is saved"));
    static_cast<void>(checkpoints_->finish(checkpoints_->commit_seconds()).has_value());
  }
  if (!expected) ARTESIAN_TRY_VOID(check_not_saving("begin_checkpoint"));
  const StepFigures::Mark before = figures_->mark();
  auto opened = expected ? Result<void>() : open_for(request);
  if (opened.has_value()) checkpoints_->begin(request, training_state(), saved_groups());
  figures_->leave_out(before);
  if (checkpoints_->copying()) {
    copy_what_is_made();
  } else {
    optimizer_->watch({});  // an expected save has failed
  }
  return opened;
}

void StepCore::copy_what_is_made() {
  optimizer_->watch({.made = [this](const SubGroup& group) { checkpoints_->add(group); },
                     .taken_back = [this] { checkpoints_->forget(); }});
}

/// Called at the beginning of a step's last backward, under which its update may begin.
void StepCore::copy_ahead() {
  if (!checkpoints_->expects_any()) return;
  if (checkpoints_->expects(step_ + 1)) {
    if (checkpoints_->adds()) copy_what_is_made();
    return;
  }
  give_up_checkpoint(make_error(ErrorCode::Cancelled,
                                "checkpoint: it was expected of a step after which nobody began "
                                "it"));
}

/// Abandons a checkpoint that is still being copied.
void StepCore::give_up_checkpoint(Error cause) {
  optimizer_->watch({});
  checkpoints_->abandon(std::move(cause));
}

/// Called when the update is complete, so that no more state of the step will pass by.
Result<void> StepCore::copy_rest() {
  optimizer_->watch({});
  const StepFigures::Mark before = figures_->mark();
  auto copied = checkpoints_->copy_rest();
  figures_->leave_out(before);
  return copied;
}

Result<void> StepCore::commit_checkpoint(std::optional<SavedTrainer> trainer) {
  if (!checkpoints_->under_way() || checkpoints_->expects_any()) {
    return make_error(ErrorCode::Invalid,
                      "commit_checkpoint(): no checkpoint is being saved; call "
                      "begin_checkpoint() first");
  }
  if (checkpoints_->copying()) {
    ARTESIAN_TRY_VOID(check(StepCall::FinishUpdate, "commit_checkpoint"));
    ARTESIAN_TRY_VOID(remember(complete_pending()));
  }
  const StepFigures::Mark before = figures_->mark();
  checkpoints_->commit(std::move(trainer));
  figures_->leave_out(before);
  return {};
}

Result<std::optional<SavedCheckpoint>> StepCore::finish_checkpoint(double seconds) {
  const StepFigures::Mark before = figures_->mark();
  auto saved = checkpoints_->finish(seconds);
  figures_->leave_out(before);
  if (saved.has_value() && saved->has_value()) last_link_ = (*saved)->link;
  return saved;
}

Result<SavedCheckpoint> StepCore::save_checkpoint(const SaveRequest& request) {
  ARTESIAN_TRY_VOID(check(StepCall::Save, "save_checkpoint"));
  ARTESIAN_TRY_VOID(begin_checkpoint(request));
  const auto completed = remember(complete_pending());
  if (completed.has_value()) ARTESIAN_TRY_VOID(commit_checkpoint());
  auto saved = finish_checkpoint(checkpoints_->commit_seconds());
  if (!completed.has_value()) return completed.error();
  if (!saved.has_value()) return std::move(saved).error();
  ARTESIAN_CHECK(saved->has_value());  // a save was begun
  return **std::move(saved);
}

void StepCore::restore(const CheckpointLoad& load) {
  std::vector<std::uint64_t> counts = load.update_counts();
  for (std::uint32_t parameter = 0; parameter < counts.size(); ++parameter) {
    if (load.keeps(parameter)) counts[parameter] = optimizer_->update_count(parameter);
  }
  optimizer_->restore_counts(std::move(counts));
  const bool all = load.optimizer_states();
  const TrainingState fresh{.scaler = LossScaler(config_.param_dtype, config_.loss_scale).state()};
  const TrainingState& state = all ? load.manifest().state : fresh;
  step_ = state.step;
  updates_ = state.updates;
  last_rate_.reset();
  scaler_.restore(state.scaler);
  guard_.restore_skipped_in_a_row(state.skipped_in_a_row);
  last_link_.reset();
  if (!all) return;  // the next checkpoint has no parent
  last_link_ = load.manifest().link;
  if (checkpoints_->is_open()) checkpoints_->go_on_from(*last_link_);
}

Result<LoadedCheckpoint> StepCore::load_checkpoint(const LoadRequest& request,
                                                   const Optimizer::Progress& progress) {
  if (!request.tag.empty()) return load_one(request, progress);
  ARTESIAN_TRY_VOID(check(StepCall::Load, "load_checkpoint"));
  ARTESIAN_TRY_VOID(end_former_save());
  ARTESIAN_TRY(choice, choose_checkpoint(request.directory));
  if (choice.tags.empty()) return load_one(request, progress);  // it reports what is missing
  if (!choice.warning.empty()) say_other(choice.warning, choice.tags.front());
  LoadRequest one = request;
  for (std::size_t index = 0;; ++index) {
    one.tag = choice.tags[index];
    auto loaded = load_one(one, progress);
    const bool damaged = !loaded.has_value() && loaded.error().code == ErrorCode::Corrupt;
    if (!damaged || index + 1 == choice.tags.size() || step_state_ == StepState::Failed) {
      return loaded;
    }
    say_other(loaded.error().to_string(), choice.tags[index + 1]);
  }
}

/// Called before a load. Only the first rank has the folder.
Result<void> StepCore::end_former_save() {
  ARTESIAN_TRY_VOID(check_not_saving("load_checkpoint"));
  Result<void> ended;
  if (!checkpoints_->end_former_save()) {
    ended = make_error(ErrorCode::Busy,
                       "load_checkpoint(): the disk still has a save that was not durable in its "
                       "time; load again once it has answered");
  }
  return agree_on(ended, "the former checkpoint");
}

/// If ranks read a folder separately they may find different content.
Result<CheckpointChoice> StepCore::choose_checkpoint(const std::string& directory) {
  const auto choose = [&]() -> Result<CheckpointChoice> {
    ARTESIAN_TRY(folder, files().open_folder(directory));
    ARTESIAN_TRY(content, read_checkpoints(*folder));
    return choose_checkpoints(content, directory);
  };
  auto choice = choose();
  ARTESIAN_TRY_VOID(agree_on(choice, "the choice of a checkpoint"));
  std::string tags;
  for (const std::string& tag : choice->tags) tags += (tags.empty() ? "" : ", ") + tag;
  ARTESIAN_TRY_VOID(agreement_.compare({{"the checkpoints to go on from", tags}}));
  return choice;
}

Result<LoadedCheckpoint> StepCore::load_one(const LoadRequest& request,
                                            const Optimizer::Progress& progress) {
  ARTESIAN_TRY_VOID(check(StepCall::Load, "load_checkpoint"));
  ARTESIAN_TRY_VOID(end_former_save());
  const Rest rest = step_state_ == StepState::Ready ? Rest::Stays : Rest::IsMissing;
  LoadRequest with_initial = request;
  with_initial.initial_squares = static_cast<float>(config_.optimizer.initial_squares);
  auto opened =
      CheckpointLoad::open(files(), with_initial, shape_.parameters, config_.param_dtype, rest);
  ARTESIAN_TRY_VOID(agree_on(opened, "a checkpoint to go on from"));
  const auto load = std::move(opened).value();
  if (load->optimizer_states()) {
    ARTESIAN_TRY_VOID(check_same_optimizer(load->manifest(), config_.optimizer, request.directory));
  }
  if (step_state_ == StepState::Ready) {
    ARTESIAN_TRY_VOID(remember(complete_pending()));
    ARTESIAN_TRY_VOID(remember(prefetcher_->drop_all()));
    step_state_ = StepState::Unfilled;
  }
  auto filled = optimizer_->initialize(*load, progress);
  if (!filled.has_value()) {
    const bool of_another = options_.group != nullptr && filled.error().code == ErrorCode::Corrupt;
    return load->failed() || of_another ? std::move(filled).error()
                                        : fail(std::move(filled).error());
  }
  restore(*load);
  ARTESIAN_TRY_VOID(become_ready());
  return load->loaded();
}

}  // namespace artesian::zero3
