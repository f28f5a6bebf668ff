// DiskRate: how much of what was probed at the start the disks give in this run. A probe is a
// second on a part of an idle disk; hours over all of a large file may be slower, and so is a phase
// whose schedule keeps few transfers in flight. The rules:
//
//   a phase tells    if transfers were waited for in at least three quarters of it: then the disks
//                    worked nearly all the time, and its seconds are theirs
//   and is passed    if it gives less than a quarter of what was probed: so slow is no disk, and
//   over             something else was waited for
//   what counts is   the best of the last eight that told: in each of them the disks may have
//                    idled, so they are at least as fast; and an old one says nothing of today
//
// Pure: no clock, no disk.
#pragma once

#include <optional>

#include "zero3/plan/last_values.h"

namespace artesian::zero3 {

class DiskRate {
 public:
  /// Records a phase: its bytes' seconds at the probed rate, its seconds, and those spent waiting.
  void see(double probed_s, double taken_s, double waited_s);
  /// The share of the probed speed; absent until a phase has told.
  std::optional<double> share() const;

 private:
  LastValues<8> seen_;
};

}  // namespace artesian::zero3
