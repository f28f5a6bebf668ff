#include "tools/aio_bench/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/huge_page.h"
#include "base/log.h"
#include "base/units.h"
#include "pinned/huge_pages.h"
#include "tools/aio_bench/fio.h"
#include "tools/aio_bench/flags.h"
#include "tools/aio_bench/huge_pages.h"
#include "tools/aio_bench/progress.h"
#include "tools/aio_bench/search.h"
#include "tools/shell/print.h"
#include "tools/shell/report_error.h"

namespace artesian::bench {
namespace {

using Json = nlohmann::ordered_json;

struct CompareOptions {
  std::string directory;
  std::vector<Access> accesses;
  std::uint64_t size = 0;
  aio::EngineOptions engine;
  const aio::EngineKind* kind = nullptr;
  Direct direct = Direct::IfAligned;
  std::uint32_t repeats = 5;
  std::uint32_t seconds = 0;
  std::string memory;  // "auto", "huge" or "plain"
  std::string json;
};

/// The figures of one contestant, one per repeat.
struct Contestant {
  std::vector<double> gb_per_s, cpu_seconds_per_gb, latency_us_p50, latency_us_p99;

  void add(double bytes, double seconds, double cpu_seconds, double p50, double p99) {
    gb_per_s.push_back(bytes * 1e-9 / std::max(seconds, 1e-9));
    cpu_seconds_per_gb.push_back(cpu_seconds / (bytes * 1e-9));
    latency_us_p50.push_back(p50);
    latency_us_p99.push_back(p99);
  }
};

struct Comparison {
  Access access = Access::Read;
  Contestant ours, fio;
};

CompareOptions read_compare_flags(const CLI::App& command, Faults& faults) {
  FlagReader flags(command, faults);
  CompareOptions options;
  options.directory = flags.directory("--path");
  flags.word("--against", {"fio"});
  const std::string operation = flags.word("--op", {"all", "read", "write", "mixed"});
  for (const Access access : accesses) {
    if (operation == "all" || operation == access_name(access)) options.accesses.push_back(access);
  }
  options.size = flags.file_size("--size", "1GiB");
  options.engine.block_size = flags.block_size("--block-size", "1MiB");
  options.engine.queue_depth = flags.count("--queue-depth", 32, aio::queue_depth_max);
  options.kind = flags.engine("--engine");
  options.direct = flags.given("--no-direct") ? Direct::Never : Direct::IfAligned;
  options.repeats = flags.count("--repeats", 5, 1000);
  if (options.repeats < 5) {
    faults.add("wrong value", "--repeats", std::to_string(options.repeats), "5 to 1000",
               "fewer say nothing");
  }
  options.seconds = flags.count("--seconds", 0, 3600);
  options.memory = flags.word("--memory", {"auto", "huge", "plain"});
  options.json = flags.output("--json", FlagReader::Dash::Yes);
  if (options.size % options.engine.block_size != 0) {
    faults.add("wrong value", "--size", format_size(options.size), "a multiple of --block-size",
               "fio would leave out the rest");
  }
  if (flags.given("--queue-depth") && !faults.any()) note_few_blocks(options.engine, options.size);
  return options;
}

class Comparer {
 public:
  explicit Comparer(const CompareOptions& options) : options_(options), stop_(stop_signal()) {}

  Result<void> run();
  Json to_json() const;
  std::string to_text() const;
  bool verified() const noexcept { return verified_; }
  void end_progress() { progress_.reset(); }

 private:
  Result<void> choose_memory();
  Result<void> make_files();
  Result<void> measure_ours(Comparison& comparison);
  Result<void> measure_fio(Comparison& comparison);
  Transfers transfers_of(Access access) const;
  FioJob job_of(Access access) const;
  void show(const Comparison& comparison, const char* whose, double gb_per_s);

