#include "zero3/plan/prediction.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace artesian::zero3 {

using tiering::DiskSpeed;
using tiering::PathBytes;
using tiering::PathDisk;
using tiering::PathShare;

namespace {

double seconds_for(std::uint64_t bytes, double bytes_per_s) {
  return bytes_per_s > 0.0 ? static_cast<double>(bytes) / bytes_per_s : 0.0;
}

/// A single value is no evidence.
double in_common(std::span<const double> seconds) {
  return seconds.size() < 2 ? 0.0 : *std::min_element(seconds.begin(), seconds.end());
}

std::uint64_t part_of(std::uint64_t bytes, double share) {
  ARTESIAN_CHECK(share >= 0.0 && share <= 1.0, share);
  return static_cast<std::uint64_t>(std::llround(static_cast<double>(bytes) * share));
}

}  // namespace

double disk_seconds(std::span<const PathDisk> disks, std::span<const PathBytes> bytes) {
  ARTESIAN_CHECK(disks.size() == bytes.size(), disks.size(), bytes.size());
  std::map<std::uint64_t, double> busy;  // seconds by device
  double last = 0.0;
  for (std::size_t path = 0; path < disks.size(); ++path) {
    const DiskSpeed& speed = disks[path].speed;
    double& seconds = busy[disks[path].device];
    seconds += seconds_for(bytes[path].read, speed.read_bytes_per_s);
    seconds += seconds_for(bytes[path].written, speed.write_bytes_per_s);
    last = std::max(last, seconds);
  }
  return last;
}

std::vector<PathBytes> divide_over_paths(const MovedByKind& moved, std::span<const PathShare> param,
                                         std::span<const PathShare> optimizer, std::size_t paths) {
  std::vector<PathBytes> bytes(paths);
  const auto add = [&](const Moved& part, std::span<const PathShare> shares) {
    for (const auto& [path, share, speed] : shares) {
      ARTESIAN_CHECK(path < bytes.size(), path, bytes.size());
      bytes[path].read += part_of(part.nvme_read, share);
      bytes[path].written += part_of(part.nvme_write, share);
    }
  };
  for (const Moved& part : {moved.param, moved.grad, moved.input}) add(part, param);
  add(moved.optimizer, optimizer);
  return bytes;
}

void Prediction::begin_step(bool carries_update) {
  carries_update_ = carries_update;
  so_far_s_ = computed_s_ = disk_s_ = 0.0;
}

/// Scales seconds at the probed speed by the share of it that recent steps of this kind reached.
double Prediction::expected_seconds(bool updates, double probed_s) const {
  const std::optional<double> own = (updates ? with_update_ : without_).rate.share();
  const std::optional<double> other = (updates ? without_ : with_update_).rate.share();
  const double share = own.value_or(other.value_or(1.0));
  ARTESIAN_CHECK(share > 0.0, share);
  return probed_s / share;
}

/// The same phase of the next step is expected to take the longer of its computing time and its
/// disk time, plus the excess that such phases usually have.
void Prediction::end_phase(const PhaseUse& use) {
  const double computed = use.seconds - use.waited_s;
  const double probed = disk_seconds(disks_, use.bytes);
  Kind& kind = use.updates ? with_update_ : without_;
  kind.rate.see(probed, use.seconds, use.waited_s);
  const double explained = std::max(computed, expected_seconds(use.updates, probed));
  kind.beyond.add(std::max(0.0, use.seconds - explained));
  so_far_s_ += explained + in_common(kind.beyond.all());
  computed_s_ += computed;
  disk_s_ += probed;
}

void Prediction::end_step(std::span<const PathBytes> update) {
  if (carries_update_) {
    next_s_ = so_far_s_;
  } else if (std::isnan(next_s_)) {  // the first step: the next one will also carry the update
    next_s_ = so_far_s_ + expected_seconds(/*updates=*/true, disk_seconds(disks_, update));
  }
}

}  // namespace artesian::zero3
