// Reserved 2 MiB pages (hugetlbfs), for programs that cannot do with transparent ones.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace artesian::bench {

/// The two things that the kernel shows.
struct HugePageCounters {
  std::string setting;                  // file with the number of reserved pages
  std::function<std::uint64_t()> free;  // number of free pages
};
HugePageCounters system_huge_pages();

/// Reserves huge pages while it lives, and then restores the machine's number. One at a time.
class HugePageReservation {
 public:
  /// Sees to it that `pages` are free. Errors: Unsupported (with what refused), after setting
  /// everything back.
  static Result<HugePageReservation> make(std::uint64_t pages, const HugePageCounters& counters);

  HugePageReservation(HugePageReservation&& other) noexcept;
  HugePageReservation& operator=(HugePageReservation&&) = delete;
  HugePageReservation(const HugePageReservation&) = delete;
  HugePageReservation& operator=(const HugePageReservation&) = delete;
  ~HugePageReservation();

 private:
  HugePageReservation(std::string setting, std::uint64_t before);

  std::string setting_;  // empty: nothing to set back
  std::uint64_t before_ = 0;
};

/// For a handler of the signal that ends this process: does at once what the destructor of the
/// reservation that is alive would have done.
void give_back_huge_pages() noexcept;

}  // namespace artesian::bench
