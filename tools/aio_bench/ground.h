// The files and buffers with which aio_bench measures: one temporary file per directory, and one
// pool of buffers. They are filled once and serve any number of measurements.
//
// The files are unlinked as soon as they are open, so that nothing is left behind however the
// program ends. Some file systems (gocryptfs) cannot sync an unlinked file; there the file keeps
// its name until it is closed. For each granule of a file the pass and the buffer that wrote it
// last are recorded, so that every block read can be verified (tools/aio_bench/bench_pattern.h).
// With several directories block i goes to file i modulo their number.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/engine.h"
#include "pinned/pool.h"
#include "tools/aio_bench/bench_pattern.h"

namespace artesian::bench {

/// An open file. `name` is its path if it has one; the file is removed with this object.
struct BenchFile {
  struct RemoveName {
    void operator()(std::string* path) const noexcept;
  };
  std::unique_ptr<std::string, RemoveName>
      name;  // declared before `file`, so that the name is removed after closing
  std::unique_ptr<File> file;
  File* operator->() const noexcept { return file.get(); }
};

/// What a measurement does. Mixed imitates an optimizer: reads run ahead, and each block read is
/// written back to its place.
enum class Access : std::uint8_t { Read, Write, Mixed };
inline constexpr Access accesses[] = {Access::Read, Access::Write, Access::Mixed};

/// "read", "write" or "mixed".
const char* access_name(Access access) noexcept;

/// in the order in which "auto" tries them
inline constexpr aio::EngineKind engine_kinds[] = {
    aio::EngineKind::IoUring, aio::EngineKind::Libaio, aio::EngineKind::Threads};

struct GroundOptions {
  std::vector<std::string> directories;  // must exist
  std::uint64_t size = 0;                // bytes of all files together, multiple of 4096
  std::uint64_t granule = 0;             // bytes; all block sizes are multiples of it
  std::uint64_t buffer_bytes = 0;  // size of the pool; at least what a measurement has in flight
  Direct direct = Direct::IfAligned;
};

struct Transfers {
  Access access = Access::Read;
  aio::EngineOptions engine = {.block_size = 1 << 20, .queue_depth = 32};
  const aio::EngineKind* kind = nullptr;  // null: the best engine on this machine
  double read_share = 0.5;                // share of reads in Access::Mixed, between 0 and 1
  double seconds = 0;                     // the pass is repeated for this long; 0: one pass
  std::uint64_t file_first = 0;           // index of the first file used
  // number of files used, limited to the existing ones
  std::uint64_t file_count = ~std::uint64_t{0};
};

struct Measurement {
  aio::EngineKind kind = aio::EngineKind::Threads;
  aio::Polling polling = aio::Polling::None;  // the polling that was in effect
  bool direct = false;                        // every block was transferred with direct I/O
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // CPU seconds of the transfers: user and system, all threads
  std::vector<double> gb_per_s_by_second;  // one value for each whole second
  aio::EngineStatistics statistics;
  bool right = false;  // all data read was as written

  std::uint64_t bytes() const noexcept { return bytes_read + bytes_written; }
  double gb_per_s() const noexcept;
};

/// Called after each second of a measurement, with the seconds and bytes so far and
/// gb_per_s_by_second. The other fields are not set yet.
using Watch = std::function<void(const Measurement&)>;

/// Progress of a pass over all files, reported five times per second once there is some.
struct Pass {
  std::uint64_t done = 0;  // bytes
  std::uint64_t size = 0;  // bytes
  double seconds = 0;

  double gb_per_s() const noexcept;
  double seconds_left() const noexcept;  // estimated
};
using PassWatch = std::function<void(const Pass&)>;

class Ground {
 public:
  /// Creates and reserves the files. Set `stop` to a value other than 0 to end measurements early.
  /// Errors: Io, NoSpace, Unsupported, Exhausted.
  static Result<std::unique_ptr<Ground>> create(const GroundOptions& options,
                                                const std::atomic<int>& stop);

  /// Writes all of the files. Required before the first measurement. Errors: Io, NoSpace,
  /// Cancelled, Timeout, after which this object must not be used any more.
  Result<void> fill(const Transfers& transfers, const PassWatch& watch = nullptr);
  /// Makes a measurement. Errors: Io, NoSpace, Cancelled, Timeout, and those of make_engine.
  Result<Measurement> measure(const Transfers& transfers, const Watch& watch = nullptr);
  /// Evicts the files from the page cache, so that a buffered measurement reads from the disk.
  /// Errors: Io, NoSpace.
  Result<void> drop_cache();
  /// Reads all of the files and checks every byte.
  Result<bool> all_right(const Transfers& transfers, const PassWatch& watch = nullptr);

  bool direct() const noexcept;
  /// Returns the kind of engine that these transfers will use. Errors: those of make_engine.
  Result<aio::EngineKind> kind_of(const Transfers& transfers) const;
  const pinned::Pool& pool() const noexcept { return *pool_; }

 private:
  friend class Sweep;
  /// Identifies the last write to a granule: see tools/aio_bench/bench_pattern.h.
  struct Writer {
    std::uint32_t pass = 0;
    std::uint32_t buffer = 0;
  };
  struct WorkFile {
    BenchFile file;
    std::uint64_t size = 0;
    std::vector<Writer> writers;  // one for each granule of the file
  };

  Ground(const GroundOptions& options, const std::atomic<int>& stop)
      : options_(options), stop_(stop), pattern_(options.granule) {}
  Result<std::unique_ptr<aio::Engine>> make_engine(const Transfers& transfers) const;
  std::uint64_t size() const noexcept;

  const GroundOptions options_;
  const std::atomic<int>& stop_;
  const Pattern pattern_;
  std::vector<WorkFile> files_;
  std::unique_ptr<pinned::Pool> pool_;
  std::uint32_t pass_next_ = 0;
  std::atomic<std::uint32_t> buffer_next_ = 0;
};

/// Creates a file of `size` reserved bytes, unnamed if the file system can sync unnamed files.
/// Errors: Io, NoSpace.
Result<BenchFile> create_bench_file(const std::string& directory, Direct direct,
                                    std::uint64_t size);

/// Returns the most blocks that these transfers have in flight over files of this size.
std::uint64_t slot_count(const aio::EngineOptions& engine, std::uint64_t size) noexcept;

}  // namespace artesian::bench
