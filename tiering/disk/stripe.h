// Striping: which file holds which bytes of a shard whose home is divided over several paths.
//
// A volume is a list of paths. A shard is cut into stripes of whole checksum blocks. Each stripe
// goes to the path of its volume with the least work for its speed: with equal weights the paths
// take turns; otherwise in proportion, where a stripe may be cut at any block. Space in each file
// is given out in this order, so that a pass over the shards in order reads each file in order.
// Pure: the same shards and weights give the same places. Only the places depend on the weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace artesian::tiering {

/// All ranges of a swap file are multiples of this.
inline constexpr std::uint64_t sector_size = 4096;

struct DiskSpeed {
  double read_bytes_per_s = 0;  // 0 if unknown
  double write_bytes_per_s = 0;
};

/// The bytes of a shard from `begin` to the next segment's `begin`, or to the shard's end. They are
/// contiguous in one file.
struct Segment {
  std::uint64_t begin = 0;
  std::uint32_t path = 0;
  std::uint64_t offset = 0;  // offset in the path's payload
};

struct Volume {
  std::vector<std::uint32_t> paths;  // no path twice
  std::vector<double> weights{};     // weight of each path, > 0
};

struct StripingOptions {
  std::vector<Volume> volumes;
  std::uint32_t paths = 0;               // number of paths in all volumes together
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
  std::vector<std::vector<std::uint64_t>>
      given_;  // bytes given out, by volume and by the path's index in it
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

/// Returns each path's weight, for equal amounts of reading and writing: 1 for the fastest path.
/// All are 1 if a speed is unknown, or if the slowest disk is within a tenth of the fastest.
std::vector<double> stripe_weights(std::span<const PathDisk> paths);

/// Returns the combined speed of the paths while each carries its share, so that all finish
/// together. {0, 0} if a speed is unknown.
DiskSpeed striped_speed(std::span<const PathDisk> paths, std::span<const double> weights);

}  // namespace artesian::tiering
