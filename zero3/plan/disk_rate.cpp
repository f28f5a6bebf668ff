#include "zero3/plan/disk_rate.h"

#include <algorithm>

namespace artesian::zero3 {
namespace {

constexpr double waited_min = 0.75;  // of a phase
constexpr double share_min = 0.25;   // of the probed speed

}  // namespace

void DiskRate::see(double probed_s, double taken_s, double waited_s) {
  const bool waits = taken_s > 0.0 && waited_s >= waited_min * taken_s;
  if (!waits || probed_s < share_min * taken_s) return;
  seen_.add(probed_s / taken_s);
}

std::optional<double> DiskRate::share() const {
  const auto seen = seen_.all();
  if (seen.empty()) return {};
  return *std::max_element(seen.begin(), seen.end());
}

}  // namespace artesian::zero3
