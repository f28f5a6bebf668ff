#include "tools/aio_bench/huge_pages.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <utility>

#include "base/log.h"

namespace artesian::bench {
namespace {

bool read_number(const std::string& path, std::uint64_t& number) {
  return static_cast<bool>(std::ifstream(path) >> number);
}

bool write_number(const std::string& path, std::uint64_t number) {
  std::ofstream file(path);
  file << number << "\n";
  file.close();
  return !file.fail();
}

std::uint64_t free_pages() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key; file.ignore(256, '\n')) {
    std::uint64_t count = 0;
    if (key == "HugePages_Free:" && file >> count) return count;
  }
  return 0;
}

/// Data used by a signal handler, which must not allocate memory.
std::array<char, 4096> taken_setting;
std::array<char, 24> taken_before;
std::atomic<bool> pages_taken = false;

}  // namespace

HugePageCounters system_huge_pages() {
  return {.setting = "/proc/sys/vm/nr_hugepages", .free = free_pages};
}

Result<HugePageReservation> HugePageReservation::make(std::uint64_t pages,
                                                      const HugePageCounters& counters) {
  const std::string& setting = counters.setting;
  std::uint64_t before = 0;
  if (!read_number(setting, before)) {
    return make_error(ErrorCode::Unsupported, setting + " cannot be read");
  }
  const std::uint64_t free = counters.free();
  if (free >= pages) return HugePageReservation("", before);
  HugePageReservation reservation(setting, before);
  if (!write_number(setting, before + pages - free)) {
    reservation.setting_.clear();
    pages_taken = false;
    return make_error(ErrorCode::Unsupported, setting + " cannot be written, which needs root");
  }
  const std::uint64_t got = counters.free();
  if (got >= pages) return reservation;
  return make_error(ErrorCode::Unsupported,
                    fmt::format("only {} of {} huge pages can be reserved", got, pages));
}

HugePageReservation::HugePageReservation(std::string setting, std::uint64_t before)
    : setting_(std::move(setting)), before_(before) {
  if (setting_.empty() || setting_.size() >= taken_setting.size()) return;
  std::snprintf(taken_setting.data(), taken_setting.size(), "%s", setting_.c_str());
  std::snprintf(taken_before.data(), taken_before.size(), "%llu\n",
                static_cast<unsigned long long>(before_));
  pages_taken = true;
}

void give_back_huge_pages() noexcept {
  if (!pages_taken.exchange(false)) return;
  const int file = ::open(taken_setting.data(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (file < 0) return;
  std::size_t length = 0;
  while (taken_before[length] != '\0') ++length;
  (void)!::write(file, taken_before.data(), length);
  ::close(file);
}

HugePageReservation::HugePageReservation(HugePageReservation&& other) noexcept
    : setting_(std::exchange(other.setting_, "")), before_(other.before_) {}

HugePageReservation::~HugePageReservation() {
  if (setting_.empty()) return;
  pages_taken = false;
  if (write_number(setting_, before_)) return;
  log(LogLevel::Warning, fmt::format("{} could not be set back to {}", setting_, before_));
}

}  // namespace artesian::bench
