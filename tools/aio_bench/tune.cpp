#include "tools/aio_bench/tune.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "tiering/disk/facts.h"
#include "tiering/disk/mount.h"
#include "tools/aio_bench/curve.h"
#include "tools/aio_bench/flags.h"
#include "tools/aio_bench/outputs.h"
#include "tools/aio_bench/progress.h"
#include "tools/aio_bench/report.h"
#include "tools/doctor/disk.h"
#include "tools/shell/print.h"
#include "tools/shell/report_error.h"

namespace artesian::bench {
namespace {

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t granule = 64 << 10;
constexpr std::uint64_t in_flight_max = 256 * mib;
constexpr double curves_share = 0.35;      // share of the budget for the curves of all paths
constexpr double search_share_min = 0.25;  // minimum, however long filling the file took

struct TuneOptions {
  std::vector<std::string> directories;
  std::uint64_t size = 0;
  double budget_seconds = 60;
  bool exhaustive = false;
  aio::Polling polling = aio::Polling::None;
  bool saves_profile = true;
  bool replaces_profile = false;  // even if the existing one is of a longer run
  TuneOutputs outputs;
};

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

TuneOptions read_tune_flags(const CLI::App& command, Faults& faults) {
  FlagReader flags(command, faults);
  TuneOptions options;
  options.directories = flags.directories("--path");
  options.size = flags.file_size("--size", "2GiB");
  constexpr std::uint64_t smallest = 8 * mib;
  if (options.size < smallest * std::max<std::uint64_t>(options.directories.size(), 1)) {
    faults.add("wrong value", "--size", format_size(options.size), "8 MiB for each path, or more",
               "try 2GiB");
  }
  options.budget_seconds =
      flags.number("--budget-seconds", 60, 0.1, 1e5, "try 60; less is noisier");
  options.exhaustive = flags.given("--exhaustive");
  options.polling = flags.polling("--polling");
  options.saves_profile = !flags.given("--no-profile");
  options.replaces_profile = flags.given("--replace-profile");
  if (!options.saves_profile && options.replaces_profile) {
    faults.add("contradiction", "--replace-profile", "it with --no-profile", "one of them",
               "drop one");
  }
  options.outputs = read_outputs(flags);
  return options;
}

/// Checks that these folders together are faster than one of them, like a run that divides its
/// bytes over them. A folder named twice would only be measured twice.
std::string check_striping(const std::vector<std::string>& directories, Faults& faults) {
  if (directories.size() < 2) return "";
  std::vector<tools::StripedPath> paths;
  paths.reserve(directories.size());
  for (const std::string& each : directories) paths.push_back(tools::striped_path(each));
  const tools::Finding finding = tools::examine_striping(paths);
  if (finding.level == tools::Level::Fail) {
    faults.add("contradiction", "--path", finding.value, "each folder once", finding.fix);
  }
  if (finding.level != tools::Level::Warn) return "";
  return finding.value + ": " + finding.meaning + "; name " + finding.fix;
}

/// The tuning: its measurements so far, and what it needs for more.
class Tuner {
 public:
  explicit Tuner(const TuneOptions& options) : options_(options), start_ns_(monotonic_ns()) {}

  /// `warning`: a problem known beforehand, or empty.
  Result<TuneReport> run(const std::string& warning);
  /// Returns the best settings found so far, if any.
  std::optional<Point> best_so_far() const;

 private:
  void warn(const std::string& text);
  /// `left_s`: estimated seconds of everything that remains.
  void show(const std::string& stage, double left_s, const std::string& rate = "",
            const std::string& detail = "") {
    progress_.show({.stage = stage,
                    .gone_s = seconds_since(start_ns_),
                    .left_s = left_s,
                    .rate = rate,
                    .detail = detail});
  }
  Result<void> prepare();
  void find_engines();
  SearchSpace space() const;
  Result<Measurement> measure_patiently(const Transfers& transfers);
  Result<Sample> sample(const Settings& settings, Access access, double seconds,
                        std::uint64_t file_first, std::uint64_t file_count);
  Result<void> search_all();
  void remember(const Settings& settings, Access access, const Sample& got);
  Result<void> measure_path(std::uint64_t index);
  void save_profile(PathReport& path);
  void take_up(SearchResult found);
  CurveOptions curve_options() const;
  double profile_seconds(std::size_t paths) const;

