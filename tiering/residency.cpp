#include "tiering/residency.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "base/units.h"
#include "kernels/cast.h"

namespace artesian::tiering {
namespace {

constexpr std::uint64_t share_grain = 16'384;  // elements of a share that are expanded at a time
// bytes of one read; the first half is expanded while the second is read
constexpr std::uint64_t piece_bytes_max = 4 << 20;

/// Calls `load` for the blocks [begin, end) in parallel; returns the first block for which it
/// returns false.
template <typename Load>
std::optional<std::uint64_t> first_bad(Executor& executor, std::uint64_t begin, std::uint64_t end,
                                       const Load& load) {
  std::atomic<std::uint64_t> bad{end};
  executor.parallel_for(end - begin, 1, [&](std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t block = begin + from; block < begin + to; ++block) {
      if (load(block)) continue;
      std::uint64_t seen = bad.load();
      while (block < seen && !bad.compare_exchange_weak(seen, block)) {
      }
    }
  });
  return bad.load() == end ? std::nullopt : std::optional(bad.load());
}

/// SlotState, with the source that fills a Fetching slot.
enum class Contents : std::uint8_t {
  Absent,
  Loading,  // by transfers from its home
  Filling,  // by the refresh that started it, without reading
  Live,
};

constexpr SlotState slot_state(Contents contents) noexcept {
  switch (contents) {
    case Contents::Absent: return SlotState::Absent;
    case Contents::Loading:
    case Contents::Filling: return SlotState::Fetching;
    case Contents::Live: return SlotState::Live;
  }
  return SlotState::Absent;
}

/// The refresh of a unit's home, between begin_refresh and end_refresh.
enum class Refresh : std::uint8_t {
  None,
  Begun,
  Partial,  // a part of the slot's content was refreshed
  Missed,   // the slot was dropped after that, and a new slot lacks this part
};

constexpr bool may_go(Refresh from, Refresh to) noexcept {
  switch (from) {
    case Refresh::None: return to == Refresh::Begun;
    case Refresh::Begun: return to == Refresh::Partial || to == Refresh::None;
    case Refresh::Partial: return to == Refresh::Missed || to == Refresh::None;
    case Refresh::Missed: return to == Refresh::None;
  }
  return false;
}
static_assert(!may_go(Refresh::Missed, Refresh::Partial));  // it lacks a part
static_assert(!may_go(Refresh::Begun, Refresh::Missed));    // nothing was refreshed yet
static_assert(!may_go(Refresh::Begun, Refresh::Begun));     // one refresh at a time

/// True if this route is possible from that home.
bool may_go_by(Route route, Tier home, bool separate_device) noexcept {
  switch (route) {
    case Route::InPlace:
    case Route::Memory: return !separate_device && home != Tier::Nvme;
    case Route::Disk: return !separate_device && home == Tier::Nvme;
    case Route::OnDevice: return separate_device && home == Tier::Device;
    case Route::Queues: return separate_device;
  }
  return false;
}

}  // namespace

class Residency::Slot final : public BufferOwner {
 public:
  explicit Slot(const ResidentUnit& resident) : unit(resident) {}
  ~Slot() { ARTESIAN_CHECK(leases == 0, leases.load()); }
  void give_back(std::byte*, std::uint64_t) noexcept override {
    const int before = leases.fetch_sub(1);
    ARTESIAN_CHECK(before > 0, before);
  }

