// aio_bench: how fast this machine moves bytes to and from files through our engines. Here are the
// command line, its refusals, and how results are printed; aio_bench_run.cpp does the work.
//
// stdout holds results only; notes and errors go to stderr. Exit codes: 0 done; 2 = knowable before
// the start; 1 = later; 130, 143 = stopped by SIGINT, SIGTERM.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "tools/aio_bench_run.h"

namespace artesian::bench {
namespace {

constexpr std::size_t error_lines_max = 5;

std::atomic<int> stop_signal = 0;
void on_signal(int number) {
  stop_signal = number;
}

/// What the user typed; checked and turned into RunOptions afterwards, so that every fault of a
/// command line is reported at once and in our words.
struct Flags {
  std::string path;
  std::string operation = "read";
  std::string size = "1GiB";
  std::string block_size = "1MiB";
  std::string queue_depth = "32";
  std::string threads = "1";
  std::string engine = "auto";
  std::string seconds;
  std::string json;
  bool single_submit = false;
  bool no_overlap_events = false;
  bool no_direct = false;
};

/// Collects faults: WHAT: WHERE: got X, allowed Y; FIX.
class Faults {
 public:
  void add(const std::string& what, const std::string& where, const std::string& got,
           const std::string& allowed, const std::string& fix) {
    lines_.push_back(what + ": " + where + ": got " + got + ", allowed " + allowed + "; " + fix);
  }
  bool print() const {
    for (std::size_t index = 0; index < std::min(lines_.size(), error_lines_max); ++index) {
      std::fprintf(stderr, "aio_bench: error: %s\n", lines_[index].c_str());
    }
    return !lines_.empty();
  }

 private:
  std::vector<std::string> lines_;
};

std::uint64_t size_flag(const std::string& text, const char* flag, const char* example,
                        Faults& faults) {
  auto size = parse_size(text);
  if (size && *size != 0 && *size <= (std::uint64_t{1} << 50)) return *size;
  faults.add("wrong value", flag, "\"" + text + "\"",
             "a size above 0 such as 4096, 512MiB (powers of 1024) or 1GB (of 1000)",
             std::string("try ") + example);
  return 0;
}

std::uint32_t count_flag(const std::string& text, const char* flag, std::uint32_t max,
                         Faults& faults) {
  std::uint32_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = failure == std::errc{} && end == text.data() + text.size();
  if (whole && value >= 1 && value <= max) return value;
  faults.add("wrong value", flag, "\"" + text + "\"", "1 to " + std::to_string(max),
             "choose a number in this range");
  return 1;
}

double seconds_flag(const std::string& text, Faults& faults) {
  if (text.empty()) return 0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end == '\0' && std::isfinite(value) && value > 0 && value <= 1e6) return value;
  faults.add("wrong value", "--seconds", "\"" + text + "\"", "a number above 0, at most 1e6",
             "leave it out for one pass over the file");
  return 0;
}

/// Asks as the effective user, who will do the writing.
bool writable(const std::string& directory) {
  return faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
}

void check_path(const Flags& flags, Faults& faults) {
  if (flags.path.empty()) {
    faults.add("missing flag", "--path", "nothing", "an existing directory", "add --path DIR");
    return;
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(flags.path, ignored)) {
    faults.add("no such directory", "--path", "\"" + flags.path + "\"", "an existing directory",
               "create it, or name another");
  } else if (!writable(flags.path)) {
    faults.add("cannot write there", "--path", "\"" + flags.path + "\"", "a writable directory",
               "change its permissions, or name another");
  }
}

void check_words(const Flags& flags, RunOptions& options, Faults& faults) {
  using Kind = RunOptions::Kind;
  if (flags.operation == "mixed") {
    faults.add("not supported yet: mixed", "--op", "mixed", "read or write", "run them in turn");
  } else if (flags.operation != "read" && flags.operation != "write") {
    faults.add("wrong value", "--op", "\"" + flags.operation + "\"", "read or write", "name one");
  }
  options.operation = flags.operation == "write" ? aio::Operation::Write : aio::Operation::Read;
  if (flags.engine == "libaio") {
    faults.add("not supported yet: libaio", "--engine", "libaio", "io_uring, threads or auto",
               "use auto");
  } else if (flags.engine != "io_uring" && flags.engine != "threads" && flags.engine != "auto") {
    faults.add("wrong value", "--engine", "\"" + flags.engine + "\"", "io_uring, threads or auto",
               "use auto");
  }
  options.kind = flags.engine == "io_uring"  ? Kind::IoUring
                 : flags.engine == "threads" ? Kind::Threads
                                             : Kind::Auto;
}

void check_json(const Flags& flags, Faults& faults) {
  if (flags.json.empty() || flags.json == "-") return;
  const auto parent = std::filesystem::path(flags.json).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  if (writable(directory) && !std::filesystem::is_directory(flags.json)) {
    return;
  }
  faults.add("cannot write there", "--json", "\"" + flags.json + "\"",
             "- or a file in a writable directory", "name another file");
}

std::uint64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  while (file >> key) {
    if (key == "MemAvailable:" && file >> kib) return kib << 10;
    file.ignore(256, '\n');
  }
  return ~std::uint64_t{0};
}