  const TuneOptions& options_;
  const std::uint64_t start_ns_;
  Progress progress_;
  TuneReport report_;
  std::unique_ptr<Ground> ground_;
  std::uint64_t in_flight_max_ = 0;
  std::vector<aio::EngineKind> engines_;
  std::vector<Point> seen_;  // kept for the case that the user stops it
  double bytes_written_ = 0;
  double write_gb_per_s_ = 0;  // recent write rate, for estimating the rest
  bool all_direct_ = true;
  aio::Polling polling_ = aio::Polling::None;  // the polling in effect with io_uring
  std::optional<Error> refusal_;               // the last error of an engine that could not be made
};

void Tuner::warn(const std::string& text) {
  progress_.clear();
  log(LogLevel::Warning, text);
  report_.warnings.push_back(text);
}

std::vector<std::uint64_t> block_sizes(std::uint64_t size_per_path) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t block = 128 << 10; block <= 8 * mib; block *= 2) {
    if (4 * block <= size_per_path) sizes.push_back(block);
  }
  return sizes;
}

SearchSpace Tuner::space() const {
  SearchSpace space{.block_sizes = block_sizes(options_.size / options_.directories.size()),
                    .queue_depths = {1, 2, 4, 8, 16, 32, 64, 128},
                    .threads = {1},
                    .engines = engines_,
                    .bytes_in_flight_max = in_flight_max_};
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  for (std::uint32_t threads = 2; threads <= std::min(2 * cores, 8u); threads *= 2) {
    space.threads.push_back(threads);
  }
  return space;
}

void Tuner::find_engines() {
  for (const aio::EngineKind kind : engine_kinds) {
    auto made = aio::make_engine(kind, {});
    if (made) {
      engines_.push_back(kind);
    } else {
      warn(std::string(engine_kind_name(kind)) + " is left out: " + made.error().to_string());
    }
  }
}

Result<void> Tuner::prepare() {
  show("writing " + format_size(options_.size), options_.budget_seconds);
  for (const std::string& directory : options_.directories) {
    const tiering::DiskFacts facts = tiering::disk_facts(directory);
    report_.paths.push_back({.path = directory,
                             .file_system = facts.file_system,
                             .device = facts.device,
                             .curve = {},
                             .profile = {},
                             .profile_file = {},
                             .replaced = {}});
    if (!facts.warning.empty()) warn(directory + ": " + facts.warning);
  }
  find_engines();
  if (engines_.empty()) return make_error(ErrorCode::Unsupported, "no engine works here");
  report_.automatic = engines_.front();
  const std::uint64_t available = available_memory();
  in_flight_max_ = std::min(in_flight_max, options_.size / 2);
  if (available != 0) in_flight_max_ = std::min(in_flight_max_, available / 8);
  in_flight_max_ = std::max(round_down(in_flight_max_, 2 * mib), 4 * mib);
  GroundOptions ground{.directories = options_.directories,
                       .size = options_.size,
                       .granule = granule,
                       .buffer_bytes = std::max(in_flight_max_, 32 * mib)};
  ARTESIAN_TRY(made, Ground::create(ground, stop_signal()));
  ground_ = std::move(made);
  if (!ground_->direct()) {
    const bool memory =
        std::any_of(report_.paths.begin(), report_.paths.end(), [](const auto& path) {
          return tiering::file_system_kind(path.file_system) == tiering::FileSystemKind::Memory;
        });
    const std::string more =
        "; a --size of more than " + format_size(available) + " shows the disk itself";
    warn(
        "O_DIRECT is not available: figures are partly those of the page cache, which training "
        "would use as well" +
        (memory ? "" : more));  // there is no disk: the file would fill the memory
  }
  const pinned::PoolStatistics pool = ground_->pool().statistics();
  if (!pool.locked) {
    report_.warnings.push_back(
        "buffers are not page-locked (ulimit -l): rates are lower than they "
        "could be");
  }
  if (!pool.huge_pages) {
    report_.warnings.push_back(
        "of " + format_size(pool.bytes_reserved) + " of buffers " +
        format_size(pool.bytes_on_huge_pages) +
        " are on 2 MiB pages: rates are lower than they could be; artesian doctor says why");
  }
  Transfers filling;
  filling.kind = &engines_.front();
  filling.engine = {.block_size = mib, .queue_depth = 16};
  report_.verified = true;
  return ground_->fill(filling, [&](const Pass& now) {
    const double after = options_.budget_seconds - now.seconds - now.seconds_left();
    const double left = std::max(after, options_.budget_seconds * search_share_min);
    const ProgressLine line = pass_line("writing", options_.size, now);
    show(line.stage, line.left_s + left, line.rate);
  });
}

