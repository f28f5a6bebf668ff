// DiskRate: which share of their probed speed the disks reach in this run. A probe takes one second
// on a part of an idle disk; hours of access to a large file may be slower, and so is a phase with
// few transfers in flight. The rules:
//
//   a phase counts    if at least three quarters of it was spent waiting for transfers: then the
//                     disks worked nearly all the time
//   it is ignored     if its rate is less than a quarter of the probed one: no disk is that slow,
//                     so something else was waited for
//   the result is     the best of the last eight counted phases: the disks may have idled in each,
//                     so they are at least that fast; older phases say nothing about today
//
// Pure: no clock, no disk.
#pragma once

#include <optional>

#include "zero3/plan/last_values.h"

namespace artesian::zero3 {

class DiskRate {
 public:
  /// Records a phase: the seconds that its bytes take at the probed rate, its actual seconds, and
  /// those spent waiting.
  void see(double probed_s, double taken_s, double waited_s);
  /// The share of the probed speed; absent until a phase has counted.
  std::optional<double> share() const;

 private:
  LastValues<8> seen_;
};

}  // namespace artesian::zero3
