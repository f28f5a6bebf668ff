#include "zero3/plan/disk_rate.h"

#include <algorithm>

#include "base/check.h"

namespace artesian::zero3 {
namespace {

constexpr double waited_min = 0.75;  // share of a phase
constexpr double share_min = 0.25;   // share of the probed speed

}  // namespace

void DiskRate::see(double probed_s, double taken_s, double waited_s) {
  ARTESIAN_CHECK(probed_s >= 0.0, probed_s);
  const bool waits = taken_s > 0.0 && waited_s >= waited_min * taken_s;
  if (!waits || probed_s < share_min * taken_s) return;
  seen_.add(probed_s / taken_s);
}

std::optional<double> DiskRate::share() const {
  const auto seen = seen_.all();
  if (seen.empty()) return {};
  const double best = *std::max_element(seen.begin(), seen.end());
  ARTESIAN_CHECK(best >= share_min, best);  // lower shares were ignored
  return best;
}

}  // namespace artesian::zero3
