#include "zero3/checkpoint/checkpoint_folder.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "base/clock.h"
#include "base/lock_record.h"
#include "base/log.h"
#include "base/random.h"
#include "base/safetensors_header.h"
#include "base/units.h"
#include "tiering/snapshot_sums.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t latest_size_max = 256;

constexpr std::uint64_t probe_bytes_max = 1u << 30;  // more than most disk caches absorb
// Split into transfers that the kernel has in flight at the same time.
constexpr std::uint64_t probe_piece_bytes = 8u << 20;
constexpr std::uint64_t probe_alignment = 4096;

std::string as_string(std::string_view text) {
  return std::string(text);
}

/// True if something with this name exists. Errors: Io.
Result<bool> is_there(Folder& folder, const std::string& name) noexcept {
  auto found = folder.status(name);
  if (found.has_value()) return true;
  if (is_absent(found.error())) return false;
  return std::move(found).error();
}

/// A file that a manifest lists but that is missing is damage.
Error missing_is_damage(Error error, const Folder& folder, const std::string& name) {
  if (!is_absent(error)) return error;
  return corrupt_file(folder, name, "it is missing, and the manifest lists it");
}

Result<void> check_length(Folder& folder, const std::string& name, std::uint64_t bytes) noexcept {
  auto status = folder.status(name);
  if (!status.has_value()) return missing_is_damage(std::move(status).error(), folder, name);
  const FileStatus& found = *status;
  if (found.kind != FileStatus::Kind::Regular) return corrupt_file(folder, name, "no plain file");
  if (found.size == bytes) return {};
  return corrupt_file(folder, name,
                      fmt::format("got {} bytes, the manifest says {}", found.size, bytes));
}

Result<void> check_side_file(Folder& folder, const std::string& name,
                             const SavedSideFile& file) noexcept {
  ARTESIAN_TRY_VOID(check_length(folder, name, file.bytes));
  ARTESIAN_TRY_VOID(read_with_digest(folder, name, file.bytes, file.digest));
  return {};
}

/// True if the checkpoint with this name is complete.
bool is_whole(Folder& parent, const std::string& name) noexcept {
  const auto folder = parent.open_folder(name);
  if (!folder.has_value()) return false;
  const auto manifest = read_manifest_of(**folder);
  return manifest.has_value() && check_files(**folder, *manifest).has_value();
}

std::vector<DotName> dot_names(const std::vector<std::string>& names) {
  std::vector<DotName> ours;
  for (const std::string& name : names) {
    if (auto parsed = parse_dot_name(name)) ours.push_back(*std::move(parsed));
  }
  return ours;
}

}  // namespace

Error of_file(Error error, const Folder& folder, std::string_view name) {
  if (error.file.empty()) error.file = folder.path() + "/" + as_string(name);
  return error;
}

Error corrupt_file(const Folder& folder, std::string_view name, std::string why) {
  return of_file(make_error(ErrorCode::Corrupt, std::move(why)), folder, name);
}

Result<std::string> read_with_digest(Folder& folder, const std::string& name,
                                     std::uint64_t size_max, std::string_view digest) {
  ARTESIAN_TRY(bytes, read_whole_file(folder, name, size_max));
  if (digest_of(bytes) == digest) return bytes;
  return corrupt_file(folder, name, "its bytes do not have the digest that the manifest has");
}

Result<CheckpointManifest> read_manifest_of(Folder& folder) {
  const std::string name = as_string(manifest_name);
  auto text = read_whole_file(folder, name, manifest_size_max);
  if (!text.has_value()) {
    ARTESIAN_TRY(names, folder.list());
    const bool ours = std::any_of(names.begin(), names.end(), is_data_file);
    return ours ? missing_is_damage(std::move(text).error(), folder, name)
                : std::move(text).error();
  }
  auto manifest = read_manifest(*text);
  if (!manifest.has_value()) return of_file(std::move(manifest).error(), folder, name);
  return manifest;
}

