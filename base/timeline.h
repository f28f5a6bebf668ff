// Timeline: records what ran when, to be viewed in Perfetto or chrome://tracing.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"

namespace artesian {

/// ToDevice and ToHost: the CPU copies or casts data to, and from, the device tier. Wait: the
/// compute thread waits for the disk or for a device.
enum class Lane : std::uint8_t { Compute, Optimizer, ToDevice, ToHost, NvmeRead, NvmeWrite, Wait };

/// Collects spans up to a bound (later ones are dropped and counted). Thread-safe.
class Timeline {
 public:
  explicit Timeline(std::size_t spans_max = 1'000'000) : spans_max_(spans_max) {}

  /// Adds one span; times in ns on the system clock. `bytes` is not shown if 0.
  void add(Lane lane, std::string name, std::uint64_t begin_ns, std::uint64_t end_ns,
           std::uint64_t bytes = 0);
  /// Adds a wait for `what`, unless it is too short to be seen.
  void add_wait(const char* what, std::uint64_t begin_ns, std::uint64_t end_ns);
  /// An optimizer step, drawn in a lane of its own. Values that are not finite are omitted.
  struct Step {
    std::uint64_t number = 0;
    std::uint64_t micro_batches = 0;
    double loss = 0.0;
    double predicted_s = 0.0;
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
  };
  void add_step(const Step& step);
  /// Writes Chrome trace JSON, in which every lane and each of its rows has a name. Errors: Io,
  /// NoSpace.
  Result<void> write(const std::string& path) const;

 private:
  struct Span {
    Lane lane;
    std::string name;
    std::uint64_t begin_ns;
    std::uint64_t end_ns;
    std::uint64_t bytes;
  };
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<Step> steps_;
  std::size_t spans_max_;
  std::size_t dropped_ = 0;
};

}  // namespace artesian
