// ModelState: the tiers of one run, set up according to its placement: pools, swap files, staging
// ring, and the shards of every unit. It knows the purpose of each shard, but no tensors.
//
// Shards of a unit: one for its parameters, one for its gradients, and one record per sub-group for
// its optimizer state: [average | squares | master], contiguous, so that a sub-group is one
// sequential transfer: Note [Records]. The record holds the part of the master weights that the
// parameters do not: all of it, the low halves, or, with fp32 parameters, nothing. In all shards,
// one checksum covers one array of a sub-group.
//
// Note [Records]: a record's blocks are its arrays, all of one length except the last. Moments are
// fp32, beside fp32 master weights or their low halves; or, with artesian.moments, bf16, beside low
// halves or nothing.
//
// A frozen unit has only parameters. There is also a shard for each input that checkpointing keeps
// in a tier.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/executor.h"
#include "base/timeline.h"
#include "pinned/pool.h"
#include "tiering/depot.h"
#include "tiering/device_loader.h"
#include "tiering/device_reader.h"
#include "tiering/residency.h"
#include "tiering/staging_ring.h"
#include "tiering/tier_store.h"
#include "zero3/plan/placement.h"
#include "zero3/step/swap_paths.h"

namespace artesian::zero3 {

tiering::Verify verify_of(VerifyMode mode) noexcept;

struct ModelStateOptions {
  Placement placement;
  SwapPaths paths;  // folders for parameters, spilled gradients and optimizer state on NVMe
  std::uint64_t run_id = 0;
  std::uint32_t rank = 0;  // the rank that owns these shares
  tiering::Verify verify = tiering::Verify::Full;
  // whether to page-lock; buffers of a separate device are always page-locked
  bool pin_memory = true;
  double wait_seconds = 60.0;         // deadline of every wait for the disk
  Timeline* timeline = nullptr;       // receives the disk's spans; may be null
  tiering::Device* device = nullptr;  // must outlive the state; null: the CPU
  pinned::NodePolicy host_nodes{};    // nodes for the host tier: tiering/host_nodes.h
};

class ModelState {
 public:
  /// Reserves everything. Engine, file system and executor must outlive the state.
  /// Errors: those of TierStore::open and Pool::create.
  static Result<std::unique_ptr<ModelState>> create(ModelStateOptions options, aio::Engine& engine,
                                                    FileSystem& files, Executor& executor);
  /// Leaks memory that a disk which does not answer may still write to.
  ~ModelState();
  /// Drains and removes the swap files. Errors: Io; Timeout, after which the engine, the executor
  /// and all other owners of transfers in flight must not be destroyed either.
  Result<void> close() noexcept;