Result<void> check_files(Folder& folder, const CheckpointManifest& manifest) {
  for (const SavedDataFile& file : manifest.files) {
    ARTESIAN_TRY_VOID(check_length(folder, file.name, file.bytes));
    const std::string sums = sums_file_name(file.name);
    const std::uint64_t most =
        std::min(sums_bytes_max, tiering::snapshot_sums_size(file.bytes / 4096));
    auto read = read_with_digest(folder, sums, most, file.sums_digest);
    if (!read.has_value()) return missing_is_damage(std::move(read).error(), folder, sums);
  }
  std::unique_ptr<Folder> model;
  for (const SavedSideFile& file : manifest.side_files) {
    const std::size_t slash = file.name.find('/');
    if (slash == std::string::npos) {
      ARTESIAN_TRY_VOID(check_side_file(folder, file.name, file));
      continue;
    }
    if (model == nullptr) {
      const std::string inner = file.name.substr(0, slash);
      auto opened = folder.open_folder(inner);
      if (!opened.has_value()) return missing_is_damage(std::move(opened).error(), folder, inner);
      model = std::move(opened).value();
    }
    ARTESIAN_TRY_VOID(check_side_file(*model, file.name.substr(slash + 1), file));
  }
  return {};
}

Result<std::string> read_latest(Folder& folder) {
  auto text = read_whole_file(folder, as_string(latest_name), latest_size_max);
  if (!text.has_value()) {
    if (is_absent(text.error())) return std::string();
    return std::move(text).error();
  }
  std::string tag = *text;
  while (tag.ends_with('\n')) tag.pop_back();  // the file may have been written by hand
  if (is_checkpoint_tag(tag)) return tag;
  return corrupt_file(folder, latest_name, "got " + shown_name(*text) + ", which is no tag");
}

Result<FolderContent> read_checkpoints(Folder& folder) {
  FolderContent content;
  ARTESIAN_TRY(names, folder.list());
  for (const std::string& name : names) {
    if (!is_checkpoint_tag(name) || name == latest_name || is_damaged_name(name)) continue;
    auto opened = folder.open_folder(name);
    if (!opened.has_value()) continue;  // not a folder, so not a checkpoint
    auto manifest = read_manifest_of(**opened);
    if (!manifest.has_value()) {
      if (is_absent(manifest.error())) continue;  // a folder of something else
      content.damaged.emplace_back(name, std::move(manifest).error());
      continue;
    }
    content.found.push_back({name, manifest->link, manifest->state.step});
  }
  auto latest = read_latest(folder);
  if (latest.has_value()) {
    content.latest = std::move(latest).value();
  } else if (latest.error().code == ErrorCode::Corrupt) {
    content.latest_fault = std::move(latest).error();
  } else {
    return std::move(latest).error();
  }
  return content;
}

Result<CheckpointChoice> choose_checkpoints(const FolderContent& content,
                                            const std::string& directory) {
  CheckpointChoice choice;
  const auto take_line = [&](const std::string& tag) {
    for (const std::size_t index : line_of(content.found, tag)) {
      choice.tags.push_back(content.found[index].tag);
    }
    return !choice.tags.empty();
  };
  if (take_line(content.latest)) return choice;
  const auto damaged = std::find_if(content.damaged.begin(), content.damaged.end(),
                                    [&](const auto& each) { return each.first == content.latest; });
  std::optional<Error> fault = content.latest_fault;
  if (damaged != content.damaged.end()) {
    fault = damaged->second;
    // Written by a later version, or unreadable.
    if (fault->code != ErrorCode::Corrupt) return *fault;
    choice.damaged.push_back(damaged->first);
  } else if (!content.latest.empty()) {
    fault = make_error(ErrorCode::Invalid,
                       "latest: got " + content.latest + ", allowed a checkpoint that is there");
    fault->file = directory;
  }
  if (take_line(newest_of(content.found))) {
    if (fault.has_value()) choice.warning = fault->to_string();
    return choice;
  }
  if (fault.has_value()) return *fault;
  if (!content.damaged.empty()) return content.damaged.front().second;
  return choice;
}

