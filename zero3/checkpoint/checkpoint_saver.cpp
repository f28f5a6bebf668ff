#include "zero3/checkpoint/checkpoint_saver.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace artesian::zero3 {
namespace {

std::string host_name() {
  std::array<char, 65> host{};
  (void)gethostname(host.data(), host.size() - 1);
  return is_utf8(host.data()) ? host.data() : "";
}

}  // namespace

Result<void> CheckpointSaver::run(const std::string& what,
                                  std::function<Result<void>()> call) noexcept {
  if (call_ && !call_->done()) {
    return make_error(ErrorCode::Busy, "checkpoint: the disk has not answered a former call yet");
  }
  ARTESIAN_TRY(started, DetachedCall<void>::start(what, std::move(call)));
  call_ = std::move(started);
  return call_->wait(Deadline::after_seconds(options_.stall_seconds));
}

Result<std::unique_ptr<CheckpointSaver>> CheckpointSaver::open(FileSystem& files,
                                                               SaverOptions options) noexcept {
  std::unique_ptr<CheckpointSaver> saver(new CheckpointSaver(files, std::move(options)));
  if (saver->options_.rank != 0) return saver;
  struct Opened {
    std::shared_ptr<CheckpointFolder> folder;
    double write_rate = 0.0;
  };
  auto opened = std::make_shared<Opened>();
  const SaverOptions& given = saver->options_;
  const auto open = [opened, &files, directory = given.directory, run_id = given.run_id,
                     bytes = given.reserve_bytes, seconds = given.probe_seconds]() -> Result<void> {
    ARTESIAN_TRY(folder, CheckpointFolder::open(files, directory, run_id));
    if (bytes != 0) ARTESIAN_TRY_VOID(folder->reserve(bytes));
    if (seconds != 0.0) {
      ARTESIAN_TRY(rate, folder->probe(seconds));
      opened->write_rate = rate;
    }
    opened->folder = std::move(folder);
    return {};
  };
  ARTESIAN_TRY_VOID(saver->run("opening the folder of checkpoints " + given.directory, open));
  saver->folder_ = std::move(opened->folder);
  saver->write_rate_ = opened->write_rate;
  saver->found_ = saver->folder_->content();
  return saver;
}

CheckpointSaver::~CheckpointSaver() {
  if (save_ == nullptr) return;
  for (DataFile& file : save_->files) {
    if (file.snapshot != nullptr) (void)file.snapshot->finish().has_value();
  }
}

void CheckpointSaver::go_on_from(const CheckpointLink& parent) noexcept {
  ARTESIAN_CHECK(save_ == nullptr && !commit_);
  if (folder_ != nullptr) folder_->go_on_from(parent);
}

Result<void> CheckpointSaver::begin(const std::string& tag, std::uint64_t step, Replaces replaces,
                                    Latest latest) noexcept {
  ARTESIAN_CHECK(save_ == nullptr, tag);
  if (commit_) {
    return make_error(ErrorCode::Busy, "checkpoint: the former save is still under way");
  }
  auto save = std::make_shared<Save>();
  save->folder = folder_;
  save->step = step;
  save->keep = options_.keep;
  save->reserves = options_.reserve_bytes != 0;
  const auto begin = [save, tag, replaces, latest]() -> Result<void> {
    ARTESIAN_TRY(draft, save->folder->begin(tag, replaces, latest));
    save->draft = std::move(draft);
    return {};
  };
  ARTESIAN_TRY_VOID(run("beginning the checkpoint " + tag, begin));
  save_ = std::move(save);
  return {};
}

Result<void> CheckpointSaver::join(const CheckpointToJoin& begun, const std::string& tag,
                                   std::uint64_t step) noexcept {
  ARTESIAN_CHECK(save_ == nullptr && options_.rank != 0, tag);
  auto save = std::make_shared<Save>();
  save->step = step;
  save->draft.tag = tag;
  save->draft.link.id = begun.id;
  save->draft.name = begun.folder;
  const auto open = [save, &files = files_,
                     path = options_.directory + "/" + begun.folder]() -> Result<void> {
    ARTESIAN_TRY(folder, files.open_folder(path));
    save->draft.folder = std::move(folder);
    return {};
  };
  ARTESIAN_TRY_VOID(run("joining the checkpoint " + tag, open));
  save_ = std::move(save);
  return {};
}

