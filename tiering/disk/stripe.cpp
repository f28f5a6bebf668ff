#include "tiering/disk/stripe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace artesian::tiering {
namespace {

constexpr double equal_from = 0.9;   // a probe of a fraction of a second is not more exact
constexpr double weight_steps = 64;  // weights are multiples of 1 / 64

/// Combined rate of reading and writing one byte each, on a disk that does one at a time.
double both_ways(const DiskSpeed& speed) {
  ARTESIAN_CHECK(speed.read_bytes_per_s > 0 && speed.write_bytes_per_s > 0, speed.read_bytes_per_s);
  return 1.0 / (1.0 / speed.read_bytes_per_s + 1.0 / speed.write_bytes_per_s);
}

bool known(const DiskSpeed& speed) {
  return speed.read_bytes_per_s > 0 && speed.write_bytes_per_s > 0;
}

bool all_known(std::span<const PathDisk> paths) {
  return std::all_of(paths.begin(), paths.end(),
                     [](const PathDisk& path) { return known(path.speed); });
}

struct SharedDisk {
  double read = 0;   // sums over its paths
  double write = 0;  //
  double both = 0;
  double share = 0;
  double paths = 0;
};

/// Checks that a shard's segments are contiguous, begin at sectors, and start at the shard's
/// beginning.
void check_segments(const std::vector<Segment>& segments, std::uint64_t bytes) {
  ARTESIAN_CHECK(!segments.empty() && segments.front().begin == 0, bytes);
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const Segment& segment = segments[index];
    const std::uint64_t end = index + 1 < segments.size() ? segments[index + 1].begin : bytes;
    ARTESIAN_CHECK(segment.begin < end && end <= bytes, segment.begin, end, bytes);
    ARTESIAN_CHECK(segment.begin % sector_size == 0 && segment.offset % sector_size == 0, index);
  }
}

/// Averages measurements of paths on one disk.
std::map<std::uint64_t, SharedDisk> disks_of(std::span<const PathDisk> paths) {
  std::map<std::uint64_t, SharedDisk> disks;
  for (const PathDisk& path : paths) {
    SharedDisk& disk = disks[path.device];
    disk.read += path.speed.read_bytes_per_s;
    disk.write += path.speed.write_bytes_per_s;
    disk.both += both_ways(path.speed);
    disk.paths += 1;
  }
  return disks;
}

}  // namespace

Striping::Striping(StripingOptions options)
    : options_(std::move(options)), payloads_(options_.paths, 0) {
  ARTESIAN_CHECK(options_.stripe_bytes > 0);
  for (const Volume& volume : options_.volumes) {
    ARTESIAN_CHECK(!volume.paths.empty() && volume.weights.size() == volume.paths.size());
    for (const std::uint32_t path : volume.paths) {
      ARTESIAN_CHECK(path < payloads_.size(), path);
      ARTESIAN_CHECK(std::count(volume.paths.begin(), volume.paths.end(), path) == 1, path);
    }
    for (const double weight : volume.weights) ARTESIAN_CHECK(weight > 0);
    given_.emplace_back(volume.paths.size(), 0);
  }
}

std::vector<Segment> Striping::place(std::uint32_t volume, std::uint64_t bytes,
                                     std::uint64_t block_bytes) {
  ARTESIAN_CHECK(volume < options_.volumes.size(), volume, options_.volumes.size());
  ARTESIAN_CHECK(bytes > 0 && bytes % sector_size == 0, bytes);
  ARTESIAN_CHECK(block_bytes > 0 && block_bytes % sector_size == 0, block_bytes);
  const auto& [paths, weights] = options_.volumes[volume];
  std::vector<std::uint64_t>& given = given_[volume];
  const std::uint64_t before = std::accumulate(given.begin(), given.end(), std::uint64_t{0});
  const std::uint64_t stripe =
      std::max(block_bytes, round_down(options_.stripe_bytes, block_bytes));
  ARTESIAN_CHECK(stripe % block_bytes == 0, stripe, block_bytes);  // stripes never cut a block
  std::vector<Segment> segments;
  for (std::uint64_t begin = 0; begin < bytes; begin += stripe) {
    const std::uint64_t length = std::min(stripe, bytes - begin);
    std::size_t best = 0;
    double best_load = 0;
    for (std::size_t index = 0; index < paths.size(); ++index) {
      const double load = static_cast<double>(given[index] + length) / weights[index];
      if (index != 0 && load >= best_load) continue;
      best = index;
      best_load = load;
    }
    const std::uint32_t path = paths[best];
    const std::uint64_t offset = payloads_[path];
    const bool joins = !segments.empty() && segments.back().path == path &&
                       segments.back().offset + (begin - segments.back().begin) == offset;
    if (!joins) segments.push_back({.begin = begin, .path = path, .offset = offset});
    payloads_[path] += length;
    given[best] += length;
    ARTESIAN_CHECK(given[best] <= payloads_[path], given[best], payloads_[path]);
  }
  const std::uint64_t after = std::accumulate(given.begin(), given.end(), std::uint64_t{0});
  ARTESIAN_CHECK(after - before == bytes, before, after, bytes);  // each byte has one place
  check_segments(segments, bytes);
  return segments;
}

std::vector<double> stripe_weights(std::span<const PathDisk> paths) {
  std::vector<double> weights(paths.size(), 1.0);
  if (!all_known(paths) || paths.empty()) return weights;
  const auto disks = disks_of(paths);
  for (std::size_t index = 0; index < paths.size(); ++index) {
    const SharedDisk& disk = disks.at(paths[index].device);
    // The disk's mean rate, divided among its paths.
    weights[index] = disk.both / disk.paths / disk.paths;
  }
  const double most = *std::max_element(weights.begin(), weights.end());
  const double least = *std::min_element(weights.begin(), weights.end());
  ARTESIAN_CHECK(least > 0.0, least, most);
  if (least >= equal_from * most) return std::vector<double>(paths.size(), 1.0);
  for (double& weight : weights) {
    weight = std::max(1.0, std::round(weight / most * weight_steps)) / weight_steps;
    ARTESIAN_CHECK(weight > 0.0 && weight <= 1.0, weight);
  }
  return weights;
}

DiskSpeed striped_speed(std::span<const PathDisk> paths, std::span<const double> weights) {
  ARTESIAN_CHECK(paths.size() == weights.size(), paths.size(), weights.size());
  if (!all_known(paths) || paths.empty()) return {};
  auto disks = disks_of(paths);
  double whole = 0;
  for (const double weight : weights) whole += weight;
  ARTESIAN_CHECK(whole > 0.0, whole);
  for (std::size_t index = 0; index < paths.size(); ++index) {
    ARTESIAN_CHECK(weights[index] > 0.0, index, weights[index]);
    disks.at(paths[index].device).share += weights[index] / whole;
  }
  DiskSpeed slowest{.read_bytes_per_s = 1e300, .write_bytes_per_s = 1e300};
  for (const auto& [device, disk] : disks) {
    ARTESIAN_CHECK(disk.share > 0.0, device, disk.share);
    const double per_share = 1.0 / (disk.paths * disk.share);
    slowest.read_bytes_per_s = std::min(slowest.read_bytes_per_s, disk.read * per_share);
    slowest.write_bytes_per_s = std::min(slowest.write_bytes_per_s, disk.write * per_share);
  }
  return slowest;
}

}  // namespace artesian::tiering