/// What only the machine can refuse, once the flags are right.
void check_room(const RunOptions& options, Faults& faults) {
  auto free_bytes = system_files().free_bytes(options.directory);
  if (free_bytes && *free_bytes < options.size) {
    faults.add("not enough free space", "--size", format_size(options.size),
               "at most the " + format_size(*free_bytes) + " that are free in --path",
               "use a smaller --size or another --path");
  }
  const std::uint64_t needed = buffer_bytes(options);
  const std::uint64_t available = memory_available();
  if (needed > available) {
    faults.add("not enough memory", "--block-size x --queue-depth x --threads", format_size(needed),
               "at most the " + format_size(available) + " that are available",
               "lower one of them");
  }
}

RunOptions options_of(const Flags& flags, Faults& faults) {
  RunOptions options;
  options.directory = flags.path;
  check_path(flags, faults);
  check_words(flags, options, faults);
  const std::uint64_t size = size_flag(flags.size, "--size", "1GiB", faults);
  options.size = round_up(size, 4096);
  if (options.size != size) {
    log(LogLevel::Info, "--size " + flags.size + " is rounded up to " +
                            std::to_string(options.size) + " bytes, a multiple of 4096");
  }
  auto& block_size = options.engine.block_size;
  block_size = size_flag(flags.block_size, "--block-size", "1MiB", faults);
  if (block_size % 4096 != 0 || block_size > aio::block_size_max) {
    faults.add("wrong value", "--block-size", "\"" + flags.block_size + "\"",
               "a multiple of 4096 up to 1GiB", "try 1MiB");
  }
  options.engine.queue_depth =
      count_flag(flags.queue_depth, "--queue-depth", aio::queue_depth_max, faults);
  options.engine.threads = count_flag(flags.threads, "--threads", aio::threads_max, faults);
  options.engine.single_submit = flags.single_submit;
  options.engine.overlap_events = !flags.no_overlap_events;
  options.direct = flags.no_direct ? Direct::Never : Direct::IfAligned;
  options.seconds = seconds_flag(flags.seconds, faults);
  check_json(flags, faults);
  return options;
}

nlohmann::ordered_json to_json(const RunOptions& options, const RunResult& result) {
  const aio::EngineStatistics& statistics = result.statistics;
  const double seconds = std::max(result.seconds, 1e-9);
  return {{"op", options.operation == aio::Operation::Read ? "read" : "write"},
          {"engine", aio::engine_kind_name(result.kind)},
          {"block_size", options.engine.block_size},
          {"queue_depth", options.engine.queue_depth},
          {"threads", options.engine.threads},
          {"single_submit", options.engine.single_submit},
          {"overlap_events", options.engine.overlap_events},
          {"direct", result.direct},
          {"bytes", result.bytes},
          {"seconds", result.seconds},
          {"gb_per_s", static_cast<double>(result.bytes) / seconds * 1e-9},
          {"iops", static_cast<double>(statistics.blocks) / seconds},
          {"submit_calls", statistics.submit_calls},
          {"lat_us",
           {{"p50", statistics.latency_us_p50},
            {"p95", statistics.latency_us_p95},
            {"p99", statistics.latency_us_p99}}},
          {"cpu_seconds", result.cpu_seconds},
          {"verified", result.verified}};
}

void print_line(const nlohmann::ordered_json& json) {
  std::printf(
      "%s %s%s: %.3f GB/s, %.0f blocks/s of %s, depth %u x %u, latency p50 %llu us, "
      "p99 %llu us, %.2f s, cpu %.2f s, %s\n",
      json["op"].get<std::string>().c_str(), json["engine"].get<std::string>().c_str(),
      json["direct"].get<bool>() ? "" : " (buffered)", json["gb_per_s"].get<double>(),
      json["iops"].get<double>(), format_size(json["block_size"].get<std::uint64_t>()).c_str(),
      json["queue_depth"].get<unsigned>(), json["threads"].get<unsigned>(),
      json["lat_us"]["p50"].get<unsigned long long>(),
      json["lat_us"]["p99"].get<unsigned long long>(), json["seconds"].get<double>(),
      json["cpu_seconds"].get<double>(), json["verified"].get<bool>() ? "verified" : "WRONG DATA");
}

