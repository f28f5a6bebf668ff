#include "tools/huge_pages.h"

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
  if (!write_number(setting, before + pages - free)) {
    return make_error(ErrorCode::Unsupported, setting + " cannot be written, which needs root");
  }
  HugePageReservation reservation(setting, before);
  const std::uint64_t got = counters.free();
  if (got >= pages) return reservation;
  return make_error(ErrorCode::Unsupported, "only " + std::to_string(got) + " of " +
                                                std::to_string(pages) +
                                                " huge pages can be reserved");
}

HugePageReservation::HugePageReservation(HugePageReservation&& other) noexcept
    : setting_(std::exchange(other.setting_, "")), before_(other.before_) {}

HugePageReservation::~HugePageReservation() {
  if (setting_.empty() || write_number(setting_, before_)) return;
  log(LogLevel::Warning, setting_ + " could not be set back to " + std::to_string(before_));
}

}  // namespace artesian::bench
