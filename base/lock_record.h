// The text in a lock file that names the holder: one line of a fixed length, so that a shorter
// record leaves no tail of a longer one. Also how long to wait for a dying holder: after SIGKILL
// with writes in flight, its lock was freed 7 to 95 ms later (measured).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_system.h"
#include "base/result.h"

namespace artesian {

inline constexpr std::size_t lock_record_size = 256;
inline constexpr int lock_busy_retries = 5;
inline constexpr auto lock_busy_pause = std::chrono::milliseconds(50);

/// "pid P on host H, started T, run R" for the record of this process.
std::string holder_record(std::uint64_t run_id);

/// Writes `record`, shorter than lock_record_size, to the file that holds the lock. Errors: Io,
/// NoSpace.
Result<void> write_lock_record(File& file, std::string_view record) noexcept;

/// Returns the text that names the lock's holder, for a message, whatever the file contains.
std::string read_lock_holder(File& file) noexcept;

}  // namespace artesian