/// Prints to where the flags say. Returns whether that worked.
bool print_result(const Flags& flags, const nlohmann::ordered_json& json) {
  if (flags.json == "-") {
    std::printf("%s\n", json.dump(2).c_str());
    return std::fflush(stdout) == 0;
  }
  print_line(json);
  if (flags.json.empty()) return true;
  std::ofstream file(flags.json);
  file << json.dump(2) << "\n";
  file.close();
  if (!file) std::fprintf(stderr, "aio_bench: error: cannot write: %s\n", flags.json.c_str());
  return !file.fail();
}

int run_command(const Flags& flags) {
  Faults faults;
  const RunOptions options = options_of(flags, faults);
  if (faults.print()) return 2;
  check_room(options, faults);
  if (faults.print()) return 2;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, not the end
  auto result = run(options, stop_signal);
  if (!result) {
    const Error& error = result.error();
    if (error.code == ErrorCode::Cancelled) return 128 + stop_signal;
    std::fprintf(stderr, "aio_bench: error: %s\n", error.to_string().c_str());
    return error.code == ErrorCode::NoSpace || error.code == ErrorCode::Unsupported ? 2 : 1;
  }
  if (!print_result(flags, to_json(options, *result))) return 1;
  if (result->verified) return 0;
  std::fprintf(stderr,
               "aio_bench: error: wrong data: %s: what was %s is not what the file is to "
               "hold; do not trust this disk or this program\n",
               flags.path.c_str(), flags.operation == "read" ? "read" : "written");
  return 1;
}

void add_run_flags(CLI::App& command, Flags& flags) {
  command.add_option("--path", flags.path, "Directory for the temporary file; must exist");
  command.add_option("--op", flags.operation, "read or write")->capture_default_str();
  command.add_option("--size", flags.size, "Size of the file")->capture_default_str();
  command.add_option("--block-size", flags.block_size, "Bytes per transfer, a multiple of 4096")
      ->capture_default_str();
  command.add_option("--queue-depth", flags.queue_depth, "Blocks in the kernel per thread")
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "Rings; for the threads engine, threads per slot")
      ->capture_default_str();
  command.add_option("--engine", flags.engine, "io_uring, threads or auto")->capture_default_str();
  command.add_flag("--single-submit", flags.single_submit, "One system call per block");
  command.add_flag("--no-overlap-events", flags.no_overlap_events, "Fill, drain, fill the queue");
  command.add_flag("--no-direct", flags.no_direct, "Through the page cache");
  command.add_option("--seconds", flags.seconds, "Repeat until so many seconds are over");
  command.add_option("--json", flags.json, "Write the result as JSON to a file, or - for stdout");
}

void report_extras(const std::vector<std::string>& extras, Faults& faults) {
  bool after_flag = false;  // then a word is that flag's value
  for (const std::string& extra : extras) {
    const bool is_flag = extra.starts_with("-");
    if (is_flag || !after_flag) {
      faults.add(is_flag ? "unknown flag" : "unexpected word", extra, "\"" + extra + "\"",
                 "the commands and flags of aio_bench run --help", "correct or remove it");
    }
    after_flag = is_flag;
  }
}

int main_of(int count, char** arguments) {
  CLI::App app{"Measures file I/O through Artesian's engines.", "aio_bench"};
  Flags flags;
  CLI::App* run_app = app.add_subcommand("run", "One measurement");
  CLI::App* tune_app = app.add_subcommand("tune", "Finds the best settings (not supported yet)");
  CLI::App* compare_app = app.add_subcommand("compare", "Compares with fio (not supported yet)");
  add_run_flags(*run_app, flags);
  for (CLI::App* command : {&app, run_app, tune_app, compare_app}) command->allow_extras();
  try {
    app.parse(count, arguments);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "aio_bench: error: wrong command line: %s; see aio_bench run --help\n",
                 error.what());
    return 2;
  }
  Faults faults;
  for (const CLI::App* command : {tune_app, compare_app}) {
    if (!command->parsed()) continue;
    faults.add("not supported yet: " + command->get_name(), "command line", command->get_name(),
               "run", "use aio_bench run");
    faults.print();
    return 2;
  }
  report_extras(app.remaining(true), faults);
  if (faults.print()) return 2;
  if (!run_app->parsed()) {
    faults.add("missing command", "command line", "nothing", "run", "see aio_bench --help");
    faults.print();
    return 2;
  }
  return run_command(flags);
}

}  // namespace
}  // namespace artesian::bench

int main(int count, char** arguments) {
  return artesian::bench::main_of(count, arguments);
}
