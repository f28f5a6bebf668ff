// CrashFiles: a file system in memory that may lose power. It logs its operations, and builds the
// disk as a power cut after any of them could leave it. It can also let the n-th operation fail or
// never answer.
//
// Note [What a cut leaves]: synced state is durable: a file's bytes after File::sync, a folder's
// names after Folder::sync, the names of a rename between two folders after the sync of both. Of
// the rest any part may survive: each allocation and each write by itself, a write by sectors of
// 512 bytes, in any order. Bytes of an allocated range that were not written, or were lost, read as
// zeros; lost bytes of a file that was written before read as they were. Lost names of a folder are
// its latest ones, as with every file system that has a journal, but each folder loses its own.
//
// Note [Several machines]: machines that share a file system each have a cache. A sync makes
// durable only what its own machine did. A power cut hits each machine after another operation, and
// leaves another part of what that machine had not synced.
//
// Thread: any; one operation at a time. One that never answers blocks its thread until `release`.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/engine_base.h"
#include "base/durable_folder.h"
#include "base/file_system.h"
#include "base/random.h"

namespace artesian::test_support {

/// Says what of the unsynced operations before a cut is on the disk.
enum class Cut : std::uint8_t { AllInOrder, NothingUnsynced, RandomSubset, Tears, Zeros };

class CrashFiles final : public FileSystem {
 public:
  static constexpr std::uint64_t root = 1;

  /// One folder exists: "/disk".
  CrashFiles() : CrashFiles(first_disk()) {}

  /// The disk after a cut behind the first `count` operations of the log.
  std::unique_ptr<CrashFiles> after_cut(std::size_t count, Cut cut, std::uint64_t seed) const {
    return after_cuts([&](std::uint32_t) { return MachineCut{count, cut}; }, seed);
  }
  /// Note [Several machines]: a cut of each machine within the first `count` operations of the log.
  struct MachineCut {
    std::size_t count = 0;
    Cut cut = Cut::NothingUnsynced;
  };
  using CutOf = std::function<MachineCut(std::uint32_t machine)>;
  std::unique_ptr<CrashFiles> after_cuts(const CutOf& cut_of, std::uint64_t seed) const;
  std::uint32_t machine = 0;  // that makes the next operations
  /// Operations so far; a cut may follow each.
  std::size_t logged() const { return log_.size(); }
  /// An operation in words, for messages and for checks of the order.
  std::string describe(std::size_t index) const;

