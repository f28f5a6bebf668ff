#include "base/timeline.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

namespace artesian {
namespace {

constexpr std::array<const char*, 6> lane_names{"compute", "optimizer", "to device",
                                                "to host", "NVMe read", "NVMe write"};

/// Lanes of the disk hold overlapping spans: each goes to the first row that is free by then.
std::size_t row_of(std::vector<std::uint64_t>& row_ends, std::uint64_t begin, std::uint64_t end) {
  std::size_t row = 0;
  while (row < row_ends.size() && row_ends[row] > begin) ++row;
  if (row == row_ends.size()) row_ends.push_back(0);
  row_ends[row] = end;
  return row;
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

Result<void> Timeline::write(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  std::vector<Span> spans = spans_;
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  const std::uint64_t origin = spans.empty() ? 0 : spans.front().begin_ns;
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return Error{
        .code = ErrorCode::Io, .system_error = errno, .message = "cannot write", .file = path};
  }
  std::fprintf(file,
               "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped\":%zu},\"traceEvents\":[\n",
               dropped_);
  std::array<std::vector<std::uint64_t>, lane_names.size()> rows;
  for (const Span& span : spans) {
    const auto lane = static_cast<std::size_t>(span.lane);
    const std::size_t row = row_of(rows[lane], span.begin_ns, span.end_ns);
    std::fprintf(
        file, "{\"ph\":\"X\",\"pid\":%zu,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\"",
        lane, row, static_cast<double>(span.begin_ns - origin) * 1e-3,
        static_cast<double>(span.end_ns - span.begin_ns) * 1e-3, escaped(span.name).c_str());
    if (span.bytes != 0) {
      std::fprintf(file, ",\"args\":{\"bytes\":%llu}", static_cast<unsigned long long>(span.bytes));
    }
    std::fprintf(file, "},\n");
  }
  for (std::size_t lane = 0; lane < lane_names.size(); ++lane) {
    std::fprintf(
        file, "{\"ph\":\"M\",\"pid\":%zu,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}%s\n",
        lane, lane_names[lane], lane + 1 < lane_names.size() ? "," : "]}");
  }
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) {
    return Error{
        .code = ErrorCode::Io, .system_error = errno, .message = "cannot write", .file = path};
  }
  return {};
}

}  // namespace artesian