Result<void> set_aside(Folder& folder, const std::string& tag) noexcept {
  for (std::uint64_t number = 1;; ++number) {
    const std::string name = damaged_name(tag, number);
    auto renamed = rename_to_new(folder, tag, folder, name);
    if (!renamed.has_value() && renamed.error().system_error == EEXIST) continue;
    ARTESIAN_TRY_VOID(std::move(renamed));
    log(LogLevel::Warning, "checkpoints: " + folder.path() + "/" + tag +
                               " is damaged, and is called " + name + " now");
    return folder.sync();
  }
}

Result<std::unique_ptr<CheckpointFolder>> CheckpointFolder::open(FileSystem& files,
                                                                 const std::string& directory,
                                                                 std::uint64_t run_id) noexcept {
  if (!files.exists(directory)) {
    auto made = files.make_directory(directory);
    if (!made.has_value() && made.error().system_error != EEXIST) return std::move(made).error();
    const auto parent = std::filesystem::path(directory).parent_path().string();
    ARTESIAN_TRY_VOID(files.sync_directory(parent.empty() ? "." : parent));
  }
  ARTESIAN_TRY(folder, files.open_folder(directory));
  ARTESIAN_TRY(
      lock, FolderLock::acquire(*folder, as_string(checkpoint_lock_name), holder_record(run_id)));
  std::unique_ptr<CheckpointFolder> opened(
      new CheckpointFolder(std::move(folder), std::move(lock), run_id));
  ARTESIAN_TRY_VOID(opened->recover());
  ARTESIAN_TRY_VOID(opened->rehearse());
  ARTESIAN_TRY(content, read_checkpoints(*opened->folder_));
  opened->content_ = std::move(content);
  return opened;
}

/// Repairs what Note [A tag that is there] describes, then removes files of dead processes.
Result<void> CheckpointFolder::recover() noexcept {
  ARTESIAN_TRY(before, folder_->list());
  ARTESIAN_TRY_VOID(restore(dot_names(before)));
  ARTESIAN_TRY(after, folder_->list());
  return remove_left(dot_names(after));
}

Result<void> CheckpointFolder::restore(const std::vector<DotName>& names) noexcept {
  bool renamed = false;
  for (const DotName& old : names) {
    if (old.kind != DotName::Kind::Replaced) continue;
    ARTESIAN_TRY(there, is_there(*folder_, old.tag));
    if (there) continue;
    const auto fresh = std::find_if(names.begin(), names.end(), [&](const DotName& each) {
      return each.kind == DotName::Kind::Temporary && each.tag == old.tag &&
             is_whole(*folder_, each.name());
    });
    const std::string chosen = fresh != names.end() ? fresh->name() : old.name();
    if (fresh == names.end() && !is_whole(*folder_, chosen)) {
      log(LogLevel::Warning, "checkpoints: " + path() + "/" + chosen +
                                 " is what is left of a checkpoint, and damaged; it is left alone");
      continue;
    }
    ARTESIAN_TRY_VOID(folder_->rename(chosen, *folder_, old.tag, Existing::Replace));
    renamed = true;
  }
  if (renamed) ARTESIAN_TRY_VOID(folder_->sync());
  return {};
}

Result<void> CheckpointFolder::remove_left(const std::vector<DotName>& names) noexcept {
  bool removed = false;
  for (const DotName& left : names) {
    const std::string name = left.name();
    if (left.kind == DotName::Kind::Replaced) {
      ARTESIAN_TRY(there, is_there(*folder_, left.tag));
      if (!there) continue;  // the only checkpoint with the tag, even if damaged
    }
    const bool file = left.kind == DotName::Kind::Spare || left.kind == DotName::Kind::Latest;
    ARTESIAN_TRY_VOID(file ? folder_->remove(name)
                           : remove_folder_with_files(*folder_, name, as_string(manifest_name)));
    removed = true;
  }
  if (removed) ARTESIAN_TRY_VOID(folder_->sync());
  return {};
}

