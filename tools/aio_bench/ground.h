// The ground on which aio_bench measures: temporary files of its own, one per directory, and one
// pool of buffers. Filled once, it serves any number of measurements.
//
// The files are unlinked as soon as they are open: whatever ends the program, nothing stays behind.
// Some file systems (gocryptfs) cannot sync a file without a name. There the file keeps its name
// until it is closed.
// Each granule of a file remembers the pass and the buffer that wrote it last, so that every block
// read, by any measurement, can be told right from wrong (tools/aio_bench/bench_pattern.h). With
// several directories block i goes to file i modulo their number.
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
  std::unique_ptr<std::string, RemoveName> name;  // before `file`: removed after it is closed
  std::unique_ptr<File> file;
  File* operator->() const noexcept { return file.get(); }
};

/// Says what a measurement does. Mixed is what an optimizer does: reads run ahead, and what was
/// read is written back behind them, to where it came from.
enum class Access : std::uint8_t { Read, Write, Mixed };
inline constexpr Access accesses[] = {Access::Read, Access::Write, Access::Mixed};

/// "read", "write" or "mixed".
const char* access_name(Access access) noexcept;

/// In the order in which `auto` tries them.
inline constexpr aio::EngineKind engine_kinds[] = {
    aio::EngineKind::IoUring, aio::EngineKind::Libaio, aio::EngineKind::Threads};

struct GroundOptions {
  std::vector<std::string> directories;  // must exist
  std::uint64_t size = 0;                // bytes of all files together, multiple of 4096
  std::uint64_t granule = 0;             // bytes; every block size is a multiple of it
  std::uint64_t buffer_bytes = 0;        // of the pool; more than a measurement has in flight
  Direct direct = Direct::IfAligned;
};

struct Transfers {
  Access access = Access::Read;
  aio::EngineOptions engine = {.block_size = 1 << 20, .queue_depth = 32};
  const aio::EngineKind* kind = nullptr;  // null: the best that the machine has
  double read_share = 0.5;                // share of reads in Access::Mixed, between 0 and 1
  double seconds = 0;            // repeats the pass until this much time is over; 0: one pass
  std::uint64_t file_first = 0;  // among the files those from here ..
  std::uint64_t file_count = ~std::uint64_t{0};  // .. so many, or as many as there are
};

struct Measurement {
  aio::EngineKind kind = aio::EngineKind::Threads;
  aio::Polling polling = aio::Polling::None;  // the polling that was in effect
  bool direct = false;                        // every block went past the page cache
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  double seconds = 0;
  double cpu_seconds = 0;                  // CPU time of transfers: user and system, all threads
  std::vector<double> gb_per_s_by_second;  // one value for each whole second
  aio::EngineStatistics statistics;
  bool right = false;  // everything read was what had been written

  std::uint64_t bytes() const noexcept { return bytes_read + bytes_written; }
  double gb_per_s() const noexcept;
};

/// Called after each second of a measurement with the seconds and bytes so far, and with
/// gb_per_s_by_second. The other fields are not known yet.
using Watch = std::function<void(const Measurement&)>;

/// Progress of a pass over all files, reported five times a second once something is done.
struct Pass {
  std::uint64_t done = 0;  // bytes
  std::uint64_t size = 0;  // bytes
  double seconds = 0;

  double gb_per_s() const noexcept;
  double seconds_left() const noexcept;  // about
};
using PassWatch = std::function<void(const Pass&)>;

class Ground {
 public:
  /// Makes and reserves the files. `stop` becomes not 0 to end every measurement early. Errors: Io,
  /// NoSpace, Unsupported, Exhausted.
  static Result<std::unique_ptr<Ground>> create(const GroundOptions& options,
                                                const std::atomic<int>& stop);

  /// Writes all of the files. Needed before the first measurement. Errors: Io, NoSpace, Cancelled,
  /// Timeout, after which this ground is of no further use.
  Result<void> fill(const Transfers& transfers, const PassWatch& watch = nullptr);
  /// Errors: Io, NoSpace, Cancelled, Timeout, and what make_engine refuses.
  Result<Measurement> measure(const Transfers& transfers, const Watch& watch = nullptr);
  /// Takes the files out of the page cache, so that a buffered measurement begins at the disk.
  /// Errors: Io, NoSpace.
  Result<void> drop_cache();
  /// Reads all of the files and compares every byte.
  Result<bool> all_right(const Transfers& transfers, const PassWatch& watch = nullptr);

  bool direct() const noexcept;
  /// Returns the kind of the engine that these transfers get. Errors: what make_engine refuses.
  Result<aio::EngineKind> kind_of(const Transfers& transfers) const;
  const pinned::Pool& pool() const noexcept { return *pool_; }

 private:
  friend class Sweep;
  /// Says what wrote a granule last: see tools/aio_bench/bench_pattern.h.
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

/// Creates a file of `size` bytes, reserved, without a name where the file system can sync such a
/// file. Errors: Io, NoSpace.
Result<BenchFile> create_bench_file(const std::string& directory, Direct direct,
                                    std::uint64_t size);

/// Returns how many blocks these transfers have in flight at most, over files of this size.
std::uint64_t slot_count(const aio::EngineOptions& engine, std::uint64_t size) noexcept;

}  // namespace artesian::bench
