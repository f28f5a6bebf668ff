#include "tools/aio_bench/run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/units.h"
#include "tools/aio_bench/flags.h"
#include "tools/aio_bench/progress.h"
#include "tools/shell/print.h"
#include "tools/shell/report_error.h"

namespace artesian::bench {
namespace {

RunOptions read_run_flags(const CLI::App& command, Faults& faults, std::string& json) {
  FlagReader flags(command, faults);
  RunOptions options;
  Transfers& transfers = options.transfers;
  options.directory = flags.directory("--path");
  const std::string operation = flags.word("--op", {"read", "write", "mixed"});
  for (const Access access : accesses) {
    if (operation == access_name(access)) transfers.access = access;
  }
  transfers.kind = flags.engine("--engine");
  options.size = flags.file_size("--size", "1GiB");
  transfers.engine.block_size = flags.block_size("--block-size", "1MiB");
  transfers.engine.queue_depth = flags.count("--queue-depth", 32, aio::queue_depth_max);
  transfers.engine.threads = flags.count("--threads", 1, aio::threads_max);
  transfers.engine.single_submit = flags.given("--single-submit");
  transfers.engine.overlap_events = !flags.given("--no-overlap-events");
  transfers.engine.polling = flags.polling("--polling");
  options.direct = flags.given("--no-direct") ? Direct::Never : Direct::IfAligned;
  transfers.seconds =
      flags.number("--seconds", 0, 0, 1e6, "leave it out for one pass over the file");
  transfers.read_share = flags.number("--read-share", 0.5, 0, 0.99, "try 0.5");
  if (flags.given("--read-share") && transfers.access != Access::Mixed) {
    faults.add("contradiction", "--read-share", "--op " + operation, "it with --op mixed alone",
               "drop one of them");
  }
  json = flags.output("--json", FlagReader::Dash::Yes);
  if (flags.given("--queue-depth") && !faults.any()) {
    note_few_blocks(transfers.engine, options.size);
  }
  return options;
}

/// Shows a bar and the last second's rate; for a single pass the larger of reads and writes.
void show(const RunOptions& options, const Measurement& now, Progress& progress) {
  const Transfers& transfers = options.transfers;
  const std::string stage =
      fmt::format("{} {} x {}", access_name(transfers.access),
                  format_size(transfers.engine.block_size), transfers.engine.queue_depth);
  const auto over_file = static_cast<double>(std::max(now.bytes_read, now.bytes_written));
  const double one_pass = now.seconds * static_cast<double>(options.size) / over_file;
  const double planned = transfers.seconds > 0 ? transfers.seconds : one_pass;
  progress.show({.stage = stage,
                 .gone_s = now.seconds,
                 .left_s = std::max(0.0, planned - now.seconds),
                 .rate = tools::print("%.2f GB/s", now.gb_per_s_by_second.back()),
                 .detail = {}});
}

/// Names the slowest second of a measurement of at least two seconds: a disk that is shared, warm,
/// or has filled its fast cells, has a second far below the others.
std::string slowest_second(const std::vector<double>& by_second) {
  if (by_second.size() < 2) return "";
  char text[48];
  const double slowest = *std::min_element(by_second.begin(), by_second.end());
  std::snprintf(text, sizeof text, " (slowest second %.3f)", slowest);
  return text;
}

std::string to_line(const nlohmann::ordered_json& json) {
  const std::string both = json["op"] != "mixed"
                               ? ""
                               : " (read " + json["read_gb_per_s"].dump().substr(0, 5) +
                                     ", write " + json["write_gb_per_s"].dump().substr(0, 5) + ")";
  return tools::print(
      "%s %s%s: %.3f GB/s%s%s, %.0f blocks/s of %s, depth %u x %u, latency p50 %llu us, "
      "p99 %llu us, %.2f s, cpu %.2f s, %s\n",
      json["op"].get<std::string>().c_str(), json["engine"].get<std::string>().c_str(),
      json["direct"].get<bool>() ? "" : " (buffered)", json["gb_per_s"].get<double>(), both.c_str(),
      slowest_second(json.value("gb_per_s_by_second", std::vector<double>{})).c_str(),
      json["iops"].get<double>(), format_size(json["block_size"].get<std::uint64_t>()).c_str(),
      json["queue_depth"].get<unsigned>(), json["threads"].get<unsigned>(),
      json["lat_us"]["p50"].get<unsigned long long>(),
      json["lat_us"]["p99"].get<unsigned long long>(), json["seconds"].get<double>(),
      json["cpu_seconds"].get<double>(), json["verified"].get<bool>() ? "verified" : "WRONG DATA");
}

/// Prints to the targets in the flags, the file first, as the reader of stdout may be gone. Returns
/// whether everything was written.
bool print_result(const std::string& target, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2) + "\n";
  if (target == "-") return write_output("-", text);
  const bool filed = target.empty() || write_output(target, text);
  return write_output("-", to_line(json)) && filed;
}

}  // namespace

std::uint64_t buffer_bytes(const RunOptions& options) noexcept {
  return slot_count(options.transfers.engine, options.size) * options.transfers.engine.block_size;
}