  // Faults. Every call of the interface is an operation, reads included; the next one is number 0.
  enum class Fault : std::uint8_t { Fails, FailsFromThenOn, NeverAnswers };
  void plan(std::uint64_t operation, Fault fault, int system_error = EIO) {
    const std::lock_guard lock(mutex_);
    planned_ = Planned{done_ + operation, fault, system_error};
  }
  void forget_plan() {
    const std::lock_guard lock(mutex_);
    planned_.reset();
  }
  std::uint64_t operations() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  /// Lets operations that never answer fail.
  void release() {
    const std::lock_guard lock(mutex_);
    planned_.reset();
    released_.notify_all();
  }
  /// True if an exchange of names is refused, as NFS does.
  bool refuses_exchange = false;
  /// Syncs succeed and do nothing: tests that rely on syncs must then fail.
  bool forgets_files = false;
  bool forgets_folders = false;
  std::uint64_t bytes_free = std::uint64_t{1} << 40;
  /// Releases every lock, as the end of a process does.
  void drop_locks() {
    for (auto& [number, node] : disk_) node->locked_by = nullptr;
  }
  /// True if the next operation never answers; it then counts as begun. For I/O engines.
  bool next_never_answers() {
    const std::lock_guard lock(mutex_);
    if (!planned_ || planned_->fault != Fault::NeverAnswers || done_ != planned_->operation) {
      return false;
    }
    ++done_;
    return true;
  }
  /// A file's bytes, to change without an operation. `path` as "/disk/a/b".
  std::vector<std::byte>& bytes_of(const std::string& path) { return disk_.at(find(path))->bytes; }
  /// Every file and folder by path, "/disk" aside.
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    list_below(root, "/disk", all);
    return all;
  }

  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions&) noexcept override {
    return failed(EOPNOTSUPP, path);
  }
  Result<void> make_directory(const std::string& path) noexcept override;
  Result<void> remove(const std::string& path) noexcept override {
    return failed(EOPNOTSUPP, path);
  }
  Result<void> remove_directory(const std::string& path) noexcept override {
    return failed(EOPNOTSUPP, path);
  }
  Result<void> rename(const std::string& path, const std::string&) noexcept override {
    return failed(EOPNOTSUPP, path);
  }
  Result<void> sync_directory(const std::string& path) noexcept override;
  Result<std::vector<std::string>> list(const std::string& path) noexcept override {
    return failed(EOPNOTSUPP, path);
  }
  Result<std::uint64_t> free_bytes(const std::string&) noexcept override { return bytes_free; }
  bool exists(const std::string& path) noexcept override { return find(path) != 0; }
  Result<FileStatus> status(const std::string& path) noexcept override {
    const std::uint64_t number = find(path);
    if (number == 0) return failed(ENOENT, path);
    return status_of(number);
  }
  Result<std::unique_ptr<Folder>> open_folder(const std::string& path) noexcept override;

 private:
  friend class CrashFile;
  friend class CrashFolder;

  struct Node {
    FileStatus::Kind kind = FileStatus::Kind::Regular;
    std::vector<std::byte> bytes{};
    std::map<std::string, std::uint64_t> names{};  // of a folder
    std::uint64_t links = 1;
    const void* locked_by = nullptr;
  };
  using Disk = std::map<std::uint64_t, std::shared_ptr<Node>>;  // by number of the inode
  struct Operation {
    enum class Kind : std::uint8_t {
      Make,
      Allocate,
      Write,
      Sync,
      Rename,
      Exchange,
      Link,
      Remove,
      SyncFolder
    };
    Kind kind = Kind::Write;
    std::uint64_t node = 0;    // which it changes
    std::uint64_t folder = 0;  // where its name is
    std::string name{};
    std::uint64_t to_folder = 0;
    std::string to_name{};
    std::uint64_t other = 0;  // of an exchange: what was there
    FileStatus::Kind what = FileStatus::Kind::Regular;
    std::uint32_t machine = 0;
    std::uint64_t offset = 0;  // of a write; of an allocation the new size
    std::vector<std::byte> bytes{};
  };
  using Kind = Operation::Kind;
  struct Planned {
    std::uint64_t operation;
    Fault fault;
    int system_error;
  };

  explicit CrashFiles(Disk disk) : base_(copy_of(disk)), disk_(std::move(disk)) {
    last_number_ = disk_.rbegin()->first;
  }
  static Disk first_disk() {
    Disk disk;
    disk[root] = std::make_shared<Node>();
    disk[root]->kind = FileStatus::Kind::Directory;
    return disk;
  }
  static Disk copy_of(const Disk& disk) {
    Disk copy;
    for (const auto& [number, node] : disk) {
      copy[number] = std::make_shared<Node>(*node);
      copy[number]->locked_by = nullptr;
    }
    return copy;
  }
  static Error failed(int system_error, const std::string& path) {
    const bool full = system_error == ENOSPC;
    Error error = make_error(full ? ErrorCode::NoSpace : ErrorCode::Io, "in memory", system_error);
    if (system_error == EOPNOTSUPP) error.code = ErrorCode::Unsupported;
    error.file = path;
    return error;
  }
  /// Begins an operation: waits for its turn, and returns the error that it is to have, if any.
  std::optional<Error> begin(std::unique_lock<std::mutex>& lock, const std::string& path) {
    const std::uint64_t number = done_++;
    if (!planned_ || number < planned_->operation) return std::nullopt;
    if (planned_->fault == Fault::NeverAnswers) {
      if (number != planned_->operation) return std::nullopt;
      released_.wait(lock, [&] { return !planned_; });
      return failed(EIO, path);
    }
    if (planned_->fault == Fault::Fails && number != planned_->operation) return std::nullopt;
    return failed(planned_->system_error, path);
  }
  std::uint64_t find(const std::string& path) const {
    if (path == "/") return root;  // the parent of "/disk", whose sync does nothing
    if (!path.starts_with("/disk")) return 0;
    std::uint64_t at = root;
    for (std::size_t from = 5; from < path.size();) {
      const std::size_t end = std::min(path.find('/', from + 1), path.size());
      const auto& names = disk_.at(at)->names;
      const auto found = names.find(path.substr(from + 1, end - from - 1));
      if (found == names.end()) return 0;
      at = found->second;
      from = end;
    }
    return at;
  }
  FileStatus status_of(std::uint64_t number) const {
    const Node& node = *disk_.at(number);
    return {.kind = node.kind,
            .ours = true,
            .device = 1,
            .inode = number,
            .links = node.links,
            .size = node.bytes.size()};
  }
  void list_below(std::uint64_t folder, const std::string& path,
                  std::vector<std::string>& all) const {
    for (const auto& [name, number] : disk_.at(folder)->names) {
      all.push_back(path + "/" + name);
      list_below(number, path + "/" + name, all);
    }
  }
  void log(Operation operation) {
    apply(disk_, operation);
    operation.machine = machine;
    log_.push_back(std::move(operation));
  }
  static void apply(Disk& disk, const Operation& operation);
  static void write(Node& node, std::uint64_t offset, const std::byte* bytes, std::size_t count) {
    if (node.bytes.size() < offset + count) node.bytes.resize(offset + count);
    std::memcpy(node.bytes.data() + offset, bytes, count);
  }
  std::vector<bool> synced(const CutOf& cut_of) const;
  static void forget_unreachable(Disk& disk);

  Disk base_;  // as it was before the log
  Disk disk_;
  std::vector<Operation> log_;
  std::uint64_t last_number_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::uint64_t done_ = 0;
  std::optional<Planned> planned_;
};

