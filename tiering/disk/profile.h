// What one disk of this machine can do, as measured by `aio_bench tune` and read by a planner: one
// small JSON file per disk, whose format docs/io.md describes. Parsing and printing are pure.
//
// Note [Profile file]: the file lies in $XDG_CACHE_HOME/artesian, else ~/.cache/artesian. Its name
// is the file system's id (statfs), or the device number if the id is 0. So all folders of one file
// system share it, also after a reboot.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/engine.h"
#include "base/result.h"
#include "tiering/disk/stripe.h"

namespace artesian::tiering {

struct MachineProfile {
  static constexpr std::uint64_t version = 1;

  struct Rate {
    std::uint64_t block_size = 0;  // bytes of one transfer
    double read_share = 1;         // share of reads: 1 only reads, 0 only writes
    double gb_per_s = 0;           // reads and writes together
  };

  std::string path;               // the folder that was measured
  std::string file_system;        // "ext4"
  std::string measured_at;        // UTC, "2026-01-31T12:00:00Z"
  bool direct = true;             // with direct I/O, past the page cache
  bool duplex = false;            // simultaneous reads and writes do not slow each other down
  std::uint64_t queue_depth = 0;  // blocks in flight per thread, for all rates
  std::uint64_t threads = 0;
  std::string engine;  // "io_uring"
  /// Size of the measured file and planned duration; 0 in older profiles.
  std::uint64_t size = 0;  // bytes of the measured file
  double budget_seconds = 0;
  /// The settings with the highest throughput. Missing in older profiles.
  std::optional<aio::EngineOptions> best{};
  std::vector<Rate> rates;

  /// True if this new profile may replace `saved`: it measured at least as many bytes for as long.
  /// A saved profile without these figures is assumed to have tune's defaults.
  bool may_replace(const MachineProfile& saved) const noexcept;
  /// Speed of reads alone and of writes alone, at the nearest block size; 0 where missing.
  DiskSpeed speed(std::uint64_t block_size) const;
};

/// "block_size 256 KiB, queue_depth 64", and all other settings that differ from the default.
std::string describe(const aio::EngineOptions& settings);

/// The settings as a config's aio section.
nlohmann::ordered_json aio_section(const aio::EngineOptions& settings);

std::string print_machine_profile(const MachineProfile& profile);

/// Parses a profile; unknown fields are ignored. Errors: Invalid (no JSON, not this format, a wrong
/// or missing field), Unsupported (a later version).
Result<MachineProfile> parse_machine_profile(std::string_view text, const std::string& path);

/// True if a disk is duplex, judged by GB/s of reads alone, writes alone and half of each at once:
/// the mixed rate is nearer to the sum of both than to their alternation.
bool is_duplex(double read, double write, double mixed) noexcept;

/// Returns the path of the profile of the disk below a folder: see Note [Profile file]. Errors: Io
/// (no such folder), Invalid (neither XDG_CACHE_HOME nor HOME is an absolute path).
Result<std::string> machine_profile_path(const std::string& directory);

/// Replaces the file atomically; creates its folder. Errors: Io, NoSpace.
Result<void> save_machine_profile(const std::string& path, const MachineProfile& profile);

/// Reads a profile. Errors: Io (ENOENT if there is no profile), and those of parse_machine_profile.
Result<MachineProfile> load_machine_profile(const std::string& path);

}  // namespace artesian::tiering