  BufferLease lease(std::uint64_t offset, std::uint64_t length) noexcept {
    ARTESIAN_CHECK(offset + length <= memory.size(), offset, length, memory.size());
    leases.fetch_add(1);
    return {memory.data() + offset, length, this};
  }
  bool is_cut() const noexcept { return unit.share != 0; }
  /// Bytes of the shard.
  std::uint64_t stored_bytes() const noexcept {
    return (is_cut() ? unit.share : unit.image) * dtype_size(unit.stored);
  }
  std::uint64_t computed_bytes() const noexcept { return unit.image * dtype_size(unit.computed); }
  /// True if the slot is the home.
  bool aliased() const noexcept { return stays(unit.route); }
  /// Returns the offset of the stored bytes: at the tail of the slot, or of the share's part of it.
  std::uint64_t tail_offset() const noexcept {
    if (is_cut()) return share_offset(unit.share_first);
    ARTESIAN_CHECK(computed_bytes() >= stored_bytes(), computed_bytes(), stored_bytes());
    return computed_bytes() - stored_bytes();
  }
  /// The same for the share that begins at this element of the image.
  std::uint64_t share_offset(std::uint64_t first) const noexcept {
    const std::uint64_t computed = dtype_size(unit.computed);
    ARTESIAN_CHECK(is_cut() && first % unit.share == 0 && first < unit.image, first, unit.image);
    return first * computed + unit.share * (computed - dtype_size(unit.stored));
  }
  /// Returns where stored elements of the image go that belong to this rank's share.
  std::byte* in_share(std::uint64_t first, std::uint64_t count) noexcept {
    const std::uint64_t in_share = first - unit.share_first;
    ARTESIAN_CHECK(first >= unit.share_first && in_share + count <= unit.share, first, count);
    return memory.data() + tail_offset() + in_share * dtype_size(unit.stored);
  }

  SlotState state() const noexcept { return slot_state(contents); }
  bool refreshing() const noexcept { return refresh.load() != Refresh::None; }
  /// Changes the state; returns the previous one.
  Refresh go(Refresh to) noexcept {
    const Refresh from = refresh.exchange(to);
    ARTESIAN_CHECK(may_go(from, to), static_cast<int>(from), static_cast<int>(to));
    return from;
  }
  /// Any thread, while the compute thread makes no other transition.
  void refresh_part() noexcept {
    if (refresh.load(std::memory_order_relaxed) != Refresh::Begun) return;
    refresh.store(Refresh::Partial, std::memory_order_relaxed);
  }

  const ResidentUnit unit;
  Contents contents = Contents::Absent;
  bool joined = false;  // all ranks' shares of a divided unit are in the slot
  std::atomic<Refresh> refresh{Refresh::None};
  std::uint32_t pins = 0;
  BufferLease memory;
  std::deque<Transfer> pieces;  // reads of the whole shard, each into its part of the slot
  std::uint64_t piece_bytes = 0;
  std::atomic<int> leases{0};
  // Only with a loader:
  DeviceLoad load;
  DeviceFence used;       // end of the computation that uses the slot
  DeviceFence refreshed;  // of a divided unit, in Compute
};

Residency::Residency(const std::vector<ResidentUnit>& units, TierStore& store, pinned::Pool& device,
                     Executor& executor, DeviceLoader* loader)
    : store_(store), device_(device), executor_(executor), loader_(loader) {
  for (const ResidentUnit& unit : units) {
    auto slot = std::make_unique<Slot>(unit);
    const ShardOptions& shard = store.shard(unit.shard);
    ARTESIAN_CHECK(shard.bytes == slot->stored_bytes(), shard.bytes, slot->stored_bytes());
    ARTESIAN_CHECK(may_go_by(unit.route, shard.home, loader_ != nullptr),
                   static_cast<int>(unit.route), shard.name);
    ARTESIAN_CHECK(!slot->aliased() || unit.stored == unit.computed, shard.name);
    if (slot->is_cut()) {
      ARTESIAN_CHECK(!slot->aliased(), shard.name);
      ARTESIAN_CHECK(unit.image % unit.share == 0 && unit.share_first % unit.share == 0,
                     unit.share);
    }
    if (unit.route == Route::Disk) {
      slot->piece_bytes =
          std::max(shard.block_bytes, round_down(piece_bytes_max, shard.block_bytes));
      const auto count = (shard.bytes + slot->piece_bytes - 1) / slot->piece_bytes;
      slot->pieces.resize(static_cast<std::size_t>(count));
    }
    slots_.push_back(std::move(slot));
  }
}

Residency::~Residency() {
  for (const auto& slot : slots_) ARTESIAN_CHECK(slot->state() == SlotState::Absent);
}

Residency::Slot& Residency::at(std::uint32_t unit) const noexcept {
  ARTESIAN_CHECK(unit < slots_.size(), unit, slots_.size());
  return *slots_[unit];
}

SlotState Residency::state(std::uint32_t unit) const noexcept {
  return at(unit).state();
}

bool Residency::pinned(std::uint32_t unit) const noexcept {
  return at(unit).pins != 0;
}