  const CompareOptions& options_;
  const std::atomic<int>& stop_;
  std::string version_;
  std::optional<HugePageReservation> huge_pages_;
  std::string memory_note_;
  std::unique_ptr<Ground> ground_;
  BenchFile fio_file_;
  const char* engine_ = "";
  const char* fio_engine_ = "io_uring";
  bool verified_ = true;
  std::vector<Comparison> comparisons_;
  // Destroyed at the end.
  std::optional<Progress> progress_ = std::optional<Progress>(std::in_place);
  std::uint64_t begin_ns_ = 0;
  std::uint32_t measured_ = 0;
};

/// Shows progress after a measurement; all measurements take about as long.
void Comparer::show(const Comparison& comparison, const char* whose, double gb_per_s) {
  ++measured_;
  const double gone = seconds_since(begin_ns_);
  const auto all = static_cast<double>(2 * comparisons_.size() * options_.repeats);
  progress_->show({.stage = "comparing",
                   .gone_s = gone,
                   .left_s = gone / measured_ * (all - measured_),
                   .rate = tools::print("%.2f GB/s", gb_per_s),
                   .detail = std::string(access_name(comparison.access)) + ", " + whose,
                   .worth_s = 3});
}

/// Both use the same kernel interface. For our threads, which fio lacks, fio gets the best one
/// available.
const char* fio_engine_for(aio::EngineKind ours) {
  for (const aio::EngineKind kind : {aio::EngineKind::IoUring, aio::EngineKind::Libaio}) {
    const bool same = kind == ours;
    const bool best = ours == aio::EngineKind::Threads && aio::make_engine(kind, {}).has_value();
    if (same || best) return engine_kind_name(kind);
  }
  return "posixaio";
}

/// fio can only use reserved huge pages, and we only transparent ones, both of 2 MiB. If none can
/// be reserved, both use small pages.
Result<void> Comparer::choose_memory() {
  if (options_.memory != "plain") {
    const std::uint64_t bytes =
        options_.engine.block_size * slot_count(options_.engine, options_.size);
    auto made = HugePageReservation::make(round_up(bytes, huge_page_size) / huge_page_size + 16,
                                          system_huge_pages());
    if (made) {
      huge_pages_.emplace(std::move(made).value());
      return {};
    }
    if (options_.memory == "huge") {
      Error error = made.error();
      error.message = "--memory: got huge, allowed what this machine has: " + error.message +
                      "; use --memory plain";
      return error;
    }
    memory_note_ = made.error().message + ": buffers of both are on 4 KiB pages";
    log(LogLevel::Info, memory_note_);
  }
  if (pinned::forbid_huge_pages()) return {};
  memory_note_ = "transparent huge pages cannot be switched off: ours are of 2 MiB, fio's of 4 KiB";
  log(LogLevel::Warning, memory_note_);
  return {};
}

Result<void> Comparer::make_files() {
  ARTESIAN_TRY(made, Ground::create({.directories = {options_.directory},
                                     .size = options_.size,
                                     .granule = options_.engine.block_size,
                                     .buffer_bytes = slot_count(options_.engine, options_.size) *
                                                     options_.engine.block_size,
                                     .direct = options_.direct},
                                    stop_));
  ground_ = std::move(made);
  ARTESIAN_TRY(kind, ground_->kind_of(transfers_of(Access::Write)));
  fio_engine_ = fio_engine_for(kind);
  ARTESIAN_TRY_VOID(ground_->fill(transfers_of(Access::Write), [&](const Pass& now) {
    progress_->show(pass_line("writing", options_.size, now));
  }));
  ARTESIAN_TRY(file, create_bench_file(options_.directory, Direct::Never, options_.size));
  fio_file_ = std::move(file);
  FioJob filling = job_of(Access::Write);
  filling.seconds = 0;
  ARTESIAN_TRY(filled, run_fio(filling, stop_));
  ARTESIAN_CHECK(filled.bytes > 0);
  return {};
}

Transfers Comparer::transfers_of(Access access) const {
  return {.access = access,
          .engine = options_.engine,
          .kind = options_.kind,
          .seconds = static_cast<double>(options_.seconds)};
}

FioJob Comparer::job_of(Access access) const {
  return {.descriptor = fio_file_->descriptor(),
          .size = options_.size,
          .access = access,
          .block_size = options_.engine.block_size,
          .queue_depth = static_cast<std::uint32_t>(slot_count(options_.engine, options_.size)),
          .engine = fio_engine_,
          .direct = ground_->direct(),
          .huge_pages = huge_pages_.has_value(),
          .fixed_buffers = ground_->pool().statistics().locked,
          .seconds = options_.seconds};
}

/// fio drops its file's page cache before each job. So our measurement starts equally cold, and
/// neither benefits from cached or unwritten pages.
Result<void> Comparer::measure_ours(Comparison& comparison) {
  if (!ground_->direct()) ARTESIAN_TRY_VOID(ground_->drop_cache());
  ARTESIAN_TRY(got, ground_->measure(transfers_of(comparison.access)));
  verified_ = verified_ && got.right;
  engine_ = engine_kind_name(got.kind);
  show(comparison, "artesian", got.gb_per_s());
  comparison.ours.add(static_cast<double>(got.bytes()), got.seconds, got.cpu_seconds,
                      static_cast<double>(got.statistics.latency_us_p50),
                      static_cast<double>(got.statistics.latency_us_p99));
  return {};
}

Result<void> Comparer::measure_fio(Comparison& comparison) {
  if (!ground_->direct()) ARTESIAN_TRY_VOID(fio_file_->sync());
  ARTESIAN_TRY(got, run_fio(job_of(comparison.access), stop_));
  show(comparison, "fio", static_cast<double>(got.bytes) * 1e-9 / got.seconds);
  comparison.fio.add(static_cast<double>(got.bytes), got.seconds, got.cpu_seconds,
                     got.latency_us_p50, got.latency_us_p99);
  return {};
}

Result<void> Comparer::run() {
  ARTESIAN_TRY(version, fio_version(stop_));
  version_ = version;
  ARTESIAN_TRY_VOID(choose_memory());
  ARTESIAN_TRY_VOID(make_files());
  for (const Access access : options_.accesses) {
    comparisons_.push_back({.access = access, .ours = {}, .fio = {}});
  }
  begin_ns_ = monotonic_ns();
  for (std::uint32_t repeat = 0; repeat < options_.repeats; ++repeat) {
    for (Comparison& comparison : comparisons_) {
      // They begin alternately, so that neither always follows the other.
      const bool first = repeat % 2 == 0;
      if (first) ARTESIAN_TRY_VOID(measure_ours(comparison));
      ARTESIAN_TRY_VOID(measure_fio(comparison));
      if (!first) ARTESIAN_TRY_VOID(measure_ours(comparison));
    }
  }
  if (options_.accesses == std::vector{Access::Read}) return {};
  ARTESIAN_TRY(right, ground_->all_right(transfers_of(Access::Read)));
  verified_ = verified_ && right;
  return {};
}

Json summary(const std::vector<double>& values) {
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())},
          {"all", values}};
}

