// Collects the faults of a config, so that the user sees all of them at once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace artesian::zero3 {

class Faults {
 public:
  /// Adds the line "KEY.PATH: got X, allowed Y; FIX".
  void invalid(std::string line) {
    lines_.push_back(std::move(line));
    code_ = ErrorCode::Invalid;
  }
  /// Adds the line "not supported yet: KEY.PATH: ...".
  void unsupported(const std::string& line) {
    if (lines_.empty()) code_ = ErrorCode::Unsupported;
    lines_.push_back("not supported yet: " + line);
  }
  /// Adds the line "KEY.PATH: ...", which says that DeepSpeed 0.19.8 has removed the key. `line`:
  /// the path and, if a value is at fault, what was given and what is allowed.
  void removed(const std::string& line) {
    if (lines_.empty()) code_ = ErrorCode::Unsupported;
    const bool of_value = line.find(": got ") != std::string::npos;
    lines_.push_back(line + (of_value ? "; " : ": ") +
                     "DeepSpeed 0.19.8 has removed this feature, and Artesian does not have it");
  }

  bool empty() const noexcept { return lines_.empty(); }
  /// True if further faults are only counted.
  bool full() const noexcept { return lines_.size() >= lines_max; }

  /// At most 5 lines joined by '\n'; if there are more faults, the last line counts them. Code:
  /// Unsupported if every fault is one, else Invalid.
  Error to_error() const {
    ARTESIAN_CHECK(!lines_.empty());
    std::string message;
    for (std::size_t i = 0; i < lines_.size() && i < lines_max; ++i) {
      message += (i > 0 ? "\n" : "") + lines_[i];
    }
    if (lines_.size() > lines_max) {
      message += " ... and " + std::to_string(lines_.size() - lines_max) + " more";
    }
    return make_error(code_, std::move(message));
  }

 private:
  static constexpr std::size_t lines_max = 5;
  std::vector<std::string> lines_;
  ErrorCode code_ = ErrorCode::Invalid;
};

}  // namespace artesian::zero3