void Residency::go(Slot& slot, SlotState to) noexcept {
  ARTESIAN_CHECK(may_go(slot.state(), to), static_cast<int>(slot.state()), static_cast<int>(to));
  switch (to) {
    case SlotState::Absent: slot.contents = Contents::Absent; break;
    case SlotState::Fetching:
      slot.contents = slot.refreshing() ? Contents::Filling : Contents::Loading;
      slot.joined = false;
      break;
    case SlotState::Live: slot.contents = Contents::Live; break;
  }
}

Result<void> Residency::start(std::uint32_t unit, aio::Priority priority) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.state() == SlotState::Absent && !slot.memory);
  ARTESIAN_CHECK(slot.pins == 0 && slot.leases == 0, slot.pins, slot.leases.load());
  if (!slot.aliased()) {
    const auto end = slot.unit.persistent ? pinned::Placement::High : pinned::Placement::Low;
    ARTESIAN_TRY(memory, device_.lease(slot.computed_bytes(), end));
    slot.memory = std::move(memory);
    ARTESIAN_CHECK(slot.memory.size() >= slot.computed_bytes(), slot.memory.size());
  }
  go(slot, SlotState::Fetching);
  const bool loads = slot.contents == Contents::Loading;
  if (loads) ARTESIAN_TRY_VOID(finish_writes(slot));
  if (loader_ != nullptr) return start_by_copy(slot, priority);
  return loads ? read_pieces(slot, priority) : Result<void>();
}

/// Waits for writes to the unit's home, as an overlapping read would be torn.
Result<void> Residency::finish_writes(const Slot& slot) noexcept {
  if (store_.shard(slot.unit.shard).home != Tier::Nvme) return {};
  const std::uint64_t begin_ns = monotonic_ns();
  auto finished = store_.finish_writes(slot.unit.shard);
  waited_since(begin_ns);
  return finished;
}

Result<void> Residency::start_by_copy(Slot& slot, aio::Priority priority) noexcept {
  if (!slot.aliased()) {
    slot.load = {};
    if (slot.contents == Contents::Filling) return loader_->advance();
    ARTESIAN_TRY_VOID(wait_for_earlier_use(slot));
    const bool cut = slot.is_cut();  // then it is expanded with the other shares
    slot.load = {.shard = slot.unit.shard,
                 .stored = slot.unit.stored,
                 .computed = cut ? slot.unit.stored : slot.unit.computed,
                 .image = cut ? slot.unit.share : slot.unit.image,
                 .target = slot.memory.data() + (cut ? slot.tail_offset() : 0),
                 .priority = priority,
                 .failed = {},
                 .loaded = {}};
    ARTESIAN_TRY_VOID(loader_->start(slot.load));
  }
  return loader_->advance();
}

/// Makes copies into the slot wait for all computation that used its former content.
Result<void> Residency::wait_for_earlier_use(const Slot& slot) noexcept {
  const std::byte* begin = slot.memory.data();
  const std::byte* end = begin + slot.memory.size();
  for (const Retired& retired : retired_) {
    if (retired.end <= begin || end <= retired.begin) continue;
    ARTESIAN_TRY_VOID(loader_->device().wait(Queue::ToDevice, retired.used));
  }
  // Retired memory within the new slot is waited for now and then forgotten.
  std::erase_if(retired_, [&](const Retired& retired) {
    return (begin <= retired.begin && retired.end <= end) || loader_->device().ready(retired.used);
  });
  return {};
}

void Residency::waited_since(std::uint64_t begin_ns) noexcept {
  const std::uint64_t end_ns = monotonic_ns();
  wait_ns_ += end_ns - begin_ns;
  if (Timeline* timeline = store_.timeline(); timeline != nullptr) {
    timeline->add_wait("parameters", begin_ns, end_ns);
  }
}

/// Makes computation wait for the copies into the slot, or into a home that is used as one.
Result<void> Residency::wait_for_copies(Slot& slot) noexcept {
  ARTESIAN_CHECK(loader_ != nullptr);
  if (!slot.aliased() && slot.contents == Contents::Loading) {
    const std::uint64_t begin_ns = monotonic_ns();
    ARTESIAN_TRY_VOID(loader_->finish(slot.load));
    waited_since(begin_ns);
  }
  if (slot.is_cut() && !slot.joined) return loader_->advance();  // it must wait for all shares
  ARTESIAN_TRY_VOID(loader_->device().wait(Queue::Compute, slot.load.loaded));
  return loader_->advance();
}