/// The kernel frees the memory of a ring shortly after it was closed; if that memory is limited,
/// the next ring may have to wait. Settings that are still refused get a rate of zero.
Result<Measurement> Tuner::measure_patiently(const Transfers& transfers) {
  constexpr int tries = 50;
  for (int attempt = 0;; ++attempt) {
    auto got = ground_->measure(transfers);
    if (got) return got;
    const ErrorCode code = got.error().code;
    const bool refused = code == ErrorCode::Unsupported || code == ErrorCode::Exhausted;
    if (!refused || stop_signal() != 0) return got;
    if (attempt < tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    refusal_ = got.error();
    Measurement nothing;
    nothing.direct = nothing.right = true;
    return nothing;
  }
}

Result<Sample> Tuner::sample(const Settings& settings, Access access, double seconds,
                             std::uint64_t file_first, std::uint64_t file_count) {
  const std::uint64_t begin_ns = monotonic_ns();
  Transfers transfers{.access = access,
                      .engine = engine_options(settings),
                      .kind = &settings.engine,
                      .seconds = seconds,
                      .file_first = file_first,
                      .file_count = file_count};
  ARTESIAN_TRY(got, measure_patiently(transfers));
  report_.verified = report_.verified && got.right;
  all_direct_ = all_direct_ && got.direct;
  if (got.kind == aio::EngineKind::IoUring && got.bytes() != 0) polling_ = got.polling;
  bytes_written_ += static_cast<double>(got.bytes_written);
  if (access == Access::Write && got.bytes() != 0) {
    const bool first = write_gb_per_s_ == 0;
    write_gb_per_s_ = first ? got.gb_per_s() : 0.8 * write_gb_per_s_ + 0.2 * got.gb_per_s();
  }
  return Sample{.gb_per_s = got.gb_per_s(),
                .latency_us_p50 = static_cast<double>(got.statistics.latency_us_p50),
                .latency_us_p95 = static_cast<double>(got.statistics.latency_us_p95),
                .latency_us_p99 = static_cast<double>(got.statistics.latency_us_p99),
                .cost_seconds = seconds_since(begin_ns)};
}

void Tuner::remember(const Settings& settings, Access access, const Sample& got) {
  auto known = std::find_if(seen_.begin(), seen_.end(),
                            [&](const Point& point) { return point.settings == settings; });
  if (known == seen_.end()) {
    known = seen_.insert(seen_.end(), {.settings = settings, .samples = {}});
  }
  known->samples[static_cast<std::size_t>(access)].push_back(got);
}

std::optional<Point> Tuner::best_so_far() const {
  const auto best =
      std::max_element(seen_.begin(), seen_.end(), [](const Point& left, const Point& right) {
        return left.score() < right.score();  // nearly zero if one of the three is missing
      });
  if (best == seen_.end() || best->of(Access::Mixed).empty()) return std::nullopt;
  return *best;
}

/// Returns the options for the curve of one of the paths.
CurveOptions Tuner::curve_options() const {
  const bool alone = report_.paths.size() == 1;
  const Point& winner = report_.found.winner;
  const bool found = !winner.of(Access::Read).empty();
  const auto paths = static_cast<double>(report_.paths.size());
  const double seconds = seconds_per_measurement(options_.budget_seconds);
  const std::uint64_t drained = std::min(in_flight_max_, bytes_drained(write_gb_per_s_, seconds));
  return {.block_sizes = space().block_sizes,
          .chosen = found ? winner.settings : Settings{.queue_depth = 8},
          .bytes_in_flight_max = found ? report_.found.bytes_in_flight_max : drained,
          .passes = alone ? 5 : 3,
          .seconds = seconds,
          .seconds_max = options_.budget_seconds * curves_share / paths,
          .known = alone && found ? &winner : nullptr};
}

/// Returns the seconds that the curves of these paths take.
double Tuner::profile_seconds(std::size_t paths) const {
  return static_cast<double>(paths) * planned_seconds(curve_options(), write_gb_per_s_);
}

/// Uses the head-to-head figures of the chosen settings everywhere.
void Tuner::take_up(SearchResult found) {
  for (Point& point : found.points) {
    if (point.settings == found.winner.settings) point.samples = found.winner.samples;
  }
  report_.found = std::move(found);
}

Result<void> Tuner::search_all() {
  const double gone = seconds_since(start_ns_);
  const double curves = profile_seconds(report_.paths.size());
  const double left = options_.budget_seconds - gone - curves;
  SearchOptions options{
      .space = space(),
      .start = {.engine = engines_.front(), .polling = options_.polling},
      .budget_seconds = std::max(left, options_.budget_seconds * search_share_min),
      .exhaustive = options_.exhaustive};
  Settings defaults = options.start;
  const aio::EngineOptions usual;
  defaults.queue_depth = usual.queue_depth;
  const std::uint64_t blocks_max = options.space.block_sizes.back();
  options.start.block_size = std::min(options.start.block_size, blocks_max);
  while (options.start.bytes_in_flight() > in_flight_max_) options.start.queue_depth /= 2;
  if (usual.block_size <= blocks_max) options.defaults = defaults;
  options.progress = [&](const SearchProgress& now) {
    show(now.stage, now.seconds_left + profile_seconds(report_.paths.size()),
         tools::print("%.2f GB/s", now.gb_per_s),
         describe(*now.settings) + ": " + access_name(now.access));
  };
  auto measure = [this](const Settings& settings, Access access, double seconds) {
    auto got = sample(settings, access, seconds, 0, report_.paths.size());
    if (got) remember(settings, access, *got);
    return got;
  };
  ARTESIAN_TRY(found, search(options, measure));
  take_up(std::move(found));
  // The polling in effect, if it is the same for all.
  const auto polling_of = [&](const Settings& settings) {
    return settings.engine == aio::EngineKind::IoUring ? polling_ : aio::Polling::None;
  };
  Settings& winner = report_.found.winner.settings;
  winner.polling = polling_of(winner);
  for (Point& point : report_.found.points) point.settings.polling = polling_of(point.settings);
  if (refusal_) {
    if (report_.found.winner.gb_per_s(Access::Read) <= 0) return *refusal_;
    warn("some settings were left out: " + refusal_->to_string());
  }
  return {};
}

Result<void> Tuner::measure_path(std::uint64_t index) {
  PathReport& path = report_.paths[index];
  const Settings& settings = report_.found.winner.settings;
  tiering::MachineProfile& profile = path.profile;
  profile = {.path = path.path,
             .file_system = path.file_system,
             .measured_at = now_utc(),
             .direct = ground_->direct(),
             .duplex = false,
             .queue_depth = settings.queue_depth,
             .threads = settings.threads,
             .engine = engine_kind_name(settings.engine),
             .size = options_.size / report_.paths.size(),
             .budget_seconds = options_.budget_seconds,
             .best = engine_options(settings),
             .rates = {}};
  CurveOptions curve = curve_options();
  curve.progress = [&](const Settings& now, double seconds_left) {
    const double others = profile_seconds(report_.paths.size() - index - 1);
    show("profile of " + path.path, seconds_left + others, "", describe(now));
  };
  const auto measure = [&](const Settings& now, Access access, double seconds) {
    return sample(now, access, seconds, index, 1);
  };
  ARTESIAN_TRY(measured, measure_curve(curve, measure));
  path.curve = std::move(measured);
  double rates[3] = {};
  for (const CurvePoint& point : path.curve) {
    const double rate = point.gb_per_s();
    const double share = point.access == Access::Read ? 1 : point.access == Access::Write ? 0 : 0.5;
    profile.rates.push_back(
        {.block_size = point.block_size, .read_share = share, .gb_per_s = rate});
    if (point.block_size == settings.block_size) {
      rates[static_cast<std::size_t>(point.access)] = rate;
    }
  }
  profile.duplex = tiering::is_duplex(rates[0], rates[1], rates[2]);
  return {};
}

std::string describe(const tiering::MachineProfile& profile) {
  std::string text = "that of " + profile.measured_at;
  if (profile.best) text += ": " + tiering::describe(*profile.best) + ", " + profile.engine;
  return text;
}

/// A try with a small file must not determine the settings of all future runs.
void Tuner::save_profile(PathReport& path) {
  auto file = tiering::machine_profile_path(path.path);
  if (!file) {
    warn("the machine profile is not saved: " + file.error().to_string());
    return;
  }
  const auto same =
      std::find_if(report_.paths.begin(), report_.paths.end(),
                   [&](const PathReport& each) { return each.profile_file == *file; });
  if (same != report_.paths.end()) return;  // same disk, which was logged
  if (const auto saved = tiering::load_machine_profile(*file); saved.has_value()) {
    path.replaced = describe(*saved);
    if (!options_.replaces_profile && !path.profile.may_replace(*saved)) {
      warn("the machine profile " + *file +
           " is kept, as it is of a longer run or a larger file (" + path.replaced +
           "); --replace-profile puts this run's in its place");
      return;
    }
  }
  const auto saved = tiering::save_machine_profile(*file, path.profile);
  if (!saved) {
    warn("the machine profile is not saved: " + saved.error().to_string());
    return;
  }
  path.profile_file = *file;
}

Result<TuneReport> Tuner::run(const std::string& warning) {
  if (!warning.empty()) warn(warning);
  ARTESIAN_TRY_VOID(prepare());
  ARTESIAN_TRY_VOID(search_all());
  for (std::uint64_t index = 0; index < report_.paths.size(); ++index) {
    ARTESIAN_TRY_VOID(measure_path(index));
  }
  for (const std::string& text : drift_warnings(report_.found.drift, bytes_written_)) warn(text);
  if (report_.verified && options_.saves_profile) {
    for (PathReport& path : report_.paths) save_profile(path);
  }
  progress_.clear();
  report_.size = options_.size;
  report_.direct = ground_->direct() && all_direct_;
  report_.seconds = seconds_since(start_ns_);
  return std::move(report_);
}

/// Tells a user who stops the tuning what was found so far, and what is left behind.
void say_stopped(const std::optional<Point>& best) {
  std::string text = "stopped; nothing was changed";
  if (best) {
    text += "; best so far: " + describe_at_length(best->settings) +
            tools::print(": read %.2f, write %.2f, mixed %.2f GB/s", best->gb_per_s(Access::Read),
                         best->gb_per_s(Access::Write), best->gb_per_s(Access::Mixed));
  }
  log(LogLevel::Info, text);
}

}  // namespace

