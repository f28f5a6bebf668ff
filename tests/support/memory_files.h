// MemoryFiles: a file system in memory with a capacity. Names, kinds, locks and sizes behave as the
// kernel's do, as far as Artesian uses them. MemoryEngine: an engine over it that completes
// requests inside submit, or, while it is held, at `release`. For one thread.
#pragma once

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aio/engine_base.h"
#include "base/file_system.h"

namespace artesian::test_support {

struct MemoryNode {
  FileStatus::Kind kind = FileStatus::Kind::Regular;
  std::uint64_t inode = 0;
  std::vector<std::byte> bytes;
  const void* locked_by = nullptr;
};

inline Error memory_error(ErrorCode code, int system_error, const std::string& path) {
  Error error = make_error(code, "in-memory file", system_error);
  error.file = path;
  return error;
}

class MemoryFile final : public File {
 public:
  // shared_ptr: as with the kernel, an unlinked file lives until it is closed.
  MemoryFile(std::shared_ptr<MemoryNode> node, std::string path, std::uint64_t* bytes_free)
      : node_(std::move(node)), path_(std::move(path)), bytes_free_(bytes_free) {}
  ~MemoryFile() override {
    if (node_->locked_by == this) node_->locked_by = nullptr;
  }
  int descriptor() const noexcept override { return -1; }
  const std::string& path() const noexcept override { return path_; }
  bool direct() const noexcept override { return true; }
  std::uint64_t alignment() const noexcept override { return 512; }
  Result<std::uint64_t> size() noexcept override { return node_->bytes.size(); }
  Result<FileStatus> status() noexcept override {
    return FileStatus{.kind = node_->kind,
                      .ours = true,
                      .device = 1,
                      .inode = node_->inode,
                      .size = node_->bytes.size()};
  }
  Result<void> allocate(std::uint64_t bytes) noexcept override {
    if (bytes <= node_->bytes.size()) return {};
    if (bytes - node_->bytes.size() > *bytes_free_) {
      return memory_error(ErrorCode::NoSpace, ENOSPC, path_);
    }
    *bytes_free_ -= bytes - node_->bytes.size();
    node_->bytes.resize(bytes);
    return {};
  }
  Result<void> sync() noexcept override { return {}; }
  Result<void> lock() noexcept override {
    if (node_->locked_by != nullptr) return memory_error(ErrorCode::Busy, EWOULDBLOCK, path_);
    node_->locked_by = this;
    return {};
  }
  Result<void> read_at(void* target, std::uint64_t length, std::uint64_t offset) noexcept override {
    if (offset + length > node_->bytes.size()) return memory_error(ErrorCode::Io, 0, path_);
    std::memcpy(target, node_->bytes.data() + offset, length);
    return {};
  }
  Result<void> write_at(const void* source, std::uint64_t length,
                        std::uint64_t offset) noexcept override {
    ARTESIAN_TRY_VOID(allocate(offset + length));
    std::memcpy(node_->bytes.data() + offset, source, length);
    return {};
  }