Result<void> Residency::read_pieces(Slot& slot, aio::Priority priority) noexcept {
  std::uint64_t offset = 0;
  for (Transfer& piece : slot.pieces) {
    ARTESIAN_CHECK(!piece.busy() && offset < slot.stored_bytes(), offset, slot.stored_bytes());
    const std::uint64_t length = std::min(slot.piece_bytes, slot.stored_bytes() - offset);
    store_.read(piece, slot.unit.shard, {offset, length},
                slot.lease(slot.tail_offset() + offset, length), priority);
    offset += length;
  }
  return {};
}

/// After an error that leaves the piece in flight, it may be awaited again.
Result<void> Residency::await_piece(const Slot& slot, Transfer& piece) noexcept {
  if (!piece.busy()) return {};
  const std::uint64_t begin_ns = monotonic_ns();
  auto outcome = store_.wait(piece, slot.unit.shard);
  waited_since(begin_ns);
  if (piece.ready()) piece.take_buffer().reset();
  return outcome;
}

Result<void> Residency::await_pieces(Slot& slot, std::uint64_t element_end) noexcept {
  // Elements of the shard.
  ARTESIAN_CHECK(element_end <= slot.unit.image, element_end, slot.unit.image);
  const std::uint64_t bytes = element_end * dtype_size(slot.unit.stored);
  for (std::size_t piece = 0; piece < slot.pieces.size(); ++piece) {
    if (piece * slot.piece_bytes >= bytes) break;
    ARTESIAN_TRY_VOID(await_piece(slot, slot.pieces[piece]));
  }
  return {};
}

Result<void> Residency::acquire(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.state() != SlotState::Absent);
  if (loader_ != nullptr && !slot.refreshing()) ARTESIAN_TRY_VOID(wait_for_copies(slot));
  if (slot.state() == SlotState::Fetching) {
    const bool expands = loader_ == nullptr && !slot.aliased();
    if (expands && slot.contents == Contents::Loading) ARTESIAN_TRY_VOID(load(slot));
    go(slot, SlotState::Live);
  }
  ++slot.pins;
  return {};
}

Result<void> Residency::load(Slot& slot) noexcept {
  if (slot.is_cut()) return load_share(slot);
  const std::uint64_t image = slot.unit.image;
  const std::uint64_t grain =
      store_.shard(slot.unit.shard).block_bytes / dtype_size(slot.unit.stored);
  const bool in_place = !slot.pieces.empty() && slot.unit.stored != slot.unit.computed;
  for (std::uint64_t begin = 0; begin < image;) {
    std::uint64_t end = image;
    if (in_place) {  // the next wave; once waves are shorter than a block, block by block
      end = std::max(round_down((image + begin) / 2, grain), begin + grain);
      end = std::min(end, image);
    }
    ARTESIAN_CHECK(begin < end && end <= image, begin, end, image);
    ARTESIAN_TRY_VOID(await_pieces(slot, end));
    const std::uint64_t begin_ns = monotonic_ns();
    ARTESIAN_TRY_VOID(load_wave(slot, begin, end));
    const std::uint64_t end_ns = monotonic_ns();
    cast_ns_ += end_ns - begin_ns;
    if (Timeline* timeline = store_.timeline(); timeline != nullptr) {
      timeline->add(Lane::ToDevice, store_.shard(slot.unit.shard).name, begin_ns, end_ns,
                    (end - begin) * dtype_size(slot.unit.stored));
    }
    begin = end;
  }
  if (!slot.pieces.empty() && !in_place) return {};
  bytes_to_device_ += slot.stored_bytes();
  return {};
}