Result<tiering::SnapshotFile*> CheckpointSaver::add_file(
    const std::string& name, std::uint32_t rank,
    std::shared_ptr<const CheckpointLayout> layout) noexcept {
  ARTESIAN_CHECK(save_ != nullptr && layout != nullptr, name);
  for (const DataFile& other : save_->files) ARTESIAN_CHECK(other.record.name != name, name);
  const tiering::SnapshotSeed seed{
      .checkpoint = save_->draft.link.id, .step = save_->step, .rank = rank};
  auto opened = std::make_shared<std::unique_ptr<File>>();
  const auto make = [save = save_, opened, name, bytes = layout->file_bytes()]() -> Result<void> {
    if (save->folder != nullptr) {
      ARTESIAN_TRY(file, save->folder->make_data_file(save->draft, name, bytes));
      *opened = std::move(file);
      return {};
    }
    ARTESIAN_TRY(file, save->draft.folder->open(name, {.create = Create::Exclusive}));
    ARTESIAN_TRY_VOID(file->allocate(bytes));
    *opened = std::move(file);
    return {};
  };
  ARTESIAN_TRY_VOID(run("making the file " + name, make));
  tiering::SnapshotFileOptions options{
      .seed = seed, .stall_seconds = options_.stall_seconds, .make_engine = options_.make_engine};
  ARTESIAN_TRY(snapshot, tiering::SnapshotFile::create(std::move(*opened), layout->blocks(),
                                                       std::move(options)));
  DataFile file;
  file.record = {.name = name,
                 .rank = rank,
                 .node = host_name(),
                 .bytes = layout->file_bytes(),
                 .head_bytes = layout->head().size(),
                 .head_digest = digest_of(layout->head()),
                 .sums_digest = {},
                 .seed = seed};
  file.layout = std::move(layout);
  file.snapshot = std::move(snapshot);
  save_->files.push_back(std::move(file));
  return save_->files.back().snapshot.get();
}

Result<bool> CheckpointSaver::link_file(const std::string& tag,
                                        const SavedDataFile& file) noexcept {
  ARTESIAN_CHECK(save_ != nullptr, tag);
  auto linked = std::make_shared<bool>(false);
  const auto link = [save = save_, linked, tag, name = file.name]() -> Result<void> {
    ARTESIAN_TRY(data, save->folder->link_file(save->draft, tag, name));
    if (!data) return {};
    ARTESIAN_TRY(sums, save->folder->link_file(save->draft, tag, sums_file_name(name)));
    *linked = sums;
    return sums ? Result<void>() : save->draft.folder->remove(name);
  };
  ARTESIAN_TRY_VOID(run("linking the file " + file.name, link));
  if (!*linked) return false;
  save_->files.push_back({.record = file, .layout = nullptr, .snapshot = nullptr});
  return true;
}

Result<SavedDataFile> CheckpointSaver::make_durable(Deadline deadline) noexcept {
  ARTESIAN_CHECK(save_ != nullptr && options_.rank != 0 && save_->files.size() == 1);
  const std::shared_ptr<Save> save = std::exchange(save_, nullptr);
  ARTESIAN_TRY_VOID(save->files.front().snapshot->finish());
  if (call_ && !call_->done()) {
    return make_error(ErrorCode::Timeout,
                      "checkpoint: the disk has not answered a former call yet");
  }
  const auto sync = [save]() -> Result<void> {
    DataFile& file = save->files.front();
    ARTESIAN_TRY_VOID(file.snapshot->sync(file.layout->head()));
    const std::string sums = file.snapshot->sums_text();
    ARTESIAN_TRY_VOID(
        write_durable_file(*save->draft.folder, sums_file_name(file.record.name), sums));
    file.record.sums_digest = digest_of(sums);
    // Rank 0 syncs the folder on its own machine, which does not cover names created on this one.
    return save->draft.folder->sync();
  };
  ARTESIAN_TRY(started,
               DetachedCall<void>::start("syncing " + save->files.front().record.name, sync));
  call_ = std::move(started);
  ARTESIAN_TRY_VOID(call_->wait(deadline));
  return save->files.front().record;
}

void CheckpointSaver::leave() noexcept {
  if (save_ == nullptr) return;
  for (DataFile& file : save_->files) (void)file.snapshot->finish().has_value();
  save_ = nullptr;
}

void CheckpointSaver::add_durable(SavedDataFile file) {
  ARTESIAN_CHECK(save_ != nullptr && options_.rank == 0, file.name);
  ARTESIAN_CHECK(file.rank <= save_->files.size(), file.rank, save_->files.size());
  const auto place = save_->files.begin() + static_cast<std::ptrdiff_t>(file.rank);
  save_->files.insert(place, {.record = std::move(file), .layout = nullptr, .snapshot = nullptr});
}