Result<Measurement> run(const RunOptions& options, const std::atomic<int>& stop,
                        const RunWatch& watch) {
  const auto pass_of = [&](const char* stage) -> PassWatch {
    if (!watch.pass) return nullptr;
    return [&watch, stage](const Pass& now) { watch.pass(stage, now); };
  };
  ARTESIAN_TRY(ground, Ground::create({.directories = {options.directory},
                                       .size = options.size,
                                       .granule = options.transfers.engine.block_size,
                                       .buffer_bytes = buffer_bytes(options),
                                       .direct = options.direct},
                                      stop));
  ARTESIAN_TRY_VOID(ground->fill(options.transfers, pass_of("writing")));
  ARTESIAN_TRY(result, ground->measure(options.transfers, watch.measurement));
  if (options.transfers.access != Access::Read) {
    ARTESIAN_TRY(right, ground->all_right(options.transfers, pass_of("checking")));
    result.right = result.right && right;
  }
  return result;
}

nlohmann::ordered_json to_json(const RunOptions& options, const Measurement& result) {
  const Transfers& transfers = options.transfers;
  const aio::EngineStatistics& statistics = result.statistics;
  const double seconds = std::max(result.seconds, 1e-9);
  nlohmann::ordered_json json = {{"op", access_name(transfers.access)},
                                 {"engine", aio::engine_kind_name(result.kind)},
                                 {"block_size", transfers.engine.block_size},
                                 {"queue_depth", transfers.engine.queue_depth},
                                 {"threads", transfers.engine.threads},
                                 {"single_submit", transfers.engine.single_submit},
                                 {"overlap_events", transfers.engine.overlap_events},
                                 {"polling", polling_name(result.polling)},
                                 {"direct", result.direct},
                                 {"bytes", result.bytes()},
                                 {"seconds", result.seconds},
                                 {"gb_per_s", result.gb_per_s()},
                                 {"iops", static_cast<double>(statistics.blocks) / seconds},
                                 {"submit_calls", statistics.submit_calls},
                                 {"lat_us",
                                  {{"p50", statistics.latency_us_p50},
                                   {"p95", statistics.latency_us_p95},
                                   {"p99", statistics.latency_us_p99}}},
                                 {"cpu_seconds", result.cpu_seconds},
                                 {"verified", result.right}};
  if (transfers.access == Access::Mixed) {
    json["read_gb_per_s"] = static_cast<double>(result.bytes_read) / seconds * 1e-9;
    json["write_gb_per_s"] = static_cast<double>(result.bytes_written) / seconds * 1e-9;
    json["read_share"] = transfers.read_share;
  }
  if (result.seconds >= 1) json["gb_per_s_by_second"] = result.gb_per_s_by_second;
  return json;
}

void add_run_flags(CLI::App& command) {
  add_value(command, "--path", "DIR", "Directory for the temporary file; must exist");
  add_value(command, "--op", "WORD",
            "read (default), write or mixed: reads, and what was read written back behind them");
  add_value(command, "--size", "SIZE", "Size of the file (default: 1GiB)");
  add_value(command, "--block-size", "SIZE",
            "Bytes per transfer, a multiple of 4096 (default: 1MiB)");
  add_value(command, "--queue-depth", "N", "Blocks in the kernel per thread (default: 32)");
  add_value(command, "--threads", "N",
            "Rings; for the threads engine, threads per slot (default: 1)");
  add_value(command, "--engine", "WORD", engine_words() + " (default)");
  add_switch(command, "--single-submit", "One system call per block");
  add_switch(command, "--no-overlap-events", "Fill, drain, fill the queue");
  add_value(command, "--polling", "WORD",
            "Of io_uring: " + aio::polling_words() + " (default: off); it spins on a core");
  add_switch(command, "--no-direct", "Through the page cache");
  add_value(command, "--read-share", "X",
            "Of the bytes of --op mixed, how many are read (default: 0.5)");
  add_value(command, "--seconds", "S",
            "Repeat until so many seconds are over (default: once over the file)");
  add_value(command, "--json", "FILE", "Write the result as JSON to a file, or - for stdout");
}

int run_command(const CLI::App& command) {
  Faults faults;
  std::string json;
  const RunOptions options = read_run_flags(command, faults, json);
  if (faults.any()) return faults.print();
  check_space(options.directory, options.size, faults);
  check_memory(buffer_bytes(options), "--block-size x --queue-depth x --threads", faults);
  if (faults.any()) return faults.print();
  note_signals();
  auto result = [&] {
    Progress progress;  // removed before the result is printed
    return run(
        options, stop_signal(),
        {.measurement = [&](const Measurement& now) { show(options, now, progress); },
         .pass = [&](const char* stage,
                     const Pass& now) { progress.show(pass_line(stage, options.size, now)); }});
  }();
  if (!result) return report_failure(result.error());
  const bool printed = print_result(json, to_json(options, *result));
  if (result->right) return printed ? 0 : 1;
  return tools::report_error(program,
                             "wrong data: " + options.directory +
                                 ": what was moved is not what the file is to hold; do not trust "
                                 "this disk or this program",
                             1);
}

}  // namespace artesian::bench