Result<void> Residency::load_wave(Slot& slot, std::uint64_t begin, std::uint64_t end) noexcept {
  const ShardId shard = slot.unit.shard;
  const std::uint64_t stored = dtype_size(slot.unit.stored);
  const std::uint64_t grain = store_.shard(shard).block_bytes / stored;
  ARTESIAN_CHECK(grain != 0 && begin % grain == 0, begin, grain);  // blocks are verified as a whole
  const bool from_nvme = !slot.pieces.empty();
  const bool cast = slot.unit.stored != slot.unit.computed;
  const std::byte* source =
      from_nvme ? slot.memory.data() + slot.tail_offset() : store_.memory(shard);
  const auto load_block = [&](std::uint64_t block) {
    const std::uint64_t first = block * grain;
    const std::uint64_t count = std::min(grain, slot.unit.image - first);
    const std::byte* data = source + first * stored;
    if (from_nvme && !store_.verify(shard, block, data).has_value()) return false;
    std::byte* target = slot.memory.data() + first * dtype_size(slot.unit.computed);
    if (cast) {
      kernels::expand_streamed(data, slot.unit.stored, reinterpret_cast<float*>(target), count);
    } else if (!from_nvme) {
      std::memcpy(target, data, count * stored);
    }
    return true;
  };
  const auto bad = first_bad(executor_, begin / grain, (end + grain - 1) / grain, load_block);
  if (!bad.has_value()) return {};
  return store_.verify(shard, *bad, source + *bad * grain * stored);  // returns the full error
}

/// Reads this rank's share, in its stored dtype, to its place in the slot.
Result<void> Residency::load_share(Slot& slot) noexcept {
  const ShardId shard = slot.unit.shard;
  const std::uint64_t bytes = slot.stored_bytes();
  const std::uint64_t block_bytes = store_.shard(shard).block_bytes;
  const bool from_nvme = !slot.pieces.empty();
  ARTESIAN_TRY_VOID(await_pieces(slot, slot.unit.share));
  const std::uint64_t begin_ns = monotonic_ns();
  std::byte* const target = slot.memory.data() + slot.tail_offset();
  const auto load_block = [&](std::uint64_t block) {
    const std::uint64_t first = block * block_bytes;
    if (from_nvme) return store_.verify(shard, block, target + first).has_value();
    std::memcpy(target + first, store_.memory(shard) + first, std::min(block_bytes, bytes - first));
    return true;
  };
  const auto bad = first_bad(executor_, 0, (bytes + block_bytes - 1) / block_bytes, load_block);
  cast_ns_ += monotonic_ns() - begin_ns;
  if (bad.has_value()) {  // return the full error, so that no other rank gets the share
    return store_.verify(shard, *bad, target + *bad * block_bytes);
  }
  if (!from_nvme || slot.unit.stored != slot.unit.computed) bytes_to_device_ += bytes;
  return {};
}

bool Residency::lacks_shares(std::uint32_t unit) const noexcept {
  const Slot& slot = at(unit);
  return slot.is_cut() && slot.state() == SlotState::Live && !slot.refreshing() && !slot.joined;
}

bool Residency::is_whole(std::uint32_t unit) const noexcept {
  const Slot& slot = at(unit);
  return slot.state() == SlotState::Live && (!slot.is_cut() || slot.joined);
}

bool Residency::has_share(std::uint32_t unit) const noexcept {
  const Slot& slot = at(unit);
  return slot.state() != SlotState::Absent && !slot.refreshing() &&
         std::all_of(slot.pieces.begin(), slot.pieces.end(),
                     [](const Transfer& piece) { return !piece.busy() || piece.ready(); });
}

std::vector<std::span<std::byte>> Residency::shares(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(lacks_shares(unit), unit);
  std::vector<std::span<std::byte>> shares;
  for (std::uint64_t first = 0; first < slot.unit.image; first += slot.unit.share) {
    shares.emplace_back(slot.memory.data() + slot.share_offset(first),
                        static_cast<std::size_t>(slot.stored_bytes()));
  }
  return shares;
}

/// Waits for what has written this rank's share, which waited for all earlier use of the slot.
Result<void> Residency::order_bus(std::uint32_t unit) noexcept {
  const Slot& slot = at(unit);
  ARTESIAN_CHECK(loader_ != nullptr && lacks_shares(unit), unit);
  for (const DeviceFence fence : {slot.load.loaded, slot.refreshed}) {
    ARTESIAN_TRY_VOID(loader_->device().wait(Queue::Bus, fence));
  }
  return {};
}

