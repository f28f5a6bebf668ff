// Checksums (XXH3): 64 bits with a seed for blocks of the swap file, and a 128-bit digest over
// named arrays for the identity of a model's state. They detect damage and misplaced blocks, but
// not forgery.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace artesian::kernels {

/// XXH3-64 of `size` bytes at `data`. The seed ties the bytes to their place and their generation.
/// Thread: any. data may be null if size is 0.
std::uint64_t checksum64(const void* data, std::uint64_t size, std::uint64_t seed) noexcept;

/// XXH3-128 of all bytes given to update, however they were split into calls. Move-only.
class Digest {
 public:
  Digest();

  /// Appends bytes.
  void update(const void* data, std::uint64_t size) noexcept;

  /// Starts a named array of `size` bytes, which follow in calls of update. Adds the name's length,
  /// the name and the array's size (lengths as 64-bit little endian), so that different sequences
  /// of named arrays give different bytes.
  void start_named(std::string_view name, std::uint64_t size) noexcept;

  /// 32 lower-case hex digits, the most significant first (as xxhsum prints them). update may be
  /// called again afterwards.
  std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace artesian::kernels
