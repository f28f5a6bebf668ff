// Striping: which file holds which bytes of a shard, where its home is divided over several paths.
//
// A volume is a list of paths. A shard is cut into stripes of whole checksum blocks, and each
// stripe goes to the path of its shard's volume that would have the least to do for its speed: with
// equal weights one after the other, else in proportion, within a stripe of it at any place. Space
// in each file is given out in this order, so whoever goes through shards in order goes through
// each file in order. Pure: same shards and weights, same places. Nothing but places depends on the
// weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace artesian::tiering {

/// Every range of a swap file is a multiple of it.
inline constexpr std::uint64_t sector_size = 4096;

struct DiskSpeed {
  double read_bytes_per_s = 0;  // 0: not known
  double write_bytes_per_s = 0;
};

/// Bytes of a shard from `begin` to the next segment's, or the shard's end, which lie together.
struct Segment {
  std::uint64_t begin = 0;
  std::uint32_t path = 0;
  std::uint64_t offset = 0;  // offset in the path's payload
};

struct Volume {
  std::vector<std::uint32_t> paths;  // each once
  std::vector<double> weights{};     // weight of each path, > 0
};

struct StripingOptions {
  std::vector<Volume> volumes;
  std::uint32_t paths = 0;               // number of paths of all volumes
  std::uint64_t stripe_bytes = 1 << 20;  // cut to whole blocks, at least one
};

class Striping {
 public:
  explicit Striping(StripingOptions options);
  /// Places the next shard: its segments in order, neighbours in one file joined. Both sizes are
  /// multiples of 4096.
  std::vector<Segment> place(std::uint32_t volume, std::uint64_t bytes, std::uint64_t block_bytes);
  /// Returns the bytes allocated on each path so far.
  const std::vector<std::uint64_t>& payloads() const noexcept { return payloads_; }

 private:
  const StripingOptions options_;
  std::vector<std::uint64_t> payloads_;
  std::vector<std::vector<std::uint64_t>> given_;  // bytes given out, by volume and place in it
};

/// One path's disk. Paths with one `device` share it.
struct PathDisk {
  DiskSpeed speed;
  std::uint64_t device = 0;
};

/// A directory's part of a volume.
struct PathShare {
  std::uint32_t path = 0;
  double share = 0;  // share of the volume's bytes; all sum up to 1
  DiskSpeed speed;   // 0 until known
};

struct PathBytes {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

/// Returns what each path is to carry of what all do, for moving as much in as out: 1 for the most.
/// All 1 where a speed is not known, or where the slowest disk is within a tenth of the fastest.
std::vector<double> stripe_weights(std::span<const PathDisk> paths);

/// Returns what the paths do together while each carries its share, so that the last is done when
/// the others are. {0, 0} where a speed is not known.
DiskSpeed striped_speed(std::span<const PathDisk> paths, std::span<const double> weights);

}  // namespace artesian::tiering
