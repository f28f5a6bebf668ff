#include "comm/group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace artesian::comm {

Result<void> Group::all_to_all(std::span<const std::span<const std::byte>> sent,
                               std::span<const std::span<std::byte>> received, const What& what) {
  ARTESIAN_TRY(begun, begin_all_to_all(sent, received, what));
  return end(std::move(begun));
}

Result<std::unique_ptr<Group::Begun>> Group::begin_all_to_all(
    std::span<const std::span<const std::byte>> sent,
    std::span<const std::span<std::byte>> received, const What& what) {
  ARTESIAN_CHECK(sent.size() == ranks() && received.size() == ranks(), sent.size(), received.size(),
                 ranks());
  const std::uint64_t begin_ns = monotonic_ns();
  auto begun = begin(sent, received, what, operations_++);
  ns_ += monotonic_ns() - begin_ns;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (peer != rank()) bytes_sent_ += sent[peer].size();
  }
  return begun;
}

Result<void> Group::end(std::unique_ptr<Begun> begun) {
  ARTESIAN_CHECK(begun != nullptr);
  const std::uint64_t begin_ns = monotonic_ns();
  auto ended = begun->wait();
  ns_ += monotonic_ns() - begin_ns;
  return ended;
}

Error Group::overdue(const std::string& what) const {
  return make_error(ErrorCode::PeerLost,
                    "another rank has not answered before the deadline: rank " +
                        std::to_string(rank()) + " was waiting for " + what);
}

Result<void> Group::all_gather(std::span<std::byte> image, const What& what) {
  ARTESIAN_CHECK(image.size() % ranks() == 0, image.size(), ranks());
  const std::size_t share = image.size() / ranks();
  const std::span<const std::byte> mine = image.subspan(rank() * share, share);
  const std::vector<std::span<const std::byte>> sent(ranks(), mine);
  std::vector<std::span<std::byte>> received;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    received.push_back(peer == rank() ? std::span<std::byte>()
                                      : image.subspan(peer * share, share));
  }
  return all_to_all(sent, received, what);
}

Result<void> Group::broadcast(std::span<std::byte> bytes, std::uint32_t root, const What& what) {
  ARTESIAN_CHECK(root < ranks(), root, ranks());
  std::vector<std::span<const std::byte>> sent(ranks());
  std::vector<std::span<std::byte>> received(ranks());
  if (root == rank()) {
    std::fill(sent.begin(), sent.end(), bytes);
  } else {
    received[root] = bytes;
  }
  return all_to_all(sent, received, what);
}

Result<std::vector<std::byte>> Group::exchange(std::span<const std::byte> mine, const What& what) {
  std::vector<std::byte> all(ranks() * mine.size());
  std::copy(mine.begin(), mine.end(),
            all.begin() + static_cast<std::ptrdiff_t>(rank() * mine.size()));
  ARTESIAN_TRY_VOID(all_gather(all, what));
  return all;
}

Result<std::vector<std::string>> Group::exchange_texts(const std::string& mine, const What& what) {
  const std::uint64_t size = mine.size();
  ARTESIAN_TRY(all_sizes, exchange(std::as_bytes(std::span(&size, 1)), what));
  std::vector<std::uint64_t> sizes(ranks());
  std::memcpy(sizes.data(), all_sizes.data(), all_sizes.size());
  std::string padded = mine;
  padded.resize(*std::max_element(sizes.begin(), sizes.end()));
  ARTESIAN_TRY(all, exchange(std::as_bytes(std::span(padded)), what));
  std::vector<std::string> texts;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + peer * padded.size()),
                       sizes[peer]);
  }
  return texts;
}

Result<void> Group::agree(Result<void> own, const What& what) {
  struct Outcome {
    std::uint32_t failed = 0;
    ErrorCode code{};
    std::array<char, 504> text{};  // shortened if needed, and always terminated by a zero
  };
  static_assert(sizeof(Outcome) == 512);
  Outcome mine;
  if (!own.has_value()) {
    mine.failed = 1;
    mine.code = own.error().code;
    const std::string text = own.error().to_string();
    std::memcpy(mine.text.data(), text.data(), std::min(text.size(), mine.text.size() - 1));
  }
  ARTESIAN_TRY(all, exchange(std::as_bytes(std::span(&mine, 1)), what));
  if (!own.has_value()) return own;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    Outcome theirs;
    std::memcpy(&theirs, all.data() + peer * sizeof theirs, sizeof theirs);
    if (theirs.failed == 0) continue;
    theirs.text.back() = '\0';
    return make_error(theirs.code, "rank " + std::to_string(peer) + ": " + theirs.text.data());
  }
  return {};
}

}  // namespace artesian::comm
