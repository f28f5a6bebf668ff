#include "tools/aio_bench/flags.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "base/machine.h"
#include "base/split.h"
#include "base/units.h"
#include "tools/aio_bench/huge_pages.h"
#include "tools/shell/report_error.h"
#include "tools/shell/standard_output.h"

namespace artesian::bench {
namespace {

std::atomic<int> signal_seen = 0;

void on_signal(int number) {
  if (signal_seen.exchange(number) == 0) return;
  give_back_huge_pages();  // destructors do not run
  ::signal(number, SIG_DFL);
  ::raise(number);
}

/// Checks with the effective user, who will write.
bool writable(const std::string& directory) {
  return faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

std::string in_quotes(const std::string& text) {
  return '"' + text + '"';
}

std::string either(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t index = 0; index < words.size(); ++index) {
    const bool last = index + 1 == words.size();
    text += (index == 0 ? "" : last ? " or " : ", ") + words[index];
  }
  return text;
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const aio::EngineKind kind : engine_kinds) names.emplace_back(engine_kind_name(kind));
  return names;
}

}  // namespace

void Faults::add(const std::string& what, const std::string& where, const std::string& got,
                 const std::string& allowed, const std::string& fix) {
  add_line(what + ": " + where + ": got " + got + ", allowed " + allowed + "; " + fix);
}

void Faults::add_line(const std::string& line) {
  if (any()) text_ += '\n';
  text_ += line;
}

int Faults::print() const {
  return tools::report_error(program, text_, 2);
}

FlagReader::FlagReader(const CLI::App& app, Faults& faults) : app_(app), faults_(faults) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0 || option->count() < 2) continue;
    faults.add("given too often", option->get_name(), fmt::format("{} values", option->count()),
               "one", "drop the others");
  }
}

bool FlagReader::given(const std::string& flag) const {
  return app_.get_option(flag)->count() != 0;
}

std::string FlagReader::text(const std::string& flag, const std::string& absent) const {
  return given(flag) ? app_.get_option(flag)->results().front() : absent;
}

std::uint64_t FlagReader::size(const std::string& flag, const std::string& absent) {
  const std::string typed = text(flag, absent);
  auto size = parse_size(typed);
  if (size && *size != 0 && *size <= (std::uint64_t{1} << 50)) return *size;
  faults_.add("wrong value", flag, in_quotes(typed),
              "a size above 0 such as 4096, 512MiB (powers of 1024) or 1GB (of 1000)",
              "try " + absent);
  return 4096;
}

std::uint64_t FlagReader::file_size(const std::string& flag, const std::string& absent) {
  const std::uint64_t typed = size(flag, absent);
  const std::uint64_t rounded = round_up(typed, 4096);
  if (rounded != typed) {
    log(LogLevel::Info, fmt::format("{} {} is rounded up to {} bytes, a multiple of 4096", flag,
                                    text(flag), rounded));
  }
  return rounded;
}

std::uint64_t FlagReader::block_size(const std::string& flag, const std::string& absent) {
  const std::uint64_t block = size(flag, absent);
  if (block % 4096 == 0 && block <= aio::block_size_max) return block;
  faults_.add("wrong value", flag, in_quotes(text(flag)), "a multiple of 4096 up to 1GiB",
              "try " + absent);
  return 4096;
}

std::uint32_t FlagReader::count(const std::string& flag, std::uint32_t absent, std::uint32_t max) {
  if (!given(flag)) return absent;
  const std::string typed = text(flag);
  std::uint32_t value = 0;
  const auto [end, failure] = std::from_chars(typed.data(), typed.data() + typed.size(), value);
  const bool whole = failure == std::errc{} && end == typed.data() + typed.size();
  if (whole && value >= 1 && value <= max) return value;
  faults_.add("wrong value", flag, in_quotes(typed), fmt::format("1 to {}", max),
              "choose a number in this range");
  return absent;
}

double FlagReader::number(const std::string& flag, double absent, double low, double high,
                          const std::string& fix) {
  if (!given(flag)) return absent;
  const std::string typed = text(flag);
  char* end = nullptr;
  const double value = std::strtod(typed.c_str(), &end);
  const bool whole = !typed.empty() && *end == '\0' && std::isfinite(value);
  if (whole && value > low && value <= high) return value;
  char range[80];
  std::snprintf(range, sizeof range, "a number above %g, at most %g", low, high);
  faults_.add("wrong value", flag, in_quotes(typed), range, fix);
  return absent;
}

std::string FlagReader::word(const std::string& flag, const std::vector<std::string>& words) {
  std::string typed = text(flag, words.front());
  if (std::find(words.begin(), words.end(), typed) != words.end()) return typed;
  faults_.add("wrong value", flag, in_quotes(typed), either(words), "use " + words.front());
  return words.front();
}

const aio::EngineKind* FlagReader::engine(const std::string& flag) {
  const std::string typed = text(flag, "auto");
  if (typed == "auto") return nullptr;
  for (const aio::EngineKind& kind : engine_kinds) {
    if (typed == engine_kind_name(kind)) return &kind;
  }
  faults_.add("wrong value", flag, in_quotes(typed), engine_words(), "use auto");
  return nullptr;
}

