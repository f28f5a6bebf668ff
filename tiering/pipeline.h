// Pipeline: reads ahead, works, and writes behind, through the few buffers of a staging ring.
// tiering/ring_order.h decides the order. The derived class defines what is read, worked on and
// written, through functions known at compile time, so that no item costs a virtual call. This
// class holds what all pipelines share: waiting for items and timing it, borrowing memory, and
// draining.
//
//   class Squares : public Pipeline<Squares> {
//     friend Order;
//     RingNeed need(const RingTask&) const;                         it passes through the ring
//     Result<void> read(const RingTask&, StagingItem&);             starts to
//     Result<void> work(std::size_t, const RingTask&, StagingItem*);  finish(item), work,
//     item.write
//   };
//
// Three other classes read ahead or write behind on their own: docs/dev/design.md (Moving bytes)
// gives the reasons.
//
// Thread: the compute thread only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/timeline.h"
#include "tiering/ring_order.h"
#include "tiering/staging_ring.h"

namespace artesian::tiering {

/// `Port` is the derived class.
template <typename Port>
class Pipeline : public RingOrder<Port, StagingItem> {
 public:
  using Order = RingOrder<Port, StagingItem>;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  using Order::finish;
  /// Lets reads use this lender's memory, too; the lender must outlive the pipeline, and null ends
  /// the borrowing. Borrowed items are returned on their own: Note [Borrowed items].
  void borrow_from(BufferLender* lender) noexcept { lender_ = lender; }
  /// Waits for everything that the ring has in flight. Errors: the first one's.
  Result<void> drain() noexcept { return ring_.finish(); }
  /// Returns the seconds spent waiting for items so far.
  double wait_seconds() const noexcept { return static_cast<double>(wait_ns_) * 1e-9; }

 protected:
  using Item = StagingItem;

  /// `waits_for`: the name of the waits in the timeline; null: they are not recorded. The ring must
  /// outlive the pipeline, and may be shared with others.
  Pipeline(StagingRing& ring, const char* waits_for) noexcept
      : Order(static_cast<Port&>(*this)), ring_(ring), waits_for_(waits_for) {}
  ~Pipeline() = default;

  StagingRing& ring() const noexcept { return ring_; }
  /// Waits for everything that the item has in flight.
  Result<void> finish(Item& item) noexcept {
    if (item.idle()) return item.finish();
    const std::uint64_t begin_ns = monotonic_ns();
    auto finished = item.finish();
    const std::uint64_t end_ns = monotonic_ns();
    wait_ns_ += end_ns - begin_ns;
    Timeline* const timeline = waits_for_ != nullptr ? ring_.store().timeline() : nullptr;
    if (timeline != nullptr) timeline->add_wait(waits_for_, begin_ns, end_ns);
    return finished;
  }

  // Functions that RingOrder calls. A derived class may redefine the last ones.
  std::uint32_t count() const noexcept { return ring_.count(); }
  Item& own(std::uint32_t index) noexcept { return ring_.at(index); }
  static bool borrowed(const Item& item) noexcept { return item.borrowed(); }
  static bool is_idle(const Item& item) noexcept { return item.idle(); }
  bool may_borrow() const noexcept {
    return lender_ != nullptr && ring_.count() != 0 && lender_->may_lend(ring_.item_bytes());
  }
  Item* borrow() {
    BufferLease memory = lender_->borrow(ring_.item_bytes());
    return memory ? &ring_.add_borrowed(std::move(memory)) : nullptr;
  }
  void give_back(const Item& item) noexcept { ring_.remove(item); }
  static bool is_free(const Item& item) noexcept { return item.idle(); }
  static bool computes_elsewhere() noexcept { return false; }
  static bool writes() noexcept { return true; }
  static std::size_t together_max() noexcept { return 1; }
  static Result<void> work_together(std::size_t, std::span<const RingTask>) { return {}; }

 private:
  StagingRing& ring_;
  const char* const waits_for_;
  BufferLender* lender_ = nullptr;
  std::uint64_t wait_ns_ = 0;
};

}  // namespace artesian::tiering