  const Placement& placement() const noexcept { return placement_; }
  const Layout& layout() const noexcept { return placement_.layout; }
  std::uint32_t rank() const noexcept { return rank_; }
  /// Index in a unit's image at which this rank's share begins.
  std::uint64_t share_begin(std::uint32_t unit) const noexcept {
    return layout().units[unit].share_begin(rank_);
  }
  tiering::TierStore& store() noexcept { return *store_; }
  pinned::Pool& device_pool() noexcept { return *device_pool_; }
  pinned::Pool& host_pool() noexcept { return *host_; }
  Executor& executor() noexcept { return executor_; }
  tiering::ShardId param(std::uint32_t unit) const noexcept {
    ARTESIAN_CHECK(unit < param_.size(), unit, param_.size());
    return param_[unit];
  }
  /// The shard of a trainable unit's gradient; optimizer(), too, is only for trainable units.
  tiering::ShardId grad(std::uint32_t unit) const noexcept {
    ARTESIAN_CHECK(unit < grad_.size() && layout().units[unit].trainable, unit);
    return grad_[unit];
  }
  tiering::ShardId optimizer(std::uint32_t unit, std::uint64_t sub_group) const noexcept {
    ARTESIAN_CHECK(sub_group < optimizer_[unit].size(), unit, sub_group);
    return optimizer_[unit][static_cast<std::size_t>(sub_group)];
  }
  /// Reserves what is needed to roll back an update of these units. If all of a unit's records are
  /// on NVMe: a shadow for each record and, if the update changes the parameters in place, a shard
  /// for their old values. For other units: memory. Call it once. Errors: Io, NoSpace.
  Result<void> reserve_shadows(const std::vector<bool>& units) noexcept;
  /// The shard for old parameters; only for units that have one.
  bool saves_param(std::uint32_t unit) const noexcept { return saved_param_.contains(unit); }
  tiering::ShardId saved_param(std::uint32_t unit) const noexcept { return saved_param_.at(unit); }
  /// Memory for the old state of a sub-group: the arrays of its record and, if the update changes
  /// them in place, its parameters, one after the other; null if there is none.
  std::byte* old_state(std::uint32_t unit, std::uint64_t sub_group) const noexcept;
  bool keeps_old_state(std::uint32_t unit) const noexcept { return old_state_.contains(unit); }
  /// The shard of a stage's input that is kept in a tier: placement().inputs tells whether it is.
  tiering::ShardId input(std::size_t stage, std::uint64_t micro_batch) const noexcept {
    return inputs_[static_cast<std::size_t>(placement_.inputs.place(stage, micro_batch))];
  }
  /// The depot that moves these inputs.
  tiering::Depot& depot() noexcept { return *depot_; }
  tiering::Device& device() noexcept { return device_; }
  /// True if the host cannot access the device's memory; then there are a loader and a reader. The
  /// placement's routes depend on it.
  bool separate_device() const noexcept { return placement_.separate_device; }
  tiering::DeviceLoader* loader() noexcept { return loader_.get(); }
  tiering::DeviceReader& reader() noexcept {
    ARTESIAN_CHECK(reader_ != nullptr);  // exists with a separate device
    return *reader_;
  }
  /// Device memory for gradient kernels; empty if no gradient is there.
  std::span<std::byte> grad_scratch() const noexcept {
    return {grad_scratch_.data(), static_cast<std::size_t>(grad_scratch_.size())};
  }
  /// Buffer for the matrix that is updated as a whole; empty if there is none.
  std::span<std::byte> matrix_buffer() const noexcept {
    return {matrix_buffer_.data(), static_cast<std::size_t>(matrix_buffer_.size())};
  }
  /// Buffers of placement().exchange; empty with one rank.
  std::span<std::byte> exchange_buffer() const noexcept {
    return {exchange_buffer_.data(), static_cast<std::size_t>(exchange_buffer_.size())};
  }
  /// The same in device memory; empty unless gradients pass from device to device.
  std::span<std::byte> exchange_on_device() const noexcept {
    return {exchange_on_device_.data(), static_cast<std::size_t>(exchange_on_device_.size())};
  }
  /// Buffer for spilled gradients of one stage at a time; empty if none spill.
  std::span<std::byte> grad_buffer() const noexcept {
    return {grad_buffer_.data(), static_cast<std::size_t>(grad_buffer_.size())};
  }
  /// The gathered form of the units, for a Residency over store(), device_pool() and loader().
  std::vector<tiering::ResidentUnit> resident_units() const;
  tiering::StagingRing& ring() noexcept { return *ring_; }
  /// The disk below each folder of swap files; its speed is known if shards use it.
  const std::vector<tiering::PathDisk>& disks() const noexcept { return store_->disks(); }
  /// How the bytes of parameters, or of the optimizer's records, are divided over the folders;
  /// empty without folders.
  std::vector<tiering::PathShare> param_shares() const { return shares(param_volume_); }
  std::vector<tiering::PathShare> optimizer_shares() const { return shares(optimizer_volume_); }
  std::size_t path_count() const noexcept { return directories_.size(); }
  /// Returns the use of each folder of swap files since the start, in the order of the options.
  std::vector<SwapPathUse> path_use() const;

 private:
  ModelState(Executor& executor, tiering::Device& device) noexcept
      : executor_(executor), device_(device) {}
  std::vector<tiering::ShardOptions> list_shards(const SwapPaths& paths);
  void list_inputs(const SwapPaths& paths, std::vector<tiering::ShardOptions>& shards);
  Result<void> create_pools(const ModelStateOptions& options);
  std::vector<tiering::PathShare> shares(std::uint32_t volume) const;
  void log_shares() const;
  std::vector<std::span<std::byte>> passing_buffers() const;
  Result<void> register_buffers();
  void register_host(const ModelStateOptions& options);
  Result<void> create_staging();
  Result<void> open(const ModelStateOptions& options, aio::Engine& engine, FileSystem& files);

  Placement placement_;
  std::uint32_t rank_ = 0;
  Executor& executor_;
  tiering::Device& device_;
  std::unique_ptr<pinned::Pool> device_pool_;
  std::unique_ptr<pinned::Pool> host_;
  bool host_registered_ = false;  // the host tier is registered with the device
  std::unique_ptr<tiering::TierStore> store_;
  std::unique_ptr<tiering::StagingRing> ring_;
  std::unique_ptr<tiering::Depot> depot_;
  std::unique_ptr<tiering::DeviceLoader> loader_;
  std::unique_ptr<tiering::DeviceReader> reader_;
  BufferLease grad_scratch_;
  BufferLease grad_buffer_;
  BufferLease old_state_buffer_;
  BufferLease exchange_buffer_;
  BufferLease exchange_on_device_;
  BufferLease matrix_buffer_;
  bool stalled_ = false;  // close() has reached its deadline
  std::vector<std::string> directories_;
  std::vector<std::vector<std::uint32_t>> volumes_;
  std::uint32_t param_volume_ = 0;
  std::uint32_t optimizer_volume_ = 0;
  std::vector<tiering::ShardId> param_;
  std::vector<tiering::ShardId> grad_;
  std::vector<std::vector<tiering::ShardId>> optimizer_;
  std::map<std::uint32_t, tiering::ShardId> saved_param_;  // by unit: shard of its old parameters
  std::map<std::uint32_t, std::byte*>
      old_state_;                         // by unit: address of its old state in the buffer
  std::vector<tiering::ShardId> inputs_;  // one for each kept input
};

}  // namespace artesian::zero3