/// If the process is killed here, recovery removes the files by their names.
Result<void> CheckpointFolder::rehearse() noexcept {
  const std::uint64_t id = draw_id();
  const std::string tag = "rehearsal";
  const std::string draft = DotName{DotName::Kind::Temporary, tag, id}.name();
  const std::string gone = DotName{DotName::Kind::Pruned, tag, id}.name();
  const std::string spare = DotName{DotName::Kind::Spare, {}, id}.name();
  const std::string latest = DotName{DotName::Kind::Latest, {}, id}.name();
  const auto rehearsed = [&]() -> Result<void> {
    ARTESIAN_TRY_VOID(write_durable_file(*folder_, spare, tag));
    ARTESIAN_TRY_VOID(folder_->make_folder(draft));
    ARTESIAN_TRY(inner, folder_->open_folder(draft));
    ARTESIAN_TRY_VOID(rename_to_new(*folder_, spare, *inner, rank_file_name(0)));
    ARTESIAN_TRY_VOID(inner->sync());
    ARTESIAN_TRY_VOID(folder_->rename(draft, *folder_, gone, Existing::Replace));
    ARTESIAN_TRY_VOID(rename_to_new(*inner, rank_file_name(0), *folder_, spare));
    ARTESIAN_TRY_VOID(replace_durable_file(*folder_, spare, latest, tag));
    inner.reset();
    ARTESIAN_TRY_VOID(folder_->remove_folder(gone));
    return folder_->remove(spare);
  }();
  if (rehearsed.has_value()) return {};
  for (const std::string& name : {spare, latest}) (void)folder_->remove(name).has_value();
  for (const std::string& name : {draft, gone}) {
    (void)remove_folder_with_files(*folder_, name, as_string(manifest_name)).has_value();
  }
  Error error = rehearsed.error();
  if (error.code == ErrorCode::NoSpace) return error;
  error.message = "the folder of checkpoints " + path() +
                  " lacks what a save needs; use one on another file system: " + error.message;
  return error;
}

std::uint64_t CheckpointFolder::draw_id() noexcept {
  std::uint64_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id) id = run_id_ ^ (++drawn_ << 32);
  return id == 0 ? 1 : id;
}

CheckpointLink CheckpointFolder::next_link() const noexcept {
  if (!last_) return {.id = 0, .parent = 0, .lineage = 0, .serial = 1};
  return {.id = 0, .parent = last_->id, .lineage = last_->lineage, .serial = last_->serial + 1};
}

Result<void> CheckpointFolder::reserve(std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(bytes != 0);
  if (!spare_.empty() && spare_bytes_ == bytes) return {};
  ARTESIAN_TRY_VOID(give_back_spare());
  const std::string name = DotName{DotName::Kind::Spare, {}, draw_id()}.name();
  ARTESIAN_TRY(file, folder_->open(name, {.create = Create::Exclusive}));
  auto allocated = file->allocate(bytes);
  file.reset();
  if (!allocated.has_value()) {
    (void)folder_->remove(name).has_value();  // the first error is the one to report
    return allocated;
  }
  spare_ = name;
  spare_bytes_ = bytes;
  return {};
}

Result<double> CheckpointFolder::probe(double seconds) noexcept {
  if (spare_.empty()) return 0.0;
  const std::uint64_t length = std::min(round_up(spare_bytes_, probe_alignment), probe_piece_bytes);
  const std::unique_ptr<std::byte, decltype(&std::free)> piece(
      static_cast<std::byte*>(std::aligned_alloc(probe_alignment, length)), &std::free);
  ARTESIAN_CHECK(piece != nullptr, length);
  // Random bytes, as some disks store zeros and repetitions without writing them.
  for (std::uint64_t at = 0; at < length; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random_word(0, 0, at);
    std::memcpy(piece.get() + at, &word, sizeof(word));
  }
  ARTESIAN_TRY(file, folder_->open(spare_, {}));
  const std::uint64_t bytes = std::min(spare_bytes_, probe_bytes_max);
  const std::uint64_t begin = monotonic_ns();
  std::uint64_t written = 0;
  do {
    const std::uint64_t part = std::min(length, bytes - written);
    ARTESIAN_TRY_VOID(file->write_at(piece.get(), part, written));
    written += part;
  } while (written < bytes && seconds_since(begin) < seconds);
  ARTESIAN_TRY_VOID(file->sync());
  return static_cast<double>(written) / std::max(seconds_since(begin), 1e-9);
}

