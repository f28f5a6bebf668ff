#include "tiering/transfer.h"

#include <utility>

#include "base/check.h"

namespace artesian::tiering {

bool Transfer::in_flight() const noexcept {
  for (std::size_t index = 0; index < count_; ++index) {
    if (part(index).completion.in_flight()) return true;
  }
  return false;
}

bool Transfer::ready() const noexcept {
  for (std::size_t index = 0; index < count_; ++index) {
    if (!part(index).completion.ready()) return false;
  }
  return count_ != 0;
}

void Transfer::begin(aio::Operation operation, BufferLease buffer) noexcept {
  take_buffer().reset();  // the buffer of the last transfer, if it was not taken
  operation_ = operation;
  count_ = 0;
  buffer_ = std::move(buffer);
}

Transfer::Part& Transfer::add_part(std::uint32_t path) noexcept {
  if (count_ > more_.size()) more_.push_back(std::make_unique<Part>());
  ARTESIAN_CHECK(count_ <= more_.size(), count_, more_.size());
  Part& added = part(count_++);
  ARTESIAN_CHECK(!added.completion.in_flight());
  added.path = path;
  return added;
}

BufferLease Transfer::lend(std::uint64_t offset, std::uint64_t length) noexcept {
  ARTESIAN_CHECK(offset <= buffer_.size() && length <= buffer_.size() - offset, offset, length);
  return {buffer_.data() + offset, length, this};
}

BufferLease Transfer::take_buffer() noexcept {
  ARTESIAN_CHECK(!in_flight());
  for (std::size_t index = 0; index < count_; ++index) {
    part(index).completion.take_buffer().reset();
  }
  return std::move(buffer_);
}

}  // namespace artesian::tiering