/// One open file of a CrashFiles.
class CrashFile final : public File {
 public:
  CrashFile(CrashFiles& files, std::uint64_t number, std::string path)
      : files_(files), node_(files.disk_.at(number)), number_(number), path_(std::move(path)) {}
  ~CrashFile() override {
    if (node_->locked_by == this) node_->locked_by = nullptr;
  }
  int descriptor() const noexcept override { return -1; }
  const std::string& path() const noexcept override { return path_; }
  bool direct() const noexcept override { return true; }
  std::uint64_t alignment() const noexcept override { return 512; }
  Result<std::uint64_t> size() noexcept override { return node_->bytes.size(); }
  Result<FileStatus> status() noexcept override { return files_.status_of(number_); }
  Result<void> lock() noexcept override {
    if (node_->locked_by != nullptr) return make_error(ErrorCode::Busy, "locked", EWOULDBLOCK);
    node_->locked_by = this;
    return {};
  }
  Result<void> allocate(std::uint64_t bytes) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, path_)) return *std::move(fault);
    if (bytes <= node_->bytes.size()) return {};
    const std::uint64_t more = bytes - node_->bytes.size();
    if (more > files_.bytes_free) return CrashFiles::failed(ENOSPC, path_);
    files_.bytes_free -= more;
    files_.log({.kind = CrashFiles::Kind::Allocate, .node = number_, .offset = bytes});
    return {};
  }
  Result<void> sync() noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (poison() != nullptr) return *poison();
    if (auto fault = files_.begin(lock, path_)) return poison_with(*fault);
    if (files_.forgets_files) return {};
    files_.log({.kind = CrashFiles::Kind::Sync, .node = number_});
    return {};
  }
  Result<void> read_at(void* target, std::uint64_t length, std::uint64_t offset) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, path_)) return *std::move(fault);
    if (offset + length > node_->bytes.size()) return CrashFiles::failed(0, path_);
    if (length != 0) std::memcpy(target, node_->bytes.data() + offset, length);
    return {};
  }
  Result<void> write_at(const void* source, std::uint64_t length,
                        std::uint64_t offset) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (poison() != nullptr) return *poison();
    if (auto fault = files_.begin(lock, path_)) return poison_with(*fault);
    const auto* bytes = static_cast<const std::byte*>(source);
    files_.log({.kind = CrashFiles::Kind::Write,
                .node = number_,
                .offset = offset,
                .bytes = {bytes, bytes + length}});
    return {};
  }

 private:
  CrashFiles& files_;
  std::shared_ptr<CrashFiles::Node> node_;  // shared_ptr: a removed file lives until it is closed
  std::uint64_t number_;
  std::string path_;
};