Result<void> CheckpointFolder::give_back_spare() noexcept {
  if (spare_.empty()) return {};
  const std::string name = std::exchange(spare_, {});
  auto removed = folder_->remove(name);
  // If somebody removed a checkpoint's folder, as trainers do, the file is gone, too.
  const bool gone = !removed.has_value() && removed.error().system_error == ENOENT;
  if (gone) return {};
  return removed;
}

Result<CheckpointDraft> CheckpointFolder::begin(const std::string& tag, Replaces replaces,
                                                Latest latest) noexcept {
  ARTESIAN_TRY_VOID(check_checkpoint_tag(tag));
  if (is_damaged_name(tag)) {
    return make_error(ErrorCode::Invalid,
                      "checkpoint tag: got " + shown_name(tag) +
                          ", which damaged checkpoints are called; use another");
  }
  CheckpointDraft draft{
      .tag = tag, .link = next_link(), .name = {}, .folder = {}, .latest = latest};
  draft.link.id = draw_id();
  if (draft.link.lineage == 0) draft.link.lineage = draw_id();
  ARTESIAN_TRY(there, is_there(*folder_, tag));
  if (there) {
    auto opened = folder_->open_folder(tag);
    auto manifest = opened.has_value() ? read_manifest_of(**opened)
                                       : Result<CheckpointManifest>(std::move(opened).error());
    const bool damaged = !manifest.has_value() && manifest.error().code == ErrorCode::Corrupt;
    if (damaged) ARTESIAN_TRY_VOID(set_aside(*folder_, tag));
    const bool gives_way =
        damaged || (manifest.has_value() && (replaces == Replaces::AnyLineage ||
                                             manifest->link.lineage == draft.link.lineage));
    if (!gives_way) {
      return of_file(
          make_error(ErrorCode::Invalid,
                     "checkpoint tag: the folder of this name is not a checkpoint of this "
                     "run; use another tag or folder, or move it away"),
          *folder_, tag);
    }
  }
  draft.name = DotName{DotName::Kind::Temporary, tag, draft.link.id}.name();
  ARTESIAN_TRY_VOID(folder_->make_folder(draft.name));
  auto opened = folder_->open_folder(draft.name);
  if (!opened.has_value()) {
    (void)folder_->remove_folder(draft.name).has_value();  // the first error is the one to report
    return std::move(opened).error();
  }
  draft.folder = std::move(opened).value();
  return draft;
}

Result<std::unique_ptr<File>> CheckpointFolder::make_data_file(CheckpointDraft& draft,
                                                               const std::string& name,
                                                               std::uint64_t bytes) noexcept {
  ARTESIAN_CHECK(draft.folder != nullptr && is_data_file(name), name);
  if (!spare_.empty() && spare_bytes_ == bytes) {
    const std::string spare = std::exchange(spare_, {});
    const auto renamed = rename_to_new(*folder_, spare, *draft.folder, name);
    if (renamed.has_value()) return draft.folder->open(name, {});
    if (renamed.error().system_error != ENOENT) return renamed.error();
  }
  ARTESIAN_TRY_VOID(give_back_spare());  // this file uses the reserved space
  ARTESIAN_TRY(file, draft.folder->open(name, {.create = Create::Exclusive}));
  ARTESIAN_TRY_VOID(file->allocate(bytes));
  return file;
}

Result<bool> CheckpointFolder::link_file(CheckpointDraft& draft, const std::string& tag,
                                         const std::string& name) noexcept {
  ARTESIAN_CHECK(draft.folder != nullptr && is_checkpoint_tag(tag), tag);
  ARTESIAN_TRY(from, folder_->open_folder(tag));
  auto linked = from->link(name, *draft.folder, name);
  if (linked.has_value()) return true;
  if (linked.error().code == ErrorCode::Unsupported) return false;
  return std::move(linked).error();
}