void add_tune_flags(CLI::App& command) {
  add_value(command, "--path", "DIR[,DIR]",
            "Directories for the temporary files, one per disk; must exist");
  add_value(command, "--size", "SIZE", "Size of the files together (default: 2GiB)");
  add_value(command, "--budget-seconds", "S", "How long it takes, about (default: 60)");
  add_switch(command, "--exhaustive",
             "Measure every setting instead of searching; takes several budgets");
  add_value(command, "--polling", "WORD",
            "Of io_uring, in all measurements: " + aio::polling_words() + " (default: off)");
  add_switch(command, "--no-profile", "Leave this disk's machine profile alone");
  add_switch(command, "--replace-profile",
             "Replace this disk's machine profile though it is of a longer run or a larger file");
  add_output_flags(command);
}

int tune_command(const CLI::App& command) {
  Faults faults;
  const TuneOptions options = read_tune_flags(command, faults);
  if (faults.any()) return faults.print();
  const std::string one_disk = check_striping(options.directories, faults);
  for (const std::string& directory : options.directories) {
    check_space(directory, options.size / options.directories.size(), faults);
  }
  check_memory(32 * mib, "buffers", faults);
  if (faults.any()) return faults.print();
  note_signals();
  std::optional<Tuner> tuner(std::in_place, options);
  auto report = tuner->run(one_disk);
  const std::optional<Point> best = tuner->best_so_far();
  tuner.reset();  // removes its progress bar
  if (!report) {
    if (report.error().code == ErrorCode::Cancelled) say_stopped(best);
    return report_failure(report.error());
  }
  if (!report->verified) {
    return tools::report_error(program,
                               "wrong data: " + command.get_option("--path")->results().front() +
                                   ": what was read is not what had been written; do not trust "
                                   "this disk or this program",
                               1);
  }
  return hand_over(options.outputs, *report);
}

}  // namespace artesian::bench
