// The flags of one command of `artesian`: invalid values are collected as faults, one line each,
// while reading continues.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "zero3/config/faults.h"

namespace artesian::tools {

class FlagReader {
 public:
  explicit FlagReader(const CLI::App& app) : app_(app) {}

  bool given(const char* flag) const { return app_.get_option(flag)->count() != 0; }
  bool has_faults() const { return !faults_.empty(); }
  Error error() const { return faults_.to_error(); }
  void unsupported(const std::string& what) { faults_.unsupported(what); }
  void refuse(const std::string& flag, const std::string& got, const std::string& rest);
  void refuse_text(const char* flag, const std::string& rest);
  /// Refuses a second value for all flags except these.
  void expect_single_values(const std::set<std::string>& several = {});

  std::string text(const char* flag) const;
  std::string path(const char* flag);
  /// The same, without slashes at the end.
  std::string folder(const char* flag);
  /// The values of a flag that may be repeated.
  std::vector<std::string> paths(const char* flag);
  std::string required_path(const char* flag, const std::string& fix);
  /// 1 to 10^9.
  std::optional<std::uint64_t> count(const char* flag);
  std::uint64_t seed(const char* flag);
  /// At least 0.
  std::optional<double> rate(const char* flag);
  /// Above `low` and at most `high`; `example` is shown in messages.
  std::optional<double> number(const char* flag, double low, double high, const char* example);
  /// Bytes, at least 1.
  std::optional<std::uint64_t> size(const char* flag);
  /// True if the second of two words was given; the first is the default.
  bool second_word(const char* flag, const std::string& first, const std::string& second);

 private:
  const CLI::App& app_;
  zero3::Faults faults_;
};

}  // namespace artesian::tools
