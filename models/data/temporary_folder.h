// TemporaryFolder: a private folder among the temporary files, removed with its content.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace artesian::models {

class TemporaryFolder {
 public:
  /// Creates it in $TMPDIR, else in /tmp. Errors: Io.
  static Result<TemporaryFolder> make();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const noexcept { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace artesian::models
