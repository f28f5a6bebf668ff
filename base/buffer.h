// BufferLease: memory lent for one transfer. A buffer belongs to the request while the kernel may
// write to it: submitting moves the lease in, the completion moves it back, and only then can it be
// returned to its owner. Cancelling never frees it. The types enforce this rule.
//
// Note [Abandoned memory]: if the kernel never finishes a transfer, the transfer's memory is never
// given back and never unmapped, as the kernel could still overwrite it at any later moment. The
// memory is leaked on purpose until the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace artesian {

/// Lends memory and takes it back. Its functions are called on the thread that destroys the lease.
class BufferOwner {
 public:
  virtual void give_back(std::byte* data, std::uint64_t size) noexcept = 0;
  /// This lease will never come back: see Note [Abandoned memory]. Owners that free or unmap their
  /// memory must spare these bytes. Any thread.
  virtual void abandon(std::byte*, std::uint64_t) noexcept {}

 protected:
  ~BufferOwner() = default;
};

/// Move-only; gives `size` bytes at `data` back to the owner on destruction. Empty when moved from.
class BufferLease {
 public:
  BufferLease() = default;
  BufferLease(std::byte* data, std::uint64_t size, BufferOwner* owner) noexcept
      : data_(data), size_(size), owner_(owner) {}
  BufferLease(BufferLease&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        owner_(std::exchange(other.owner_, nullptr)) {}
  BufferLease& operator=(BufferLease&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      owner_ = std::exchange(other.owner_, nullptr);
    }
    return *this;
  }
  BufferLease(const BufferLease&) = delete;
  BufferLease& operator=(const BufferLease&) = delete;
  ~BufferLease() { reset(); }

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size() const noexcept { return size_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  void reset() noexcept {
    if (owner_ != nullptr) owner_->give_back(data_, size_);
    forget();
  }
  /// Ends the lease without giving the memory back, ever.
  void abandon() noexcept {
    if (owner_ != nullptr) owner_->abandon(data_, size_);
    forget();
  }

 private:
  void forget() noexcept {
    data_ = nullptr;
    size_ = 0;
    owner_ = nullptr;
  }

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  BufferOwner* owner_ = nullptr;
};

/// Lends memory that its owner does not need at the moment.
class BufferLender : public BufferOwner {
 public:
  /// True if `borrow` would succeed for this many bytes now.
  virtual bool may_lend(std::uint64_t bytes) const noexcept = 0;
  /// Lends at least `bytes`, uninitialised and aligned to 4096. The lease is empty if there is no
  /// such memory.
  virtual BufferLease borrow(std::uint64_t bytes) noexcept = 0;

 protected:
  ~BufferLender() = default;
};

}  // namespace artesian
