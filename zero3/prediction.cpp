#include "zero3/prediction.h"

#include <algorithm>
#include <cmath>

namespace artesian::zero3 {

double disk_seconds(const tiering::DiskSpeed& disk, const tiering::PathBytes& bytes) {
  double seconds = 0.0;
  if (bytes.read != 0) seconds += static_cast<double>(bytes.read) / disk.read_bytes_per_s;
  if (bytes.written != 0) seconds += static_cast<double>(bytes.written) / disk.write_bytes_per_s;
  return seconds;
}

void Prediction::begin_step(bool carries_update) {
  carries_update_ = carries_update;
  so_far_s_ = computed_s_ = disk_s_ = 0.0;
}

/// The same phase of the next step is expected to take the longer of what was computed in it and of
/// what its bytes take on the disk.
void Prediction::end_phase(const PhaseUse& use) {
  const double computed = use.seconds - use.waited_s;
  const double on_disk = disk_seconds(disk_, use.bytes);
  so_far_s_ += std::max(computed, on_disk);
  computed_s_ += computed;
  disk_s_ += on_disk;
}

void Prediction::end_step(const tiering::PathBytes& update) {
  if (carries_update_) {
    next_s_ = so_far_s_;
  } else if (std::isnan(next_s_)) {  // the first one: the next has the update, too
    next_s_ = so_far_s_ + disk_seconds(disk_, update);
  }
}

}  // namespace artesian::zero3