Result<std::vector<SavedSideFile>> CheckpointFolder::write_side_files(
    CheckpointDraft& draft, const std::vector<SideFile>& files) noexcept {
  ARTESIAN_CHECK(draft.folder != nullptr, draft.tag);
  std::vector<SavedSideFile> saved;
  std::unique_ptr<Folder> model;
  for (const SideFile& file : files) {
    if (!is_side_file(file.name) || file.bytes.size() > side_file_bytes_max) {
      return make_error(ErrorCode::Invalid,
                        "checkpoint: the file " + shown_name(file.name) +
                            ": allowed is \"client-NAME\" or \"model/NAME\" of at most 1 GiB, NAME "
                            "as a tag");
    }
    const std::size_t slash = file.name.find('/');
    if (slash != std::string::npos && model == nullptr) {
      const std::string name = file.name.substr(0, slash);
      ARTESIAN_TRY_VOID(draft.folder->make_folder(name));
      ARTESIAN_TRY(opened, draft.folder->open_folder(name));
      model = std::move(opened);
    }
    const bool inner = slash != std::string::npos;
    ARTESIAN_TRY_VOID(write_durable_file(inner ? *model : *draft.folder,
                                         inner ? file.name.substr(slash + 1) : file.name,
                                         file.bytes));
    saved.push_back({file.name, file.bytes.size(), digest_of(file.bytes)});
  }
  if (model != nullptr) ARTESIAN_TRY_VOID(model->sync());
  return saved;
}

/// Gives the draft its tag. Returns the present name of the checkpoint that had the tag.
Result<std::optional<std::string>> CheckpointFolder::place(const CheckpointDraft& draft) noexcept {
  auto fresh = rename_to_new(*folder_, draft.name, *folder_, draft.tag);
  if (fresh.has_value()) return std::optional<std::string>();
  if (fresh.error().system_error != EEXIST) return std::move(fresh).error();
  auto exchanged = folder_->rename(draft.name, *folder_, draft.tag, Existing::Exchange);
  if (exchanged.has_value()) return std::optional<std::string>(draft.name);
  if (exchanged.error().code != ErrorCode::Unsupported) return std::move(exchanged).error();
  const std::string old = DotName{DotName::Kind::Replaced, draft.tag, draft.link.id}.name();
  ARTESIAN_TRY_VOID(folder_->rename(draft.tag, *folder_, old, Existing::Replace));
  auto placed = folder_->rename(draft.name, *folder_, draft.tag, Existing::Replace);
  if (placed.has_value()) return std::optional<std::string>(old);
  (void)folder_->rename(old, *folder_, draft.tag, Existing::Replace).has_value();
  return std::move(placed).error();
}

Result<void> CheckpointFolder::publish(CheckpointDraft& draft,
                                       CheckpointManifest& manifest) noexcept {
  ARTESIAN_CHECK(draft.folder != nullptr, draft.tag);
  const std::uint64_t serial = next_link().serial;
  ARTESIAN_CHECK(draft.link.id != 0 && draft.link.serial == serial, draft.link.serial, serial);
  manifest.link = draft.link;
  manifest.run_id = run_id_;
  ARTESIAN_TRY(text, write_manifest(manifest));
  ARTESIAN_TRY_VOID(write_durable_file(*draft.folder, as_string(manifest_name), text));
  ARTESIAN_TRY_VOID(draft.folder->sync());
  ARTESIAN_TRY(replaced, place(draft));
  draft.folder.reset();  // it is published: from here on discard() must do nothing
  ARTESIAN_TRY_VOID(folder_->sync());
  last_ = draft.link;
  ours_.insert(draft.link.id);
  std::erase_if(content_.found, [&](const auto& each) { return each.tag == draft.tag; });
  content_.found.push_back({draft.tag, draft.link, manifest.state.step});
  if (draft.latest == Latest::Becomes) {
    const std::string temporary = DotName{DotName::Kind::Latest, {}, draft.link.id}.name();
    ARTESIAN_TRY_VOID(replace_durable_file(*folder_, as_string(latest_name), temporary, draft.tag));
    content_.latest = draft.tag;
  }
  if (!replaced) return {};
  auto removed = remove_replaced(*replaced, draft.tag);
  if (!removed.has_value()) {
    log(LogLevel::Warning,
        "checkpoints: the one that was replaced is not gone yet: " + removed.error().to_string());
  }
  return {};
}