/// Quotients of pairs, in which drift of the disk cancels.
std::vector<double> quotients(const std::vector<double>& left, const std::vector<double>& right) {
  std::vector<double> values;
  for (std::size_t index = 0; index < left.size(); ++index) {
    values.push_back(left[index] / std::max(right[index], 1e-12));
  }
  return values;
}

/// fio counts whole milliseconds, so for a few blocks it may count none.
bool counted_cpu(const Contestant& fio) {
  const auto& values = fio.cpu_seconds_per_gb;
  return std::none_of(values.begin(), values.end(), [](double value) { return value <= 0; });
}

constexpr const char* uncounted_cpu = "fio counted 0 ms; use --seconds 5";

Json cpu_ratio_json(const Comparison& each) {
  if (!counted_cpu(each.fio)) return nullptr;
  return summary(quotients(each.ours.cpu_seconds_per_gb, each.fio.cpu_seconds_per_gb));
}

std::string cpu_ratio_text(const Comparison& each) {
  if (!counted_cpu(each.fio)) return std::string("no ratio (") + uncounted_cpu + ")";
  const auto cpu = quotients(each.ours.cpu_seconds_per_gb, each.fio.cpu_seconds_per_gb);
  const auto [low, high] = std::minmax_element(cpu.begin(), cpu.end());
  return tools::print("ratio %.2f (%.2f..%.2f)", median(cpu), *low, *high);
}

Json contestant_json(const char* engine, const Contestant& contestant) {
  return {
      {"engine", engine},
      {"gb_per_s", summary(contestant.gb_per_s)},
      {"cpu_seconds_per_gb", summary(contestant.cpu_seconds_per_gb)},
      {"lat_us",
       {{"p50", median(contestant.latency_us_p50)}, {"p99", median(contestant.latency_us_p99)}}}};
}

