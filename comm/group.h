// Group: bytes between the ranks of one run, which are processes that train one model together.
// Every rank issues the same operations in the same order, with sizes that agree; each returns when
// this rank's part is done. A group only moves bytes and never reduces them: the receiver combines
// what it received, in the order of the ranks.
//
// Thread: one at a time. After an error the group must not be used any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace artesian::comm {

/// This process's rank and the number of ranks, over all machines and on this one.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_ranks = 1;
};

/// What an operation concerns, for error messages: "gradients of" "h.3".
struct What {
  const char* kind = "";
  std::string_view name{};
  std::string text() const {
    return name.empty() ? kind : std::string(kind) + " " + std::string(name);
  }
};

class Group {
 public:
  /// An operation that has begun. Its buffers must stay valid until wait() has returned.
  class Begun {
   public:
    Begun() = default;
    Begun(const Begun&) = delete;
    Begun& operator=(const Begun&) = delete;
    virtual ~Begun() = default;
    /// Waits for the end; call it once. Errors: as all_to_all.
    virtual Result<void> wait() = 0;
  };

  explicit Group(Place place) noexcept : place_(place) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  const Place& place() const noexcept { return place_; }
  std::uint32_t rank() const noexcept { return place_.rank; }
  std::uint32_t ranks() const noexcept { return place_.ranks; }

  /// Sends sent[k] to rank k and fills received[k] with what rank k sends here; nothing is sent to
  /// this rank itself. Either may be empty. All in host memory. Errors: PeerLost (a rank has ended
  /// or missed the deadline), Invalid (ranks called different operations).
  Result<void> all_to_all(std::span<const std::span<const std::byte>> sent,
                          std::span<const std::span<std::byte>> received, const What& what);
  /// Begins an all_to_all and returns; other operations may begin and end before this one is waited
  /// for.
  Result<std::unique_ptr<Begun>> begin_all_to_all(std::span<const std::span<const std::byte>> sent,
                                                  std::span<const std::span<std::byte>> received,
                                                  const What& what);
  /// Waits for an operation that has begun.
  Result<void> end(std::unique_ptr<Begun> begun);
  /// `image` has an equal share for each rank; this rank's share is sent, the others are filled in.
  Result<void> all_gather(std::span<std::byte> image, const What& what);
  /// Fills `bytes` on every rank with those of rank `root`.
  Result<void> broadcast(std::span<std::byte> bytes, std::uint32_t root, const What& what);
  /// For a few bytes: returns the bytes of all ranks, in the order of the ranks; each rank gives
  /// equally many.
  Result<std::vector<std::byte>> exchange(std::span<const std::byte> mine, const What& what);

  /// Returns the text that every rank has given, in the order of the ranks.
  Result<std::vector<std::string>> exchange_texts(const std::string& mine, const What& what);

  /// Brings all ranks to one outcome: success if all succeeded; otherwise each rank gets its own
  /// error, or, without one, that of the first rank that failed. Further errors: those of the
  /// group.
  Result<void> agree(Result<void> own, const What& what);

  /// Counts an operation of a DeviceGroup.
  void count_on_device(std::uint64_t bytes_sent, std::uint64_t ns) noexcept {
    bytes_sent_ += bytes_sent;
    ns_ += ns;
  }
  /// The error of an operation of a DeviceGroup that other ranks have not joined before the
  /// deadline: PeerLost.
  virtual Error overdue(const std::string& what) const;
  /// Seconds within which every rank must join an operation.
  virtual double deadline_seconds() const noexcept = 0;

  std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }
  /// Seconds that this rank has spent in operations so far.
  double seconds() const noexcept { return static_cast<double>(ns_) * 1e-9; }

 protected:
  /// Begins an all_to_all whose sizes were checked. Implementations copy the lists of spans.
  /// `operation`: number of the operation, from 0.
  virtual Result<std::unique_ptr<Begun>> begin(std::span<const std::span<const std::byte>> sent,
                                               std::span<const std::span<std::byte>> received,
                                               const What& what, std::uint64_t operation) = 0;

 private:
  const Place place_;
  std::uint64_t operations_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t ns_ = 0;
};

}  // namespace artesian::comm