/// As the loader does what it brings: the buffer through which the ends pass is the loader's.
Result<void> Residency::join_shares_there(Slot& slot) noexcept {
  if (slot.unit.stored != slot.unit.computed) {
    const std::uint64_t size = dtype_size(slot.unit.computed);
    for (std::uint64_t first = 0; first < slot.unit.image; first += slot.unit.share) {
      ARTESIAN_TRY_VOID(loader_->expand_in_place(slot.memory.data() + first * size,
                                                 slot.unit.stored, slot.unit.share));
    }
    ARTESIAN_TRY(expanded, loader_->device().record(Queue::ToDevice));
    slot.load.loaded = expanded;
  }
  return loader_->device().wait(Queue::Compute, slot.load.loaded);
}

/// Expands each share in place, all in the same waves.
Result<void> Residency::join_shares(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(lacks_shares(unit), unit);
  slot.joined = true;
  if (loader_ != nullptr) return join_shares_there(slot);
  if (slot.unit.stored == slot.unit.computed) return {};
  const std::uint64_t begin_ns = monotonic_ns();
  const std::uint64_t share = slot.unit.share;
  const std::uint64_t shares = slot.unit.image / share;
  const std::uint64_t stored = dtype_size(slot.unit.stored);
  for (std::uint64_t begin = 0; begin < share;) {
    const std::uint64_t end = std::min(
        share, std::max(round_down((share + begin) / 2, share_grain), begin + share_grain));
    // Number of pieces in each share.
    const std::uint64_t count = (end - begin + share_grain - 1) / share_grain;
    executor_.parallel_for(shares * count, 1, [&](std::uint64_t from, std::uint64_t to) {
      for (std::uint64_t block = from; block < to; ++block) {
        const std::uint64_t first = block / count * share;
        const std::uint64_t element = begin + block % count * share_grain;
        const std::byte* source = slot.memory.data() + slot.share_offset(first) + element * stored;
        std::byte* target = slot.memory.data() + (first + element) * dtype_size(slot.unit.computed);
        kernels::expand_streamed(source, slot.unit.stored, reinterpret_cast<float*>(target),
                                 std::min(share_grain, end - element));
      }
    });
    begin = end;
  }
  cast_ns_ += monotonic_ns() - begin_ns;
  return {};
}

Result<void> Residency::unpin(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.pins > 0 && slot.state() == SlotState::Live);
  --slot.pins;
  if (loader_ == nullptr) return {};
  ARTESIAN_TRY(used, loader_->device().record(Queue::Compute));
  slot.used = used;
  return loader_->advance();
}

Result<void> Residency::drop(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.pins == 0, slot.pins);
  if (slot.state() == SlotState::Absent) return {};
  for (Transfer& piece : slot.pieces) {  // all must have ended before the memory is released
    auto outcome = await_piece(slot, piece);
    if (piece.busy()) return outcome;
  }
  ARTESIAN_CHECK(slot.leases == 0, slot.leases.load());
  if (loader_ != nullptr && !slot.aliased()) {
    ARTESIAN_TRY_VOID(loader_->cancel(slot.load));
    retired_.push_back({slot.memory.data(), slot.memory.data() + slot.memory.size(), slot.used});
  }
  slot.memory.reset();
  go(slot, SlotState::Absent);
  if (slot.refresh == Refresh::Partial) slot.go(Refresh::Missed);
  return {};
}

Result<void> Residency::clear() noexcept {
  Result<void> first;
  for (std::uint32_t unit = 0; unit < slots_.size(); ++unit) {
    at(unit).pins = 0;
    auto dropped = drop(unit);
    if (!dropped.has_value() && first.has_value()) first = std::move(dropped);
  }
  return first;
}

std::byte* Residency::data(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.state() == SlotState::Live && (!slot.is_cut() || slot.joined), unit);
  return slot.aliased() ? store_.memory(slot.unit.shard) : slot.memory.data();
}

void Residency::begin_refresh(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.state() != SlotState::Fetching);  // a fetch under way would miss changes
  slot.joined = false;                                  // the other ranks' shares change, too
  slot.go(Refresh::Begun);
}