class CrashFolder final : public Folder {
 public:
  CrashFolder(CrashFiles& files, std::uint64_t number, std::string path)
      : files_(files), number_(number), path_(std::move(path)) {}
  const std::string& path() const noexcept override { return path_; }
  Result<std::unique_ptr<File>> open(const std::string& name,
                                     const OpenOptions& options) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(name))) return *std::move(fault);
    const std::uint64_t found = look_up(name);
    const bool create = options.create == Create::Exclusive;
    if (create == (found != 0)) return failed(create ? EEXIST : ENOENT, name);
    const std::uint64_t number = create ? make(name, FileStatus::Kind::Regular) : found;
    if (files_.disk_.at(number)->kind != FileStatus::Kind::Regular) return failed(EISDIR, name);
    return std::unique_ptr<File>(std::make_unique<CrashFile>(files_, number, at(name)));
  }
  Result<std::unique_ptr<Folder>> open_folder(const std::string& name) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(name))) return *std::move(fault);
    const std::uint64_t found = look_up(name);
    if (found == 0) return failed(ENOENT, name);
    if (files_.disk_.at(found)->kind != FileStatus::Kind::Directory) return failed(ENOTDIR, name);
    return std::unique_ptr<Folder>(std::make_unique<CrashFolder>(files_, found, at(name)));
  }
  Result<void> make_folder(const std::string& name) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(name))) return *std::move(fault);
    if (look_up(name) != 0) return failed(EEXIST, name);
    make(name, FileStatus::Kind::Directory);
    return {};
  }
  Result<void> rename(const std::string& from, Folder& target, const std::string& to,
                      Existing existing) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(from))) return *std::move(fault);
    auto& other = static_cast<CrashFolder&>(target);
    const std::uint64_t moved = look_up(from);
    const std::uint64_t there = other.look_up(to);
    const bool exchange = existing == Existing::Exchange;
    if (moved == 0 || (exchange && there == 0)) return failed(ENOENT, from);
    if (exchange && files_.refuses_exchange) return failed(EOPNOTSUPP, from);
    if (there != 0 && existing == Existing::Refuse) return failed(EEXIST, from);
    if (there != 0 && !exchange && !files_.disk_.at(there)->names.empty()) {
      return failed(ENOTEMPTY, from);
    }
    files_.log({.kind = exchange ? CrashFiles::Kind::Exchange : CrashFiles::Kind::Rename,
                .node = moved,
                .folder = number_,
                .name = from,
                .to_folder = other.number_,
                .to_name = to,
                .other = there});
    return {};
  }
  Result<void> link(const std::string& from, Folder& target,
                    const std::string& to) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(from))) return *std::move(fault);
    auto& other = static_cast<CrashFolder&>(target);
    if (look_up(from) == 0) return failed(ENOENT, from);
    if (other.look_up(to) != 0) return failed(EEXIST, from);
    files_.log({.kind = CrashFiles::Kind::Link,
                .node = look_up(from),
                .folder = other.number_,
                .name = to});
    return {};
  }
  Result<void> remove(const std::string& name) noexcept override {
    return remove(name, FileStatus::Kind::Regular);
  }
  Result<void> remove_folder(const std::string& name) noexcept override {
    return remove(name, FileStatus::Kind::Directory);
  }
  Result<void> sync() noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, path_)) return *std::move(fault);
    if (files_.forgets_folders) return {};
    files_.log({.kind = CrashFiles::Kind::SyncFolder, .node = number_, .folder = number_});
    return {};
  }
  Result<std::vector<std::string>> list() noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, path_)) return *std::move(fault);
    std::vector<std::string> names;
    for (const auto& [name, number] : files_.disk_.at(number_)->names) names.push_back(name);
    return names;
  }
  Result<FileStatus> status(const std::string& name) noexcept override {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(name))) return *std::move(fault);
    const std::uint64_t found = look_up(name);
    if (found == 0) return failed(ENOENT, name);
    return files_.status_of(found);
  }
  Result<std::uint64_t> free_bytes() noexcept override { return files_.bytes_free; }

 private:
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  Error failed(int system_error, const std::string& name) const {
    return CrashFiles::failed(system_error, at(name));
  }
  std::uint64_t look_up(const std::string& name) const {
    const auto& names = files_.disk_.at(number_)->names;
    const auto found = names.find(name);
    return found == names.end() ? 0 : found->second;
  }
  std::uint64_t make(const std::string& name, FileStatus::Kind what) {
    const std::uint64_t number = ++files_.last_number_;
    files_.log({.kind = CrashFiles::Kind::Make,
                .node = number,
                .folder = number_,
                .name = name,
                .what = what});
    return number;
  }
  Result<void> remove(const std::string& name, FileStatus::Kind kind) {
    std::unique_lock lock(files_.mutex_);
    if (auto fault = files_.begin(lock, at(name))) return *std::move(fault);
    const std::uint64_t found = look_up(name);
    if (found == 0) return failed(ENOENT, name);
    const CrashFiles::Node& node = *files_.disk_.at(found);
    if (node.kind != kind) return failed(EISDIR, name);
    if (!node.names.empty()) return failed(ENOTEMPTY, name);
    if (node.links == 1) files_.bytes_free += node.bytes.size();
    files_.log({.kind = CrashFiles::Kind::Remove, .node = found, .folder = number_, .name = name});
    return {};
  }

  CrashFiles& files_;
  std::uint64_t number_;
  std::string path_;
};

