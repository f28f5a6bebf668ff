#include <utility>

#include "aio/engine.h"

namespace artesian::aio {

Completion::~Completion() {
  ARTESIAN_CHECK(!in_flight());
}

void Completion::prepare(const Request& request, BufferLease buffer, Callback callback,
                         void* context) noexcept {
  ARTESIAN_CHECK(!in_flight());
  ARTESIAN_CHECK(request.file != nullptr);
  ARTESIAN_CHECK(request.length <= buffer.size(), request.length, buffer.size());
  ARTESIAN_CHECK(request.offset + request.length >= request.offset, request.offset, request.length);
  request_ = request;
  buffer_ = std::move(buffer);
  callback_ = callback;
  context_ = context;
  submitted_ns_ = 0;
  finished_ns_ = 0;
  state_.store(State::Idle, std::memory_order_relaxed);
}

bool Completion::in_flight() const noexcept {
  return state_.load(std::memory_order_acquire) == State::InFlight;
}

bool Completion::ready() const noexcept {
  return state_.load(std::memory_order_acquire) == State::Ready;
}

Result<std::uint64_t> Completion::result() const {
  ARTESIAN_CHECK(ready());
  if (failed_) return error_;
  ARTESIAN_CHECK(bytes_done_ == request_.length, bytes_done_, request_.length);
  return bytes_done_;
}

BufferLease Completion::take_buffer() noexcept {
  ARTESIAN_CHECK(!in_flight());
  return std::move(buffer_);
}

const Request& Completion::request() const noexcept {
  return request_;
}
std::uint64_t Completion::submitted_ns() const noexcept {
  return submitted_ns_;
}
std::uint64_t Completion::finished_ns() const noexcept {
  return finished_ns_;
}

}  // namespace artesian::aio