Result<void> Residency::load_missed(Slot& slot) noexcept {
  if (slot.state() == SlotState::Absent || slot.aliased()) return {};
  ARTESIAN_TRY_VOID(finish_writes(slot));
  ARTESIAN_TRY_VOID(read_pieces(slot, aio::Priority::Demand));
  return load(slot);
}

bool Residency::refreshes(std::uint32_t unit) const noexcept {
  return at(unit).refreshing();
}

bool Residency::follows(std::uint32_t unit) const noexcept {
  const Slot& slot = at(unit);
  return slot.aliased() || slot.state() != SlotState::Absent;
}

/// Computation must follow the copies that refreshed the slot, or a home that is used as one.
/// Acquiring a slot ensures that; slots that are used without being acquired again wait here. Other
/// slots do not wait: they may be dropped unused, and their memory then need not wait for Compute.
/// A divided unit's slot is used only once its shares have been joined.
Result<void> Residency::end_refresh(std::uint32_t unit) noexcept {
  Slot& slot = at(unit);
  const bool missed = slot.go(Refresh::None) == Refresh::Missed;
  if (loader_ == nullptr) return missed ? load_missed(slot) : Result<void>();
  ARTESIAN_TRY(copied, loader_->device().record(Queue::ToDevice));
  slot.load.loaded = copied;
  const bool ordered_first = slot.pins == 0 || slot.is_cut();
  return ordered_first ? Result<void>() : loader_->device().wait(Queue::Compute, copied);
}

void Residency::refresh(std::uint32_t unit, std::uint64_t first, std::uint64_t count,
                        const std::byte* fresh) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(slot.contents != Contents::Loading);
  ARTESIAN_CHECK(first + count <= slot.unit.image, first, count, slot.unit.image);
  if (slot.state() == SlotState::Absent || slot.aliased()) return;
  slot.refresh_part();
  if (slot.is_cut()) {
    std::memcpy(slot.in_share(first, count), fresh, count * dtype_size(slot.unit.stored));
    return;
  }
  std::byte* target = slot.memory.data() + first * dtype_size(slot.unit.computed);
  if (slot.unit.stored == slot.unit.computed) {
    std::memcpy(target, fresh, count * dtype_size(slot.unit.stored));
  } else {
    kernels::expand_streamed(fresh, slot.unit.stored, reinterpret_cast<float*>(target), count);
  }
}

Result<void> Residency::refresh_by_copy(Queue queue, std::uint32_t unit, std::uint64_t first,
                                        std::uint64_t count, const std::byte* fresh) noexcept {
  Slot& slot = at(unit);
  ARTESIAN_CHECK(loader_ != nullptr);
  ARTESIAN_CHECK(slot.contents != Contents::Loading);
  ARTESIAN_CHECK(first + count <= slot.unit.image, first, count, slot.unit.image);
  if (slot.state() == SlotState::Absent || slot.aliased()) return {};
  if (slot.is_cut()) return refresh_share_by_copy(queue, slot, first, count, fresh);
  std::byte* target = slot.memory.data() + first * dtype_size(slot.unit.computed);
  if (queue == Queue::ToDevice) {
    ARTESIAN_TRY_VOID(wait_for_earlier_use(slot));
    return loader_->copy(fresh, slot.unit.stored, target, slot.unit.computed, count);
  }
  ARTESIAN_CHECK(slot.unit.stored != slot.unit.computed);  // otherwise the home would be aliased
  return loader_->device().expand(queue, fresh, slot.unit.stored, reinterpret_cast<float*>(target),
                                  count);
}

Result<void> Residency::refresh_share_by_copy(Queue queue, Slot& slot, std::uint64_t first,
                                              std::uint64_t count,
                                              const std::byte* fresh) noexcept {
  std::byte* const target = slot.in_share(first, count);
  slot.joined = false;
  if (queue == Queue::ToDevice) {
    ARTESIAN_TRY_VOID(wait_for_earlier_use(slot));
    return loader_->copy(fresh, slot.unit.stored, target, slot.unit.stored, count);
  }
  const std::uint64_t bytes = count * dtype_size(slot.unit.stored);
  ARTESIAN_TRY_VOID(loader_->device().copy_within(queue, target, fresh, bytes));
  ARTESIAN_TRY(refreshed, loader_->device().record(queue));
  slot.refreshed = refreshed;
  return {};
}

}  // namespace artesian::tiering