 private:
  std::shared_ptr<MemoryNode> node_;
  std::string path_;
  std::uint64_t* bytes_free_;
};

class MemoryFiles final : public FileSystem {
 public:
  /// One directory exists: "/disk".
  explicit MemoryFiles(std::uint64_t bytes_free) : bytes_free_(bytes_free) {
    make_node("/disk", FileStatus::Kind::Directory);
  }

  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    const auto found = nodes_.find(path);
    if (options.create == Create::Exclusive) {
      if (found != nodes_.end()) return memory_error(ErrorCode::Io, EEXIST, path);
      if (!nodes_.contains(parent_of(path))) return memory_error(ErrorCode::Io, ENOENT, path);
      return file(make_node(path, FileStatus::Kind::Regular), path);
    }
    if (found == nodes_.end()) return memory_error(ErrorCode::Io, ENOENT, path);
    if (found->second->kind == FileStatus::Kind::Link) {
      return memory_error(ErrorCode::Io, ELOOP, path);
    }
    return file(found->second, path);
  }
  Result<void> make_directory(const std::string& path) noexcept override {
    if (nodes_.contains(path)) return memory_error(ErrorCode::Io, EEXIST, path);
    if (!nodes_.contains(parent_of(path))) return memory_error(ErrorCode::Io, ENOENT, path);
    make_node(path, FileStatus::Kind::Directory);
    return {};
  }
  Result<void> remove(const std::string& path) noexcept override {
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return memory_error(ErrorCode::Io, ENOENT, path);
    bytes_free_ += found->second->bytes.size();
    nodes_.erase(found);
    return {};
  }
  Result<void> remove_directory(const std::string& path) noexcept override {
    auto names = list(path);
    if (!names.has_value()) return std::move(names).error();
    if (!names->empty()) return memory_error(ErrorCode::Io, ENOTEMPTY, path);
    nodes_.erase(path);
    return {};
  }
  Result<void> rename(const std::string& from, const std::string& to) noexcept override {
    const auto found = nodes_.find(from);
    if (found == nodes_.end()) return memory_error(ErrorCode::Io, ENOENT, from);
    nodes_[to] = found->second;
    nodes_.erase(from);
    return {};
  }
  Result<void> sync_directory(const std::string&) noexcept override { return {}; }
  Result<std::vector<std::string>> list(const std::string& path) noexcept override {
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return memory_error(ErrorCode::Io, ENOENT, path);
    if (found->second->kind != FileStatus::Kind::Directory) {
      return memory_error(ErrorCode::Io, ENOTDIR, path);
    }
    std::vector<std::string> names;
    for (const auto& [name, node] : nodes_) {
      if (parent_of(name) == path) names.push_back(name.substr(path.size() + 1));
    }
    return names;
  }
  Result<std::uint64_t> free_bytes(const std::string&) noexcept override { return bytes_free_; }
  bool exists(const std::string& path) noexcept override { return nodes_.contains(path); }
  Result<FileStatus> status(const std::string& path) noexcept override {
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return memory_error(ErrorCode::Io, ENOENT, path);
    return FileStatus{.kind = found->second->kind,
                      .ours = true,
                      .device = 1,
                      .inode = found->second->inode,
                      .size = found->second->bytes.size()};
  }

 private:
  static std::string parent_of(const std::string& path) {
    return path.substr(0, path.find_last_of('/'));
  }
  std::unique_ptr<File> file(std::shared_ptr<MemoryNode> node, const std::string& path) {
    return std::make_unique<MemoryFile>(std::move(node), path, &bytes_free_);
  }
  std::shared_ptr<MemoryNode> make_node(const std::string& path, FileStatus::Kind kind) {
    auto node = std::make_shared<MemoryNode>();
    node->kind = kind;
    node->inode = ++inode_last_;
    return nodes_[path] = std::move(node);
  }

  std::uint64_t bytes_free_;
  std::uint64_t inode_last_ = 0;
  std::map<std::string, std::shared_ptr<MemoryNode>> nodes_;
};

class MemoryEngine final : public aio::EngineBase {
 public:
  explicit MemoryEngine(const aio::EngineOptions& options, aio::FaultSeam* faults = nullptr)
      : EngineBase(aio::EngineKind::Threads, options, faults) {}
  ~MemoryEngine() override {
    release();
    stop();
  }
  /// From now on requests stay in flight.
  void hold() noexcept { held_ = true; }
  /// Completes the requests in flight; later ones complete at once.
  void release() noexcept {
    held_ = false;
    run();
  }

 protected:
  void wake(std::uint64_t) noexcept override {
    if (!held_) run();
  }
  void wake_all() noexcept override {
    finish({}, 0);
    if (!held_) run();
  }

 private:
  void run() noexcept {
    aio::Block block;
    aio::Block* slot = &block;
    for (;;) {
      {
        const Lock locked = lock();
        if (take(locked, {&slot, 1}) == 0) return;
      }
      while (settle(block, move(block)) == Verdict::Continue) continue;
      finish({&slot, 1}, 1);
    }
  }
  std::int64_t move(const aio::Block& block) noexcept {
    const std::uint64_t length = length_to_ask(block);
    std::byte* const memory = block.memory + block.done;
    const std::uint64_t offset = block.offset + block.done;
    File& file = *block.request().file;
    const bool reads = block.request().operation == aio::Operation::Read;
    const bool moved = reads ? file.read_at(memory, length, offset).has_value()
                             : file.write_at(memory, length, offset).has_value();
    return moved ? static_cast<std::int64_t>(length) : -EIO;
  }

  bool held_ = false;
};

}  // namespace artesian::test_support