Json Comparer::to_json() const {
  Json json = {{"against", version_},
               {"block_size", options_.engine.block_size},
               {"queue_depth", options_.engine.queue_depth},
               {"direct", ground_->direct()},
               {"size", options_.size},
               {"memory", huge_pages_ ? "huge" : "plain"},
               {"memory_note", memory_note_},
               {"repeats", options_.repeats},
               {"verified", verified_},
               {"results", Json::array()}};
  for (const Comparison& each : comparisons_) {
    json["results"].push_back({{"op", access_name(each.access)},
                               {"artesian", contestant_json(engine_, each.ours)},
                               {"fio", contestant_json(fio_engine_, each.fio)},
                               {"ratio", summary(quotients(each.ours.gb_per_s, each.fio.gb_per_s))},
                               {"cpu_ratio", cpu_ratio_json(each)}});
    if (!counted_cpu(each.fio)) json["results"].back()["cpu_note"] = uncounted_cpu;
  }
  return json;
}

std::string Comparer::to_text() const {
  std::string text = tools::print(
      "blocks of %s, depth %u, %s, %s pages, %u repeats, medians\n",
      format_size(options_.engine.block_size).c_str(), options_.engine.queue_depth,
      ground_->direct() ? "direct" : "buffered", huge_pages_ ? "2 MiB" : "4 KiB", options_.repeats);
  for (const Comparison& each : comparisons_) {
    const auto ratio = quotients(each.ours.gb_per_s, each.fio.gb_per_s);
    const auto [low, high] = std::minmax_element(ratio.begin(), ratio.end());
    text += tools::print(
        "%-5s artesian %s %.3f GB/s, fio %s %.3f: ratio %.3f (%.3f..%.3f); CPU s/GB %.4f, "
        "%.4f: %s; p99 us %.0f, %.0f\n",
        access_name(each.access), engine_, median(each.ours.gb_per_s), fio_engine_,
        median(each.fio.gb_per_s), median(ratio), *low, *high, median(each.ours.cpu_seconds_per_gb),
        median(each.fio.cpu_seconds_per_gb), cpu_ratio_text(each).c_str(),
        median(each.ours.latency_us_p99), median(each.fio.latency_us_p99));
  }
  return text;
}

}  // namespace

void add_compare_flags(CLI::App& command) {
  add_value(command, "--path", "DIR", "Directory for the temporary files; must exist");
  add_value(command, "--against", "WORD", "fio (default)");
  add_value(command, "--op", "WORD", "all (default), read, write or mixed");
  add_value(command, "--size", "SIZE", "Size of each file (default: 1GiB)");
  add_value(command, "--block-size", "SIZE",
            "Bytes per transfer, a multiple of 4096 (default: 1MiB)");
  add_value(command, "--queue-depth", "N", "Blocks in the kernel (default: 32)");
  add_value(command, "--engine", "WORD", "Ours: " + engine_words() + " (default)");
  add_switch(command, "--no-direct", "Both through the page cache");
  add_value(command, "--repeats", "N", "Times that each is measured, in turn (default: 5)");
  add_value(command, "--seconds", "S", "Of each measurement (default: once over the file)");
  add_value(command, "--memory", "WORD",
            "Buffers of both: huge (2 MiB pages; fio's are reserved for it, which needs root), "
            "plain (4 KiB), or auto (default): huge where they can be had");
  add_value(command, "--json", "FILE", "Write the result as JSON to a file, or - for stdout");
}

int compare_command(const CLI::App& command) {
  Faults faults;
  const CompareOptions options = read_compare_flags(command, faults);
  if (faults.any()) return faults.print();
  check_space(options.directory, 2 * options.size, faults);
  check_memory(2 * slot_count(options.engine, options.size) * options.engine.block_size,
               "--block-size x --queue-depth", faults);
  if (faults.any()) return faults.print();
  note_signals();
  Comparer comparer(options);
  const auto done = comparer.run();
  comparer.end_progress();
  if (!done) return report_failure(done.error());
  if (!comparer.verified()) {
    return tools::report_error(program,
                               "wrong data: " + options.directory +
                                   ": what was read is not what had been written; do not trust "
                                   "this disk or this program",
                               1);
  }
  const std::string json = comparer.to_json().dump(1) + "\n";
  if (options.json == "-") return write_output("-", json) ? 0 : 1;
  const bool filed = options.json.empty() || write_output(options.json, json);
  return write_output("-", comparer.to_text()) && filed ? 0 : 1;
}

}  // namespace artesian::bench
