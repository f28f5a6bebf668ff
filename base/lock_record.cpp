#include "base/lock_record.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

#include "base/check.h"

namespace artesian {

std::string holder_record(std::uint64_t run_id) {
  std::array<char, 65> host{"unknown"};
  (void)gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> started{};
  (void)std::strftime(started.data(), started.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  std::array<char, 17> run{};
  std::snprintf(run.data(), run.size(), "%016llx", static_cast<unsigned long long>(run_id));
  return fmt::format("pid {} on host {}, started {}, run {}", getpid(), host.data(), started.data(),
                     run.data());
}

Result<void> write_lock_record(File& file, std::string_view record) noexcept {
  ARTESIAN_CHECK(record.size() < lock_record_size, record.size());
  std::array<char, lock_record_size> text;
  text.fill(' ');
  std::copy(record.begin(), record.end(), text.begin());
  text.back() = '\n';
  return file.write_at(text.data(), text.size(), 0);
}

std::string read_lock_holder(File& file) noexcept {
  std::array<char, lock_record_size> record{};
  if (!file.read_at(record.data(), record.size(), 0).has_value()) return "a run that just started";
  std::string text;
  for (const char each : record) text += each >= ' ' && each <= '~' ? each : ' ';
  text.erase(text.find_last_not_of(' ') + 1);
  return text.starts_with("pid ") ? text : "an unknown process";
}

}  // namespace artesian
