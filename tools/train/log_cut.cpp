#include "tools/train/log_cut.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/log.h"

namespace artesian::tools {
namespace {

/// The step number in a line, as written by the step log.
std::optional<std::uint64_t> step_of(const std::string& line) {
  constexpr std::string_view begin = R"({"step":)";
  if (!line.starts_with(begin) || !line.ends_with('}')) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = line.data() + line.size();
  const auto [rest, failure] = std::from_chars(line.data() + begin.size(), end, step);
  if (failure != std::errc{} || rest == end || *rest != ',') return std::nullopt;
  return step;
}

Error not_ours(const std::string& path, const std::string& got, std::uint64_t step) {
  return make_error(
      ErrorCode::Invalid,
      fmt::format("--log-jsonl: {}: got {}, allowed {}; name another file, or move this one away",
                  path, got,
                  step == 0
                      ? std::string("an empty file")
                      : fmt::format("the lines of steps up to {}, each once and in order", step)));
}

/// The state of a log, relative to the step with which it must end.
struct Found {
  std::uint64_t lines = 0;
  std::uint64_t kept = 0;  // bytes up to and including that step's line
  bool has_last = false;   // that step's line exists
  bool torn = false;       // the following text is not a step's line
  std::uint64_t last = 0;  // step of the last complete line up to there
};

/// True if this text and the rest may be torn lines of steps that will be repeated: the lines
/// before show that the log belongs to this run.
bool may_be_torn(const Found& found, std::optional<std::uint64_t> before, const std::string& line,
                 const LogCut& cut) {
  if (cut.step == 0) return before.has_value() || line.find('\0') != std::string::npos;
  const bool last_is_known = before.has_value() && !cut.line.empty() && found.last + 1 == cut.step;
  return found.has_last || last_is_known;
}

Result<Found> look_at(const std::string& path, const LogCut& cut) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return Error{.code = ErrorCode::Io,
                 .system_error = errno,
                 .message = "--log-jsonl: cannot read",
                 .file = path};
  }
  Found found;
  std::optional<std::uint64_t> before;
  for (std::string line; std::getline(file, line); ++found.lines) {
    if (file.eof()) break;  // no line end: it was being written
    const auto step = step_of(line);
    const std::string where = fmt::format("line {}", found.lines + 1);
    const bool next = step.has_value() && (!before.has_value() || *step == *before + 1);
    // Left by a power cut from lines that were not durable; the lines up to the step were durable.
    found.torn = !next && may_be_torn(found, before, line, cut);
    if (found.torn) break;
    if (!step.has_value()) return not_ours(path, where + ", which is of no step", cut.step);
    if (!next) {
      return not_ours(path, fmt::format("{} of step {} behind that of {}", where, *step, *before),
                      cut.step);
    }
    before = step;
    if (*step > cut.step) continue;
    found.kept += line.size() + 1;
    found.last = *step;
    if (*step != cut.step) continue;
    found.has_last = true;
    if (!cut.line.empty() && line + "\n" != cut.line) {
      return not_ours(path,
                      fmt::format("{}, which is not what step {} of this run had", where, cut.step),
                      cut.step);
    }
  }
  return found;
}

bool has_lines(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) &&
         std::filesystem::file_size(path, ignored) != 0;
}

bool one_is_missing(const Found& found, const LogCut& cut) {
  return !found.has_last && found.last + 1 == cut.step && !cut.line.empty();
}

/// Analyses a log file for cut_log(). Errors: those of cut_log().
Result<Found> find_cut(const std::string& path, const LogCut& cut) {
  ARTESIAN_TRY(found, look_at(path, cut));
  if (cut.step == 0 && cut.lines_max != 0 && found.lines > cut.lines_max) {
    return not_ours(
        path,
        fmt::format("{} lines, of which a checkpoint must have been saved, and there is none",
                    found.lines),
        0);
  }
  const bool all_later = found.kept == 0;  // all lines are of steps that will be repeated
  if (cut.step != 0 && !found.has_last && !one_is_missing(found, cut) && !all_later) {
    return not_ours(path, fmt::format("no line of step {}", cut.step), cut.step);
  }
  return found;
}

/// PATH.1, or the first number that is free.
std::string name_aside(const std::string& path) {
  std::error_code failure;
  for (std::uint64_t number = 1;; ++number) {
    std::string aside = fmt::format("{}.{}", path, number);
    if (!std::filesystem::exists(std::filesystem::symlink_status(aside, failure))) return aside;
  }
}

/// Lines that no checkpoint covers are moved, not deleted.
Result<void> move_aside(const std::string& path) {
  const std::string aside = name_aside(path);
  std::error_code failure;
  std::filesystem::rename(path, aside, failure);
  if (failure) {
    return Error{.code = ErrorCode::Io,
                 .system_error = failure.value(),
                 .message = "--log-jsonl: cannot be moved to " + aside,
                 .file = path};
  }
  log(LogLevel::Info,
      "--log-jsonl: the lines of a run that left no checkpoint are in " + aside + " now");
  return {};
}

/// Keeps the torn part, as it may contain more than lines that will be repeated.
Result<void> keep_torn(const std::string& path, std::uint64_t from) {
  const std::string aside = name_aside(path);
  std::ifstream file(path, std::ios::binary);
  std::ofstream copy(aside, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(from));
  copy << file.rdbuf();
  copy.flush();
  if (!file.good() || !copy.good()) {
    return Error{.code = ErrorCode::Io,
                 .system_error = errno,
                 .message = "--log-jsonl: what is torn cannot be copied to " + aside,
                 .file = path};
  }
  log(LogLevel::Warning,
      "--log-jsonl: what follows the lines of " + path + " is torn; it is in " + aside + " now");
  return {};
}

}  // namespace

Result<void> check_log(const std::string& path, const LogCut& cut) {
  if (!has_lines(path)) return {};
  ARTESIAN_TRY(found, find_cut(path, cut));
  static_cast<void>(found);
  return {};
}

Result<void> cut_log(const std::string& path, const LogCut& cut) {
  if (!has_lines(path)) return {};
  ARTESIAN_TRY(found, find_cut(path, cut));
  if (cut.step == 0 && (found.lines != 0 || found.torn)) return move_aside(path);
  if (found.torn) ARTESIAN_TRY_VOID(keep_torn(path, found.kept));
  const auto failed = [&] {
    return Error{.code = ErrorCode::Io,
                 .system_error = errno,
                 .message = "--log-jsonl: cannot be cut",
                 .file = path};
  };
  if (::truncate(path.c_str(), static_cast<off_t>(found.kept)) != 0) return failed();
  if (!one_is_missing(found, cut)) return {};
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << cut.line;
  file.flush();
  if (!file.good()) return failed();
  return {};
}

}  // namespace artesian::tools