Result<void> CheckpointFolder::remove_replaced(const std::string& name,
                                               const std::string& tag) noexcept {
  ARTESIAN_TRY(opened, folder_->open_folder(name));
  const auto manifest = read_manifest_of(*opened);
  const std::uint64_t id = manifest.has_value() ? manifest->link.id : draw_id();
  const std::string gone = DotName{DotName::Kind::Pruned, tag, id}.name();
  ARTESIAN_TRY_VOID(folder_->rename(name, *folder_, gone, Existing::Replace));
  ARTESIAN_TRY_VOID(folder_->sync());
  return remove_gone(gone, ours_.contains(id));
}

/// Removes it after a durable rename: Note [What goes].
Result<void> CheckpointFolder::remove_gone(const std::string& name, bool ours) noexcept {
  if (ours && spare_.empty()) {
    ARTESIAN_TRY(opened, folder_->open_folder(name));
    ARTESIAN_TRY(names, opened->list());
    const auto data = std::find_if(names.begin(), names.end(), [](const std::string& each) {
      return is_data_file(each) && each != frozen_file_name;
    });
    const auto found = data == names.end()
                           ? Result<FileStatus>(make_error(ErrorCode::Io, "no data", ENOENT))
                           : opened->status(*data);
    if (found.has_value() && found->links == 1) {
      const std::string spare = DotName{DotName::Kind::Spare, {}, draw_id()}.name();
      ARTESIAN_TRY_VOID(rename_to_new(*opened, *data, *folder_, spare));
      spare_ = spare;
      spare_bytes_ = found->size;
    }
  }
  ARTESIAN_TRY_VOID(remove_folder_with_files(*folder_, name, as_string(manifest_name)));
  return folder_->sync();
}

Result<void> CheckpointFolder::prune_one(const FoundCheckpoint& checkpoint) noexcept {
  auto opened = folder_->open_folder(checkpoint.tag);
  if (!opened.has_value()) {
    // The user, or a trainer that rotates folders itself, has removed it already.
    return is_absent(opened.error()) ? Result<void>() : std::move(opened).error();
  }
  ARTESIAN_TRY(manifest, read_manifest_of(**opened));
  // The name now belongs to another checkpoint, which is not ours to remove.
  if (manifest.link != checkpoint.link) return {};
  for (const SavedDataFile& file : manifest.files) {
    if (file.name == frozen_file_name) continue;
    ARTESIAN_TRY(found, (*opened)->status(file.name));
    if (found.links <= 1) continue;
    if (held_.insert(checkpoint.tag).second) {
      log(LogLevel::Info, "checkpoints: " + path() + "/" + checkpoint.tag +
                              " is kept: its data has a second name elsewhere");
    }
    return make_error(ErrorCode::Busy, "linked");
  }
  opened->reset();
  const std::string gone =
      DotName{DotName::Kind::Pruned, checkpoint.tag, checkpoint.link.id}.name();
  ARTESIAN_TRY_VOID(folder_->rename(checkpoint.tag, *folder_, gone, Existing::Replace));
  ARTESIAN_TRY_VOID(folder_->sync());
  return remove_gone(gone, ours_.contains(checkpoint.link.id));
}

void CheckpointFolder::prune(std::uint32_t keep) noexcept {
  std::vector<FoundCheckpoint> going;
  for (const std::size_t index : to_prune(content_.found, content_.latest, keep)) {
    going.push_back(content_.found[index]);
    ARTESIAN_CHECK(going.back().tag != content_.latest, index);
  }
  for (const FoundCheckpoint& checkpoint : going) {
    auto pruned = prune_one(checkpoint);
    if (pruned.has_value()) {
      std::erase_if(content_.found, [&](const auto& each) { return each.tag == checkpoint.tag; });
    } else if (pruned.error().code != ErrorCode::Busy) {
      log(LogLevel::Warning, "checkpoints: " + checkpoint.tag +
                                 " could not be removed: " + pruned.error().to_string());
    }
  }
}

Result<void> CheckpointFolder::discard(CheckpointDraft& draft) noexcept {
  if (draft.folder == nullptr) return {};
  draft.folder.reset();
  ARTESIAN_TRY_VOID(remove_folder_with_files(*folder_, draft.name, as_string(manifest_name)));
  return folder_->sync();
}

}  // namespace artesian::zero3
