// DivertedFiles: the kernel's files. A test can divert their transfers to another descriptor, so
// that the disk really fails, fills up or stops answering in the middle of a run.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/forwarding_file.h"

namespace artesian::test_support {

/// Transfers go to another descriptor while `diverted` is one.
class DivertedFile final : public ForwardingFile {
 public:
  DivertedFile(std::unique_ptr<File> file, const std::atomic<int>& diverted)
      : ForwardingFile(std::move(file)), diverted_(diverted) {}
  int descriptor() const noexcept override {
    return diverted_ >= 0 ? diverted_.load() : ForwardingFile::descriptor();
  }

 private:
  const std::atomic<int>& diverted_;
};

class DivertedFiles : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path,
                                     const OpenOptions& options) noexcept override {
    ARTESIAN_TRY(file, real_.open(path, options));
    return std::unique_ptr<File>(std::make_unique<DivertedFile>(std::move(file), diverted));
  }
  Result<void> make_directory(const std::string& path) noexcept override {
    return real_.make_directory(path);
  }
  Result<void> remove(const std::string& path) noexcept override { return real_.remove(path); }
  Result<void> remove_directory(const std::string& path) noexcept override {
    return real_.remove_directory(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) noexcept override {
    return real_.rename(from, to);
  }
  Result<void> sync_directory(const std::string& path) noexcept override {
    return real_.sync_directory(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) noexcept override {
    return real_.list(path);
  }
  Result<std::uint64_t> free_bytes(const std::string& path) noexcept override {
    return real_.free_bytes(path);
  }
  bool exists(const std::string& path) noexcept override { return real_.exists(path); }
  Result<FileStatus> status(const std::string& path) noexcept override {
    return real_.status(path);
  }

  std::atomic<int> diverted{-1};

 private:
  FileSystem& real_ = system_files();
};

}  // namespace artesian::test_support
