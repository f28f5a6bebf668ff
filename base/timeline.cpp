#include "base/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

namespace artesian {
namespace {

constexpr std::array<const char*, 7> lane_names{"compute",   "optimizer",  "to device", "to host",
                                                "NVMe read", "NVMe write", "wait"};
constexpr std::size_t step_lane = lane_names.size();
constexpr std::uint64_t wait_ns_min = 20'000;
// The most rows of a lane: the disk's queue is hardly deeper.
constexpr std::size_t rows_max = 32;

/// The disk's lanes contain overlapping spans. Each span goes to the first row that is free at its
/// beginning; if none is, into the last allowed row, from where that is free.
struct Row {
  std::size_t number;
  std::uint64_t begin;
};

Row row_of(std::vector<std::uint64_t>& row_ends, std::uint64_t begin, std::uint64_t end) {
  std::size_t row = 0;
  while (row < row_ends.size() && row_ends[row] > begin) ++row;
  if (row == rows_max) {
    --row;
    begin = std::min(row_ends[row], end);
  }
  if (row == row_ends.size()) row_ends.push_back(0);
  row_ends[row] = std::max(row_ends[row], end);
  return {row, begin};
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result;
}

}  // namespace

void Timeline::add(Lane lane, std::string name, std::uint64_t begin_ns, std::uint64_t end_ns,
                   std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() >= spans_max_) {
    ++dropped_;
    return;
  }
  spans_.push_back({lane, std::move(name), begin_ns, std::max(begin_ns, end_ns), bytes});
}

void Timeline::add_wait(const char* what, std::uint64_t begin_ns, std::uint64_t end_ns) {
  if (end_ns < begin_ns + wait_ns_min) return;
  add(Lane::Wait, std::string("wait: ") + what, begin_ns, end_ns);
}

void Timeline::add_step(const Step& step) {
  const std::lock_guard lock(mutex_);
  if (steps_.size() < spans_max_) steps_.push_back(step);
}

namespace {

/// Writes the events of a trace, one per line.
class Events {
 public:
  Events(std::FILE* file, std::uint64_t origin) : file_(file), origin_(origin) {}

  void span(std::size_t lane, std::size_t row, std::uint64_t begin_ns, std::uint64_t end_ns,
            const std::string& name, const std::string& arguments) {
    std::fprintf(file_,
                 "%s{\"ph\":\"X\",\"pid\":%zu,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\"",
                 separator(), lane, row, static_cast<double>(begin_ns - origin_) * 1e-3,
                 static_cast<double>(end_ns - begin_ns) * 1e-3, name.c_str());
    if (!arguments.empty()) std::fprintf(file_, ",\"args\":{%s}", arguments.c_str());
    std::fprintf(file_, "}");
  }
  /// `rows`: number used, 0 if none.
  void name_lane(std::size_t lane, const char* name, std::size_t rows, int sort_index) {
    std::fprintf(
        file_,
        "%s{\"ph\":\"M\",\"pid\":%zu,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}},\n"
        "{\"ph\":\"M\",\"pid\":%zu,\"name\":\"process_sort_index\",\"args\":"
        "{\"sort_index\":%d}}",
        separator(), lane, name, lane, sort_index);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::string number = rows == 1 ? "" : fmt::format(" {}", row + 1);
      std::fprintf(file_,
                   ",\n{\"ph\":\"M\",\"pid\":%zu,\"tid\":%zu,\"name\":\"thread_name\",\"args\":"
                   "{\"name\":\"%s%s\"}}",
                   lane, row, name, number.c_str());
    }
  }

 private:
  const char* separator() { return std::exchange(first_, false) ? "" : ",\n"; }

  std::FILE* file_;
  std::uint64_t origin_;
  bool first_ = true;
};

std::string arguments_of(const Timeline::Step& step) {
  std::string text =
      fmt::format("\"step\":{},\"micro_batches\":{}", step.number, step.micro_batches);
  const auto add = [&](const char* name, double value) {
    std::array<char, 64> number{};
    if (!std::isfinite(value)) return;
    std::snprintf(number.data(), number.size(), ",\"%s\":%.6g", name, value);
    text += number.data();
  };
  add("loss", step.loss);
  add("predicted_s", step.predicted_s);
  add("measured_s", static_cast<double>(step.end_ns - step.begin_ns) * 1e-9);
  return text;
}

}  // namespace

Result<void> Timeline::write(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  std::vector<Span> spans = spans_;
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  std::uint64_t origin = spans.empty() ? 0 : spans.front().begin_ns;
  if (!steps_.empty()) {
    origin = spans.empty() ? steps_[0].begin_ns : std::min(origin, steps_[0].begin_ns);
  }
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return Error{
        .code = ErrorCode::Io, .system_error = errno, .message = "cannot write", .file = path};
  }
  std::fprintf(file,
               "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":%zu},\"traceEvents\":[\n",
               dropped_);
  Events events(file, origin);
  events.name_lane(step_lane, "step", steps_.empty() ? 0 : 1, 0);
  for (const Step& step : steps_) {
    events.span(step_lane, 0, step.begin_ns, step.end_ns, fmt::format("step {}", step.number),
                arguments_of(step));
  }
  std::array<std::vector<std::uint64_t>, lane_names.size()> rows;
  for (const Span& span : spans) {
    const auto lane = static_cast<std::size_t>(span.lane);
    const Row row = row_of(rows[lane], span.begin_ns, span.end_ns);
    events.span(lane, row.number, row.begin, span.end_ns, escaped(span.name),
                span.bytes == 0 ? "" : fmt::format("\"bytes\":{}", span.bytes));
  }
  for (std::size_t lane = 0; lane < lane_names.size(); ++lane) {
    events.name_lane(lane, lane_names[lane], rows[lane].size(), static_cast<int>(lane) + 1);
  }
  std::fprintf(file, "]}\n");
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) {
    return Error{
        .code = ErrorCode::Io, .system_error = errno, .message = "cannot write", .file = path};
  }
  return {};
}

}  // namespace artesian