inline Result<std::unique_ptr<Folder>> CrashFiles::open_folder(const std::string& path) noexcept {
  std::unique_lock lock(mutex_);
  if (auto fault = begin(lock, path)) return *std::move(fault);
  const std::uint64_t found = find(path);
  if (found == 0) return failed(ENOENT, path);
  return std::unique_ptr<Folder>(std::make_unique<CrashFolder>(*this, found, path));
}

inline Result<void> CrashFiles::make_directory(const std::string& path) noexcept {
  const std::size_t cut = path.find_last_of('/');
  ARTESIAN_TRY(parent, open_folder(path.substr(0, cut)));
  return parent->make_folder(path.substr(cut + 1));
}

inline Result<void> CrashFiles::sync_directory(const std::string& path) noexcept {
  ARTESIAN_TRY(folder, open_folder(path));
  return folder->sync();
}

inline std::string CrashFiles::describe(std::size_t index) const {
  static constexpr std::array names{"make",     "allocate", "write",  "sync",       "rename",
                                    "exchange", "link",     "remove", "sync folder"};
  const Operation& at = log_.at(index);
  return std::string(names[static_cast<std::size_t>(at.kind)]) + " node " +
         std::to_string(at.node) + " folder " + std::to_string(at.folder) + " " + at.name +
         (at.to_name.empty() ? "" : " to " + at.to_name);
}

