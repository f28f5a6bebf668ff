// DeviceMemory: memory of a simulated accelerator. A file in memory is mapped twice. The addresses
// that callers get can never be read or written: a host that touches device memory ends by SIGSEGV,
// on any thread. Kernels use the other mapping, at a fixed distance. Fresh memory is filled with
// 0xff, a NaN in every floating-point type.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

namespace artesian::test_support {

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    const int file = ::memfd_create("simulated accelerator", 0);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) std::abort();
    begin_ = map(file, PROT_NONE);
    kernels_ = map(file, PROT_READ | PROT_WRITE);
    ::close(file);
    free_[begin_] = bytes;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t bytes_free() {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto& [at, free] : free_) bytes += free;
    return bytes;
  }
  bool holds(const void* at) const noexcept {
    const auto* byte = static_cast<const std::byte*>(at);
    return byte >= begin_ && byte < begin_ + bytes_;
  }
  /// Returns the address that kernels use. Addresses of other memory are returned unchanged.
  template <typename T>
  T* for_kernels(T* at) const noexcept {
    if (!holds(at)) return at;
    const auto* byte = reinterpret_cast<const std::byte*>(at);
    return reinterpret_cast<T*>(kernels_ + (byte - begin_));
  }
  void poison(std::byte* at, std::size_t bytes) const { std::memset(for_kernels(at), 0xff, bytes); }
  /// Returns null if no piece is large enough. Large pieces, of an arena, are not filled.
  std::byte* take(std::size_t bytes) {
    constexpr std::size_t large = std::size_t{64} << 20;
    const std::lock_guard lock(mutex_);
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
      if (piece->second < bytes) continue;
      std::byte* const at = piece->first;
      const std::size_t left = piece->second - bytes;
      free_.erase(piece);
      if (left > 0) free_[at + bytes] = left;
      if (bytes < large) poison(at, bytes);
      return at;
    }
    return nullptr;
  }
  void give(std::byte* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto piece = free_.emplace(at, bytes).first;
    const auto next = std::next(piece);
    if (next != free_.end() && at + piece->second == next->first) {
      piece->second += next->second;
      free_.erase(next);
    }
    if (piece == free_.begin()) return;
    const auto before = std::prev(piece);
    if (before->first + before->second != at) return;
    before->second += piece->second;
    free_.erase(piece);
  }

 private:
  std::byte* map(int file, int protection) const {
    void* at = ::mmap(nullptr, bytes_, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(at);
  }

  const std::size_t bytes_;
  std::byte* begin_ = nullptr;
  std::byte* kernels_ = nullptr;
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> free_;
};

}  // namespace artesian::test_support
