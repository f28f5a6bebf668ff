// Transfer: one read or write of a shard's bytes, in flight or done, with one completion for each
// part in a separate file or extent. The caller owns the transfer, must not move it from the start
// until it is ready, and may then reuse it. The transfer holds the buffer; its parts use pieces of
// it.
//
// Thread: the compute thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "aio/engine.h"

namespace artesian::tiering {

class Transfer final : public BufferOwner {
 public:
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() = default;  // the completions check that they are not in flight

  bool in_flight() const noexcept;
  /// True from its start until its buffer is taken.
  bool busy() const noexcept { return buffer_ || in_flight(); }
  /// True once every part is finished, successfully or not.
  bool ready() const noexcept;
  /// Takes the buffer back; the lease is empty if the kernel may still write to the buffer. Only
  /// when ready.
  BufferLease take_buffer() noexcept;

  void give_back(std::byte*, std::uint64_t) noexcept override {}
  void abandon(std::byte*, std::uint64_t) noexcept override { buffer_.abandon(); }

 private:
  friend class TierStore;
  struct Part {
    aio::Completion completion;
    std::uint32_t path = 0;
  };

  Part& part(std::size_t index) noexcept { return index == 0 ? first_ : *more_[index - 1]; }
  const Part& part(std::size_t index) const noexcept {
    return index == 0 ? first_ : *more_[index - 1];
  }
  void begin(aio::Operation operation, BufferLease buffer) noexcept;
  /// Returns the next part, for [offset, offset + length) of the buffer.
  Part& add_part(std::uint32_t path) noexcept;
  BufferLease lend(std::uint64_t offset, std::uint64_t length) noexcept;

  aio::Operation operation_ = aio::Operation::Read;
  BufferLease buffer_;     // declared before the parts, which are destroyed first
  std::size_t count_ = 0;  // parts in use
  Part first_;
  std::vector<std::unique_ptr<Part>> more_;  // as many as were ever needed, for reuse
};

}  // namespace artesian::tiering