inline void CrashFiles::apply(Disk& disk, const Operation& at) {
  const auto node_at = [&](std::uint64_t number) -> Node& {
    auto& node = disk[number];
    if (node == nullptr) node = std::make_shared<Node>();
    return *node;
  };
  const auto take_away = [&](std::uint64_t folder, const std::string& name, std::uint64_t number) {
    auto& names = node_at(folder).names;
    const auto found = names.find(name);
    if (found != names.end() && found->second == number) names.erase(found);
  };
  Node& node = node_at(at.node);
  switch (at.kind) {
    case Kind::Make:
      node.kind = at.what;
      node_at(at.folder).names[at.name] = at.node;
      break;
    case Kind::Allocate: node.bytes.resize(std::max(node.bytes.size(), at.offset)); break;
    case Kind::Write: write(node, at.offset, at.bytes.data(), at.bytes.size()); break;
    case Kind::Rename:
      take_away(at.folder, at.name, at.node);
      node_at(at.to_folder).names[at.to_name] = at.node;
      break;
    case Kind::Exchange:
      node_at(at.folder).names[at.name] = at.other;
      node_at(at.to_folder).names[at.to_name] = at.node;
      break;
    case Kind::Link:
      node_at(at.folder).names[at.name] = at.node;
      ++node.links;
      break;
    case Kind::Remove:
      take_away(at.folder, at.name, at.node);
      if (node.links > 1) --node.links;
      break;
    case Kind::Sync:
    case Kind::SyncFolder: break;
  }
}

/// By operation: true if it is durable whatever the cuts leave.
inline std::vector<bool> CrashFiles::synced(const CutOf& cut_of) const {
  std::vector<bool> result(log_.size(), false);
  std::set<std::pair<std::uint32_t, std::uint64_t>> files;  // by the machine that synced
  std::set<std::pair<std::uint32_t, std::uint64_t>> folders;
  for (std::size_t index = log_.size(); index-- > 0;) {
    const Operation& at = log_[index];
    if (index >= cut_of(at.machine).count) continue;
    if (at.kind == Kind::Sync) files.insert({at.machine, at.node});
    if (at.kind == Kind::SyncFolder) folders.insert({at.machine, at.node});
    const bool of_bytes = at.kind == Kind::Allocate || at.kind == Kind::Write;
    const auto folder = [&](std::uint64_t number) {
      return folders.contains({at.machine, number});
    };
    result[index] = of_bytes ? files.contains({at.machine, at.node})
                             : folder(at.folder) && (at.to_folder == 0 || folder(at.to_folder));
  }
  return result;
}

inline void CrashFiles::forget_unreachable(Disk& disk) {
  std::map<std::uint64_t, std::uint64_t> links{{root, 1}};
  std::vector<std::uint64_t> open{root};
  while (!open.empty()) {
    const std::uint64_t folder = open.back();
    open.pop_back();
    for (const auto& [name, number] : disk.at(folder)->names) {
      if (links[number]++ == 0) open.push_back(number);
    }
  }
  std::erase_if(disk, [&](const auto& entry) { return !links.contains(entry.first); });
  for (auto& [number, node] : disk) node->links = links.at(number);
}