void CheckpointSaver::commit(CheckpointManifest manifest,
                             std::vector<SideFile> side_files) noexcept {
  ARTESIAN_CHECK(save_ != nullptr && manifest.files.empty(), manifest.files.size());
  save_->manifest = std::move(manifest);
  save_->side_files = std::move(side_files);
  start_commit();
}

void CheckpointSaver::abandon(Error cause) noexcept {
  ARTESIAN_CHECK(save_ != nullptr);
  for (DataFile& file : save_->files) {
    if (file.snapshot != nullptr) file.snapshot->fail(cause);
  }
  save_->failed = std::move(cause);
  start_commit();
}

void CheckpointSaver::start_commit() noexcept {
  for (DataFile& file : save_->files) {
    if (file.snapshot == nullptr) continue;
    auto finished = file.snapshot->finish();
    if (!finished.has_value() && !save_->failed) save_->failed = std::move(finished).error();
  }
  const std::shared_ptr<Save> save = std::exchange(save_, nullptr);
  if (call_ && !call_->done()) {  // that call may still be using the folder
    lost_ = save->failed.value_or(make_error(ErrorCode::Timeout, "checkpoint: the disk hangs"));
    return;
  }
  auto started = DetachedCall<SavedCheckpoint>::start("saving the checkpoint " + save->draft.tag,
                                                      [save] { return commit_save(*save); });
  if (started.has_value()) {
    commit_ = std::move(*started);
  } else {
    lost_ = std::move(started).error();
  }
}

/// Runs on a separate thread.
Result<SavedCheckpoint> CheckpointSaver::commit_save(Save& save) noexcept {
  Result<void> outcome;
  if (save.failed) {
    outcome = std::move(*save.failed);
  } else {
    outcome = write_all(save);
  }
  if (!outcome.has_value()) {
    for (DataFile& file : save.files) file.snapshot.reset();  // closed before the file is removed
    auto discarded = save.folder->discard(save.draft);
    if (!discarded.has_value()) {
      log(LogLevel::Warning, "checkpoints: what a failed save left could not be removed: " +
                                 discarded.error().to_string());
    }
    return std::move(outcome).error();
  }
  SavedCheckpoint saved{.tag = save.draft.tag,
                        .link = save.draft.link,
                        .step = save.step,
                        .bytes_written = 0,
                        .files = save.manifest.files};
  for (DataFile& file : save.files) {
    if (file.snapshot == nullptr) continue;
    saved.bytes_written += file.snapshot->bytes_written();
    file.snapshot.reset();
  }
  look_after(save);
  return saved;
}

Result<void> CheckpointSaver::write_all(Save& save) noexcept {
  for (DataFile& file : save.files) {
    if (file.snapshot != nullptr) {
      ARTESIAN_TRY_VOID(file.snapshot->sync(file.layout->head()));
      const std::string sums = file.snapshot->sums_text();
      ARTESIAN_TRY_VOID(
          write_durable_file(*save.draft.folder, sums_file_name(file.record.name), sums));
      file.record.sums_digest = digest_of(sums);
    }
    save.manifest.files.push_back(file.record);
  }
  ARTESIAN_TRY(written, save.folder->write_side_files(save.draft, save.side_files));
  save.manifest.side_files = std::move(written);
  return save.folder->publish(save.draft, save.manifest);
}

/// Cleans up after a durable checkpoint; a fault here does not fail the save.
void CheckpointSaver::look_after(Save& save) noexcept {
  save.folder->prune(save.keep);
  if (!save.reserves || save.folder->spare_bytes() != 0) return;
  for (const DataFile& file : save.files) {
    if (file.layout == nullptr || file.record.name == frozen_file_name) continue;
    auto reserved = save.folder->reserve(file.record.bytes);
    if (!reserved.has_value()) {
      log(LogLevel::Warning,
          "checkpoints: the next one may find no room: " + reserved.error().to_string());
    }
    return;
  }
}

Result<std::optional<SavedCheckpoint>> CheckpointSaver::finish(Deadline deadline) noexcept {
  if (lost_) return *std::exchange(lost_, std::nullopt);
  if (!commit_) return std::optional<SavedCheckpoint>();
  if (!commit_->done_within(deadline)) return commit_->late();
  auto outcome = commit_->take();
  commit_.reset();
  if (!outcome.has_value()) return std::move(outcome).error();
  return std::optional<SavedCheckpoint>(std::move(*outcome));
}

Result<void> CheckpointSaver::close() noexcept {
  if (commit_) return make_error(ErrorCode::Busy, "checkpoint: a save is still under way");
  if (folder_ == nullptr) return {};  // only rank 0 has the folder
  return run("closing the folder of checkpoints",
             [folder = folder_]() -> Result<void> { return folder->give_back_spare(); });
}

}  // namespace artesian::zero3