aio::Polling FlagReader::polling(const std::string& flag) {
  std::vector<std::string> names;
  for (const aio::Polling polling : aio::pollings) names.emplace_back(polling_name(polling));
  const std::string typed = word(flag, names);
  const auto found = std::find(names.begin(), names.end(), typed);
  ARTESIAN_CHECK(found != names.end());
  return aio::pollings[found - names.begin()];
}

void FlagReader::check_directory(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    faults_.add("no such directory", flag, in_quotes(path), "an existing directory",
                "create it, or name another");
  } else if (!writable(path)) {
    faults_.add("cannot write there", flag, in_quotes(path), "a writable directory",
                "change its permissions, or name another");
  }
}

std::vector<std::string> FlagReader::directories(const std::string& flag) {
  std::vector<std::string> found;
  if (!given(flag)) {
    faults_.add("missing flag", flag, "nothing", "an existing directory", "add " + flag + " DIR");
    return found;
  }
  const std::string typed = text(flag);
  for (const std::string_view path : split(typed, ',')) {
    found.emplace_back(path);
    check_directory(flag, found.back());
  }
  return found;
}

std::string FlagReader::directory(const std::string& flag) {
  if (!given(flag)) {
    faults_.add("missing flag", flag, "nothing", "an existing directory", "add " + flag + " DIR");
    return "";
  }
  check_directory(flag, text(flag));
  return text(flag);
}

std::string FlagReader::output(const std::string& flag, Dash dash) {
  std::string target = text(flag);
  if (!given(flag) || (target == "-" && dash == Dash::Yes)) return target;
  const auto parent = std::filesystem::path(write_target(target)).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  using std::filesystem::file_type;
  std::error_code error;
  const file_type type = std::filesystem::status(target, error).type();
  const bool there = type != file_type::not_found && type != file_type::directory && !error;
  const bool may = type == file_type::not_found
                       ? writable(directory)
                       : there && faccessat(AT_FDCWD, target.c_str(), W_OK, AT_EACCESS) == 0;
  if (may && target != "-" && !target.empty()) return target;
  faults_.add("cannot write there", flag, in_quotes(target),
              std::string(dash == Dash::Yes ? "- or " : "") + "a file in a writable directory",
              "name another file");
  return target;
}

std::string write_target(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path target = path;
  std::error_code failed;
  for (int links = 0; links < 8 && fs::is_symlink(target, failed); ++links) {
    const fs::path next = fs::read_symlink(target, failed);
    if (failed) break;
    target = target.parent_path() / next;  // an absolute target replaces the path
  }
  const fs::path resolved = fs::weakly_canonical(fs::absolute(target, failed), failed);
  return failed ? path : resolved.string();
}

void check_space(const std::string& directory, std::uint64_t size, Faults& faults) {
  auto free_bytes = system_files().free_bytes(directory);
  if (!free_bytes || *free_bytes >= size) return;
  faults.add("not enough free space", "--size", format_size(size),
             "at most the " + format_size(*free_bytes) + " that are free in --path",
             "use a smaller --size or another --path");
}

void check_memory(std::uint64_t needed, const std::string& flags, Faults& faults) {
  const std::uint64_t available = available_memory();
  if (available == 0 || needed <= available) return;
  faults.add("not enough memory", flags, format_size(needed),
             "at most the " + format_size(available) + " that are available", "lower one of them");
}

void note_few_blocks(const aio::EngineOptions& engine, std::uint64_t size) {
  const std::uint64_t wanted = std::uint64_t{engine.queue_depth} * engine.threads;
  const std::uint64_t slots = slot_count(engine, size);
  if (slots >= wanted) return;
  log(LogLevel::Info,
      fmt::format("--size {} has {} blocks of {}: no more are in flight, of the {} "
                  "that --queue-depth allows",
                  format_size(size), slots, format_size(engine.block_size), wanted));
}

void add_value(CLI::App& app, const char* flag, const char* type, const std::string& description) {
  app.add_option(flag, description)
      ->type_name(type)
      // Repeated values are counted when they are read.
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_switch(CLI::App& app, const char* flag, const std::string& description) {
  app.add_flag(flag, description)->disable_flag_override();
}

std::string engine_words() {
  std::vector<std::string> words = engine_names();
  words.emplace_back("auto");
  return either(words);
}

const std::atomic<int>& stop_signal() noexcept {
  return signal_seen;
}

void note_signals() noexcept {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  // Otherwise nohup's setting is kept.
  if (hang_up.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);  // writing to a closed stdout must be an error of the write
}

bool write_output(const std::string& target, const std::string& text) {
  if (target == "-") {
    const auto written = tools::write_stdout(text);
    if (!written) tools::report_error(program, written.error(), 1);
    return written.has_value();
  }
  std::ofstream file(target, std::ios::binary);
  file << text;
  file.close();
  if (!file) tools::report_error(program, "cannot write: " + target, 1);
  return !file.fail();
}

int report_failure(const Error& error) {
  if (error.code == ErrorCode::Cancelled && signal_seen != 0) return 128 + signal_seen;
  const bool knowable = error.code == ErrorCode::NoSpace || error.code == ErrorCode::Unsupported ||
                        error.code == ErrorCode::Invalid;
  return tools::report_error(program, error, knowable ? 2 : 1);
}

}  // namespace artesian::bench