/// Note [What a cut leaves].
inline std::unique_ptr<CrashFiles> CrashFiles::after_cuts(const CutOf& cut_of,
                                                          std::uint64_t seed) const {
  const std::vector<bool> certain = synced(cut_of);
  Disk disk = copy_of(base_);
  for (const auto& [number, node] : disk_) {  // of nodes whose making is lost, the kind is not
    if (!disk.contains(number)) {
      disk[number] = std::make_shared<Node>();
      disk[number]->kind = node->kind;
    }
  }
  std::uint64_t drawn = 0;
  const auto heads = [&] { return (random_word(seed, 1, drawn++) & 1) != 0; };
  // Folders, by machine: names from here on are lost.
  std::set<std::pair<std::uint32_t, std::uint64_t>> ended;
  for (std::size_t index = 0; index < log_.size(); ++index) {
    const Operation& at = log_[index];
    const auto [count, cut] = cut_of(at.machine);
    if (index >= count) continue;
    if (at.kind == Kind::Sync || at.kind == Kind::SyncFolder) continue;
    if (certain[index] || cut == Cut::AllInOrder) {
      apply(disk, at);
      continue;
    }
    if (cut == Cut::NothingUnsynced) continue;
    if (at.kind == Kind::Write) {
      if (cut == Cut::RandomSubset && heads()) apply(disk, at);
      for (std::size_t done = 0; cut == Cut::Tears && done < at.bytes.size(); done += 512) {
        const std::size_t piece = std::min<std::size_t>(512, at.bytes.size() - done);
        if (heads()) write(*disk[at.node], at.offset + done, at.bytes.data() + done, piece);
      }
    } else if (at.kind == Kind::Allocate) {
      if (cut == Cut::Zeros || heads()) apply(disk, at);
    } else {
      const bool lost = ended.contains({at.machine, at.folder}) ||
                        ended.contains({at.machine, at.to_folder}) ||
                        (cut != Cut::Zeros && random_word(seed, 2, drawn++) % 4 == 0);
      if (!lost) {
        apply(disk, at);
        continue;
      }
      ended.insert({at.machine, at.folder});
      if (at.to_folder != 0) ended.insert({at.machine, at.to_folder});
    }
  }
  forget_unreachable(disk);
  auto after = std::unique_ptr<CrashFiles>(new CrashFiles(std::move(disk)));
  after->last_number_ = last_number_;
  after->refuses_exchange = refuses_exchange;
  return after;
}

/// An I/O engine over CrashFiles: moves bytes inside submit, on the thread that submits. A transfer
/// that is to never answer stays in flight.
class CrashEngine final : public aio::EngineBase {
 public:
  CrashEngine(const aio::EngineOptions& options, CrashFiles& files)
      : EngineBase(aio::EngineKind::Threads, options, nullptr), files_(files) {}
  ~CrashEngine() override {
    std::vector<aio::Block*> ended;
    for (auto& block : stuck_) ended.push_back(block.get());
    for (auto& block : stuck_) (void)settle(*block, -EIO);
    finish(ended, 0);
    stop();
  }

 protected:
  void wake(std::uint64_t) noexcept override { run(); }
  void wake_all() noexcept override {
    finish({}, 0);
    run();
  }

 private:
  void run() noexcept {
    for (;;) {
      auto block = std::make_unique<aio::Block>();
      aio::Block* slot = block.get();
      {
        const Lock locked = lock();
        if (take(locked, {&slot, 1}) == 0) return;
      }
      if (files_.next_never_answers()) {
        stuck_.push_back(std::move(block));
        continue;
      }
      while (settle(*slot, move(*slot)) == Verdict::Continue) continue;
      finish({&slot, 1}, 1);
    }
  }
  std::int64_t move(const aio::Block& block) noexcept {
    const std::uint64_t length = length_to_ask(block);
    std::byte* const memory = block.memory + block.done;
    const std::uint64_t offset = block.offset + block.done;
    File& file = *block.request().file;
    auto moved = block.request().operation == aio::Operation::Read
                     ? file.read_at(memory, length, offset)
                     : file.write_at(memory, length, offset);
    if (moved.has_value()) return static_cast<std::int64_t>(length);
    return moved.error().system_error == 0 ? 0 : -moved.error().system_error;
  }

  CrashFiles& files_;
  std::vector<std::unique_ptr<aio::Block>> stuck_;
};

}  // namespace artesian::test_support
