#include "zero3/step/checkpoints.h"

#include <cerrno>
#include <utility>

#include "base/detached_call.h"
#include "base/durable_folder.h"
#include "base/log.h"
#include "zero3/step/state_snapshot.h"
#include "zero3/step/zero_to_fp32.h"

namespace artesian::zero3 {
namespace {

/// Of a save's own: two blocks in work, and some on their way to the disk.
constexpr std::uint64_t buffer_bytes = 8 * CheckpointBlock::bytes_max;

std::vector<SavedParameter> described(const std::vector<ParameterSpec>& parameters) {
  std::vector<SavedParameter> saved;
  for (const ParameterSpec& parameter : parameters) {
    saved.push_back({.name = parameter.name,
                     .shape = {parameter.shape.begin(), parameter.shape.end()},
                     .trainable = parameter.trainable});
  }
  return saved;
}

}  // namespace

Checkpoints::Checkpoints(const std::vector<ParameterSpec>& parameters, const Placement& placement,
                         Optimizer& optimizer, FileSystem& files, std::uint64_t run_id)
    : parameters_(parameters),
      optimizer_(optimizer),
      files_(files),
      run_id_(run_id),
      trained_(trained_units(placement)),
      frozen_(frozen_units(placement)) {}

Checkpoints::~Checkpoints() {
  const auto closed = close();
  if (!closed.has_value()) log(LogLevel::Warning, closed.error().to_string());
}

std::uint64_t Checkpoints::data_bytes() const noexcept {
  return checkpoint_data_bytes(trained_.images) + checkpoint_data_bytes(frozen_.images);
}

Result<void> Checkpoints::open(const CheckpointPlace& place) {
  ARTESIAN_CHECK(saver_ == nullptr);
  ARTESIAN_TRY(trained, make_checkpoint_layout(parameters_, trained_.images, {}, 0));
  trained_layout_ = std::make_shared<const CheckpointLayout>(std::move(trained));
  if (!frozen_.images.empty()) {
    ARTESIAN_TRY(frozen, make_checkpoint_layout(parameters_, frozen_.images, {}, 1));
    frozen_layout_ = std::make_shared<const CheckpointLayout>(std::move(frozen));
  }
  ARTESIAN_TRY(buffers, pinned::Pool::create({.bytes = buffer_bytes,
                                              .lock = pinned::Lock::Never,
                                              .name = "checkpoint buffers"}));
  const std::uint64_t room = place.reserve ? trained_layout_->file_bytes() : 0;
  ARTESIAN_TRY(saver, CheckpointSaver::open(files_, {.directory = place.directory,
                                                     .run_id = run_id_,
                                                     .keep = place.keep,
                                                     .stall_seconds = place.stall_seconds,
                                                     .reserve_bytes = room}));
  buffers_ = std::move(buffers);
  saver_ = std::move(saver);
  directory_ = place.directory;
  commit_seconds_ = place.commit_seconds;
  write_script(place.stall_seconds);
  return {};
}

/// A convenience: what hinders it is no fault of the checkpoints'.
void Checkpoints::write_script(double stall_seconds) const {
  const auto write = [&files = files_, directory = directory_]() -> Result<void> {
    const std::string name(zero_to_fp32_name);
    const std::string_view script = zero_to_fp32_script();
    ARTESIAN_TRY(folder, files.open_folder(directory));
    const auto there = read_whole_file(*folder, name, 2 * script.size());
    if (there.has_value() && *there == script) return {};
    if (folder->status(name).has_value()) ARTESIAN_TRY_VOID(folder->remove(name));
    return write_durable_file(*folder, name, script);
  };
  auto started = DetachedCall<void>::start("writing " + std::string(zero_to_fp32_name), write);
  if (!started.has_value()) return;
  const Result<void> outcome = started->wait(Deadline::after_seconds(stall_seconds));
  if (outcome.has_value()) return;
  log(LogLevel::Warning, "checkpoints: " + outcome.error().to_string());
}

Result<void> Checkpoints::close() noexcept {
  if (saver_ == nullptr) return {};
  auto closed = saver_->close();
  saver_.reset();
  buffers_.reset();
  frozen_record_.reset();  // the next folder is another one
  return closed;
}

/// One that was not durable in its time may be by now.
void Checkpoints::end_former_save() {
  if (!saver_->committing()) return;
  const auto ended = saver_->finish(Deadline::after_seconds(0));
  if (ended.has_value() && ended->has_value()) {
    log(LogLevel::Info, "checkpoint: " + (*ended)->tag + " has become durable after all");
  }
}

/// Files for all that is to be written, and a second name for what is not.
Result<void> Checkpoints::begin_save(const std::string& tag, std::uint64_t step) {
  ARTESIAN_TRY_VOID(saver_->begin(tag, step));
  ARTESIAN_TRY(trained, saver_->add_file(rank_file_name(0), 0, trained_layout_));
  trained_file_ = trained;
  frozen_file_ = nullptr;
  return frozen_layout_ == nullptr ? Result<void>() : link_frozen();
}

/// Links the file of what is frozen, written once; writes it anew where its checkpoint is gone.
Result<void> Checkpoints::link_frozen() {
  if (frozen_record_.has_value()) {
    auto linked = saver_->link_file(frozen_tag_, *frozen_record_);
    if (linked.has_value() && *linked) return {};
    const bool gone = !linked.has_value() && linked.error().system_error == ENOENT;
    if (!linked.has_value() && !gone) return std::move(linked).error();
  }
  ARTESIAN_TRY(frozen, saver_->add_file(std::string(frozen_file_name), 0, frozen_layout_));
  frozen_file_ = frozen;
  return {};
}

/// One pass over all state. A fault of the target ends the copying, not the pass.
Result<void> Checkpoints::copy_state() {
  StateSnapshot trained(trained_, *trained_layout_, *trained_file_, *buffers_);
  ARTESIAN_TRY_VOID(
      optimizer_.read_units(trained_.units, [&](const SubGroup& group) { trained.add(group); }));
  if (frozen_file_ == nullptr) return {};
  StateSnapshot frozen(frozen_, *frozen_layout_, *frozen_file_, *buffers_);
  return optimizer_.read_units(frozen_.units, [&](const SubGroup& group) { frozen.add(group); });
}

CheckpointManifest Checkpoints::manifest_of(const SaveRequest& request, TrainingState state,
                                            std::vector<SavedGroup> groups) const {
  CheckpointManifest manifest;
  manifest.state = std::move(state);
  manifest.state.random = request.random;
  manifest.parameters = described(parameters_);
  manifest.groups = std::move(groups);
  manifest.parts = trained_layout_->parts();
  if (frozen_layout_ != nullptr) {
    const auto& parts = frozen_layout_->parts();
    manifest.parts.insert(manifest.parts.end(), parts.begin(), parts.end());
  }
  manifest.config = request.config;
  manifest.machine = request.machine;
  manifest.trainer = request.trainer;
  return manifest;
}

Result<void> Checkpoints::save(const SaveRequest& request, TrainingState state,
                               std::vector<SavedGroup> groups) {
  ARTESIAN_CHECK(is_open());
  end_former_save();
  const std::string tag =
      request.tag.empty() ? "global_step" + std::to_string(state.step) : request.tag;
  auto begun = begin_save(tag, state.step);
  if (!begun.has_value()) {
    if (saver_->begun()) {
      saver_->abandon(std::move(begun).error());
    } else {
      not_begun_ = std::move(begun).error();
    }
    return {};
  }
  auto copied = copy_state();
  if (!copied.has_value()) {
    saver_->abandon(copied.error());
    return copied;
  }
  std::vector<SideFile> side_files;
  for (const auto& [name, bytes] : request.client) {
    side_files.push_back({client_file_name(name), bytes});
  }
  for (const auto& [name, bytes] : request.model) {
    side_files.push_back({std::string(model_folder_name) + "/" + name, bytes});
  }
  saver_->commit(manifest_of(request, std::move(state), std::move(groups)), std::move(side_files));
  return {};
}

Result<SavedCheckpoint> Checkpoints::finish() {
  if (not_begun_.has_value()) return *std::exchange(not_begun_, std::nullopt);
  ARTESIAN_TRY(finished, saver_->finish(Deadline::after_seconds(commit_seconds_)));
  ARTESIAN_CHECK(finished.has_value());  // a save came before
  remember_frozen(*finished);
  return *std::move(finished);
}

void Checkpoints::remember_frozen(const SavedCheckpoint& saved) {
  for (const SavedDataFile& file : saved.files) {
    if (file.name != frozen_file_name) continue;
    frozen_tag_ = saved.tag;
    frozen_record_ = file;
  }
}

}  // namespace artesian::zero3
