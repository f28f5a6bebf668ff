// ForwardingFile: forwards all calls to another file, for tests that change one of them.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/file_system.h"

namespace artesian::test_support {

class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
  int descriptor() const noexcept override { return file_->descriptor(); }
  const std::string& path() const noexcept override { return file_->path(); }
  bool direct() const noexcept override { return file_->direct(); }
  std::uint64_t alignment() const noexcept override { return file_->alignment(); }
  Result<std::uint64_t> size() noexcept override { return file_->size(); }
  Result<FileStatus> status() noexcept override { return file_->status(); }
  Result<void> allocate(std::uint64_t bytes) noexcept override { return file_->allocate(bytes); }
  Result<void> sync() noexcept override { return file_->sync(); }
  Result<void> lock() noexcept override { return file_->lock(); }
  Result<void> read_at(void* target, std::uint64_t length, std::uint64_t offset) noexcept override {
    return file_->read_at(target, length, offset);
  }
  Result<void> write_at(const void* source, std::uint64_t length,
                        std::uint64_t offset) noexcept override {
    return file_->write_at(source, length, offset);
  }

 private:
  std::unique_ptr<File> file_;
};

}  // namespace artesian::test_support
