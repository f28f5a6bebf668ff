#include "zero3/checkpoint/checkpoints.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/detached_call.h"
#include "base/durable_folder.h"
#include "base/log.h"
#include "zero3/checkpoint/zero_to_fp32.h"

namespace artesian::zero3 {
namespace {

/// Size of a save's buffers: one sub-group being copied, with at most 12 bytes per element, and
/// three being written.
constexpr std::uint64_t buffer_bytes = 12 * CheckpointBlock::bytes_max;

std::vector<SavedParameter> described(const std::vector<ParameterSpec>& parameters) {
  std::vector<SavedParameter> saved;
  saved.reserve(parameters.size());
  for (const ParameterSpec& parameter : parameters) {
    saved.push_back({.name = parameter.name,
                     .shape = {parameter.shape.begin(), parameter.shape.end()},
                     .trainable = parameter.trainable});
  }
  return saved;
}

bool fit(const std::vector<BufferToSave>& buffers, const std::vector<SavedBufferPlace>& places) {
  return std::equal(buffers.begin(), buffers.end(), places.begin(), places.end(),
                    [](const BufferToSave& buffer, const SavedBufferPlace& place) {
                      return buffer.buffer.name == place.buffer.name &&
                             buffer.bytes.size() == place.bytes;
                    });
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointSources& from)
    : from_(from),
      trained_(trained_units(from.placement, rank())),
      frozen_(frozen_units(from.placement)) {}

Checkpoints::~Checkpoints() {
  const auto closed = close();
  if (!closed.has_value()) log(LogLevel::Warning, closed.error().to_string());
}

std::uint64_t Checkpoints::data_bytes() const noexcept {
  return ranks() * checkpoint_data_bytes(trained_.images) + checkpoint_data_bytes(frozen_.images);
}

Result<void> Checkpoints::open(const CheckpointPlace& place) {
  ARTESIAN_CHECK(saver_ == nullptr);
  ARTESIAN_TRY(trained, make_checkpoint_layout(from_.parameters, trained_.images, {}, rank()));
  trained_layout_ = std::make_shared<const CheckpointLayout>(std::move(trained));
  // Rank 0 saves them all.
  if (!frozen_.images.empty() && rank() == 0) {
    ARTESIAN_TRY(frozen, make_checkpoint_layout(from_.parameters, frozen_.images, {}, ranks()));
    frozen_layout_ = std::make_shared<const CheckpointLayout>(std::move(frozen));
  }
  ARTESIAN_TRY(buffers, pinned::Pool::create({.bytes = buffer_bytes,
                                              .lock = pinned::Lock::Never,
                                              .name = "checkpoint buffers"}));
  const std::uint64_t room = place.reserve ? trained_layout_->file_bytes() : 0;
  auto saver = CheckpointSaver::open(from_.files, {.directory = place.directory,
                                                   .run_id = from_.run_id,
                                                   .keep = place.keep,
                                                   .stall_seconds = place.stall_seconds,
                                                   .reserve_bytes = room,
                                                   .probe_seconds = place.probe_seconds,
                                                   .make_engine = place.make_engine,
                                                   .rank = rank()});
  if (saver.has_value()) {
    saver_ = std::move(saver).value();
    ARTESIAN_TRY_VOID(open_of_ranks({}));
  } else {
    return open_of_ranks(std::move(saver).error());
  }
  buffers_ = std::move(buffers);
  directory_ = place.directory;
  commit_seconds_ = place.commit_seconds;
  if (rank() == 0) write_script(place.stall_seconds);
  return {};
}

/// Writes a convenience script; failing to do so is not an error of the checkpoints.
void Checkpoints::write_script(double stall_seconds) const {
  const auto write = [&files = from_.files, directory = directory_]() -> Result<void> {
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
  if (from_.group != nullptr) {  // other ranks may have ended
    if (rank() != 0) saver_->leave();
    if (rank() == 0 && saver_->begun()) {
      saver_->abandon(make_error(ErrorCode::Cancelled, "checkpoint: it was not committed"));
      (void)saver_->finish(Deadline::after_seconds(commit_seconds_)).has_value();
    }
    joined_ = false;
    end_copying();
  } else {
    end_before_close();
  }
  auto closed = saver_->close();
  saver_.reset();
  late_ = false;
  buffers_.reset();
  frozen_record_.reset();  // the next folder may be another one
  return closed;
}

/// Logs an outcome that finish() has not returned.
void Checkpoints::end_before_close() {
  abandon(make_error(ErrorCode::Cancelled, "checkpoint: it was not committed before the end"));
  if (!under_way()) return;
  const auto ended = finish(commit_seconds_);
  if (ended.has_value()) return;
  log(LogLevel::Warning, "checkpoints: the last one: " + ended.error().to_string());
}

bool Checkpoints::under_way() const noexcept {
  if (saver_ == nullptr) return false;
  if (joined_ || of_ranks_.has_value()) return true;
  return save_state_ != SaveState::None || not_begun_.has_value() ||
         (saver_->committing() && !late_);
}

bool Checkpoints::end_former_save() {
  if (saver_ == nullptr || !saver_->committing()) return true;
  const auto ended = saver_->finish(Deadline::after_seconds(0));
  if (ended.has_value() && ended->has_value()) {
    log(LogLevel::Info, "checkpoint: " + (*ended)->tag + " has become durable after all");
  }
  return !saver_->committing();
}

/// Lays out the files; buffers are in the file of trained parameters.
Result<void> Checkpoints::lay_out(const std::vector<BufferToSave>& buffers) {
  if (buffers.empty() && trained_layout_->buffers().empty()) return {};
  std::vector<SavedBuffer> described;
  described.reserve(buffers.size());
  for (const BufferToSave& each : buffers) described.push_back(each.buffer);
  ARTESIAN_TRY(trained,
               make_checkpoint_layout(from_.parameters, trained_.images, described, rank()));
  trained_layout_ = std::make_shared<const CheckpointLayout>(std::move(trained));
  return {};
}

/// Creates the files to be written, and links the others.
Result<void> Checkpoints::begin_save(const SaveRequest& request, std::uint64_t step) {
  const std::string tag = request.tag.empty() ? fmt::format("global_step{}", step) : request.tag;
  Result<void> begun;
  if (rank() == 0) {
    begun = lay_out(request.buffers);
    if (begun.has_value()) begun = saver_->begin(tag, step, request.replaces, request.latest);
  }
  ARTESIAN_TRY_VOID(begin_of_ranks(std::move(begun), tag, step));
  ARTESIAN_TRY(trained, saver_->add_file(rank_file_name(rank()), rank(), trained_layout_));
  copy_.emplace(trained_, *trained_layout_, *trained, *buffers_, from_.team);
  frozen_copy_.reset();
  return frozen_layout_ == nullptr || request.exclude_frozen ? Result<void>() : link_frozen();
}

/// Links the file of frozen parameters; rewrites it if its checkpoint is gone.
Result<void> Checkpoints::link_frozen() {
  if (frozen_record_.has_value()) {
    auto linked = saver_->link_file(frozen_tag_, *frozen_record_);
    if (linked.has_value() && *linked) return {};
    const bool gone = !linked.has_value() && linked.error().system_error == ENOENT;
    if (!linked.has_value() && !gone) return std::move(linked).error();
  }
  ARTESIAN_TRY(frozen, saver_->add_file(std::string(frozen_file_name), 0, frozen_layout_));
  frozen_copy_.emplace(frozen_, *frozen_layout_, *frozen, *buffers_, from_.team);
  return {};
}

CheckpointManifest Checkpoints::manifest_of(const SaveRequest& request, TrainingState state,
                                            std::vector<SavedGroup> groups) const {
  CheckpointManifest manifest;
  manifest.state = std::move(state);
  manifest.state.random = request.random;
  manifest.parameters = described(from_.parameters);
  manifest.groups = std::move(groups);
  manifest.parts = from_.group == nullptr ? trained_layout_->parts() : parts_;
  manifest.buffers = trained_layout_->buffers();
  manifest.aliases = request.aliases;
  if (request.exclude_frozen) {
    for (const ParameterSpec& parameter : from_.parameters) {
      if (!parameter.trainable) manifest.excluded.push_back(parameter.name);
    }
  } else if (frozen_layout_ != nullptr) {
    const auto& parts = frozen_layout_->parts();
    manifest.parts.insert(manifest.parts.end(), parts.begin(), parts.end());
  }
  manifest.config = request.config;
  manifest.machine = request.machine;
  manifest.trainer = request.trainer;
  return manifest;
}

/// Starts the save; afterwards it is in `state`, unless it has failed.
void Checkpoints::start(const SaveRequest& request, std::uint64_t step, SaveState state) {
  ARTESIAN_CHECK(is_open() && !under_way());
  end_former_save();
  save_state_ = state;
  auto begun = begin_save(request, step);
  if (begun.has_value()) return;
  if (saver_->begun() || joined_) return abandon(std::move(begun).error());
  end_copying();
  not_begun_ = std::move(begun).error();
}

void Checkpoints::expect(const SaveRequest& request, std::uint64_t step) {
  start(request, step, SaveState::Expected);
  expected_ = step;
}

void Checkpoints::forget() noexcept {
  if (adds()) copy_->forget();
}

void Checkpoints::begin(const SaveRequest& request, TrainingState state,
                        std::vector<SavedGroup> groups) {
  if (!expects(state.step)) {
    start(request, state.step, SaveState::Copying);
  } else if (save_state_ == SaveState::Expected) {
    save_state_ = SaveState::Copying;
  }
  expected_.reset();
  if (!copying()) return;  // the save has failed
  if (rank() == 0 && !fit(request.buffers, trained_layout_->buffers())) {
    return abandon(
        make_error(ErrorCode::Invalid,
                   "checkpoint: got other buffers than when it was expected, or not all bytes"));
  }
  ARTESIAN_CHECK(copy_.has_value() && saver_->begun());
  std::vector<std::span<const std::byte>> buffers;
  if (rank() == 0) {
    for (const BufferToSave& each : request.buffers) buffers.push_back(each.bytes);
  }
  progress_ = request.progress;
  copy_->add_buffers(buffers);
  manifest_ = manifest_of(request, std::move(state), std::move(groups));
  side_files_.clear();
  for (const auto& [name, bytes] : request.client) {
    side_files_.push_back({client_file_name(name), bytes});
  }
  for (const auto& [name, bytes] : request.model) {
    side_files_.push_back({std::string(model_folder_name) + "/" + name, bytes});
  }
}

void Checkpoints::add(const SubGroup& group) noexcept {
  ARTESIAN_CHECK(adds());
  const std::uint64_t begin = monotonic_ns();
  copy_->add(group);
  report_copied();
  copy_ns_ += monotonic_ns() - begin;
}

void Checkpoints::report_copied() const noexcept {
  if (!copying() || progress_ == nullptr) return;
  std::uint64_t done = copy_->copied_bytes();
  std::uint64_t all = copy_->all_bytes();
  if (frozen_copy_.has_value()) {
    done += frozen_copy_->copied_bytes();
    all += frozen_copy_->all_bytes();
  }
  progress_(done, all);
}

/// A fault of the target ends the copying, but not the pass.
Result<void> Checkpoints::copy_missing(const SavedUnits& units, StateSnapshot& snapshot) {
  if (snapshot.failed()) return {};
  return from_.optimizer.read_units(
      units.units,
      [&](std::uint32_t unit, std::uint64_t index) { return !snapshot.has(unit, index); },
      [&](const SubGroup& group) {
        snapshot.add(group);
        report_copied();
      });
}

Result<void> Checkpoints::copy_all_missing() {
  ARTESIAN_TRY_VOID(copy_missing(trained_, *copy_));
  return frozen_copy_.has_value() ? copy_missing(frozen_, *frozen_copy_) : Result<void>();
}

/// From here on the files belong to the saver.
void Checkpoints::end_copying() {
  save_state_ = SaveState::None;
  copy_.reset();
  frozen_copy_.reset();
  progress_ = nullptr;
}

Result<void> Checkpoints::copy_rest() {
  ARTESIAN_CHECK(copying());
  auto copied = copy_all_missing();
  save_state_ = SaveState::Copied;
  if (!copied.has_value()) abandon(copied.error());
  return copied;
}

void Checkpoints::commit(std::optional<SavedTrainer> trainer) {
  ARTESIAN_CHECK(!copying());
  if (from_.group != nullptr) {
    if (!std::exchange(joined_, false)) return;  // finish() returns what prevented the save
    const auto collected = collect_frozen();
    if (save_state_ != SaveState::None) end_copying();
    if (trainer.has_value()) manifest_.trainer = std::move(trainer);
    of_ranks_ = collected.has_value() ? commit_of_ranks() : collected.error();
    return;
  }
  if (save_state_ == SaveState::None) return;
  ARTESIAN_CHECK(save_state_ == SaveState::Copied, static_cast<int>(save_state_));
  end_copying();
  if (trainer.has_value()) manifest_.trainer = std::move(trainer);
  saver_->commit(std::move(manifest_), std::move(side_files_));
  late_ = false;
}

void Checkpoints::abandon(Error cause) {
  expected_.reset();
  if (save_state_ == SaveState::None) return;
  if (joined_) {  // the other ranks learn of it when they commit
    own_failure_ = std::move(cause);
    return end_copying();
  }
  ARTESIAN_CHECK(saver_ != nullptr && saver_->begun());
  end_copying();
  saver_->abandon(std::move(cause));
  late_ = false;
}

Result<std::optional<SavedCheckpoint>> Checkpoints::finish(double seconds) {
  if (not_begun_.has_value()) return *std::exchange(not_begun_, std::nullopt);
  if (saver_ == nullptr) return std::optional<SavedCheckpoint>();
  if (from_.group != nullptr) {
    if (!of_ranks_.has_value()) return std::optional<SavedCheckpoint>();
    Result<SavedCheckpoint> saved = *std::exchange(of_ranks_, std::nullopt);
    if (!saved.has_value()) return std::move(saved).error();
    return std::optional<SavedCheckpoint>(std::move(saved).value());
  }
  auto finished = saver_->finish(Deadline::after_seconds(seconds));
  late_ = !finished.has_value() && saver_->committing() && seconds >= commit_seconds_;
  if (finished.has_value() && finished->has_value()) remember_frozen(**finished);
  return finished;
}

void Checkpoints::remember_frozen(const SavedCheckpoint& saved) {
  for (const SavedDataFile& file : saved.files) {
    if (file.name != frozen_file_name) continue;
    frozen_tag_ = saved.tag;
    frozen_record_ = file;
  }
}

}  // namespace artesian::zero3
