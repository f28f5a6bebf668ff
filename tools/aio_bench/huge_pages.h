// Reserved 2 MiB pages (hugetlbfs), for programs that need them instead of transparent ones.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace artesian::bench {

/// The kernel's two interfaces to reserved pages.
struct HugePageCounters {
  std::string setting;                  // path of the file with the number of reserved pages
  std::function<std::uint64_t()> free;  // returns the number of free pages
};
HugePageCounters system_huge_pages();

/// Reserves huge pages during its life, and then restores the machine's number. One at a time.
class HugePageReservation {
 public:
  /// Makes sure that `pages` are free. Errors: Unsupported (with the reason), after restoring
  /// everything.
  static Result<HugePageReservation> make(std::uint64_t pages, const HugePageCounters& counters);

  HugePageReservation(HugePageReservation&& other) noexcept;
  HugePageReservation& operator=(HugePageReservation&&) = delete;
  HugePageReservation(const HugePageReservation&) = delete;
  HugePageReservation& operator=(const HugePageReservation&) = delete;
  ~HugePageReservation();

 private:
  HugePageReservation(std::string setting, std::uint64_t before);

  std::string setting_;  // empty: nothing to restore
  std::uint64_t before_ = 0;
};

/// For the handler of a signal that ends this process: does at once what the destructor of the
/// existing reservation would do.
void give_back_huge_pages() noexcept;

}  // namespace artesian::bench
