#include "zero3/step/state.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/keep_for_ever.h"
#include "base/log.h"
#include "base/units.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {

using tiering::ShardId;
using tiering::ShardOptions;
using tiering::Tier;

namespace {

constexpr ShardId no_shard{~std::uint32_t{0}};

bool timed_out(const Result<void>& outcome) noexcept {
  return !outcome.has_value() && outcome.error().code == ErrorCode::Timeout;
}

}  // namespace

tiering::Verify verify_of(VerifyMode mode) noexcept {
  switch (mode) {
    case VerifyMode::Full: return tiering::Verify::Full;
    case VerifyMode::Sample: return tiering::Verify::Sample;
    case VerifyMode::Off: return tiering::Verify::Off;
  }
  return tiering::Verify::Full;
}

std::vector<ShardOptions> ModelState::list_shards(const SwapPaths& paths) {
  std::vector<ShardOptions> shards;
  const auto add = [&](ShardOptions options) {
    shards.push_back(std::move(options));
    return static_cast<ShardId>(shards.size() - 1);
  };
  const Placement& plan = placement_;
  ARTESIAN_CHECK(plan.units.size() == plan.layout.units.size(), plan.units.size());
  for (std::uint32_t unit = 0; unit < plan.layout.units.size(); ++unit) {
    const Unit& described = plan.layout.units[unit];
    const UnitPlacement& place = plan.units[unit];
    const auto array = [&](const char* kind, Tier home, std::uint64_t bytes, DType dtype) {
      return ShardOptions{.name = described.name + kind,
                          .home = home,
                          .bytes = bytes,
                          .block_bytes = plan.sub_group_of(unit) * dtype_size(dtype),
                          .volume = paths.param_volume};
    };
    param_.push_back(
        add(array(" parameters", place.param, plan.param_bytes(unit), plan.param_dtype)));
    auto& records = optimizer_.emplace_back();
    if (!described.trainable) {
      grad_.push_back(no_shard);
      continue;
    }
    grad_.push_back(add(array(" gradients", place.grad, plan.grad_bytes(unit), plan.grad_dtype)));
    for (std::uint64_t index = 0; index < plan.sub_group_count(unit); ++index) {
      records.push_back(
          add({.name = fmt::format("{} optimizer state {}", described.name, index),
               .home = plan.optimizer_home(unit, index),
               .bytes = plan.record_bytes(unit, index),
               .block_bytes = plan.sub_group_numel(unit, index) * dtype_size(plan.moment_dtype),
               .volume = paths.optimizer_volume}));
    }
  }
  ARTESIAN_CHECK(grad_.size() == param_.size() && optimizer_.size() == param_.size());
  list_inputs(paths, shards);
  return shards;
}

Result<void> ModelState::reserve_shadows(const std::vector<bool>& units) noexcept {
  std::vector<ShardOptions> shards;
  std::vector<ShardId> records;
  std::map<std::uint32_t, ShardId> saved;
  ARTESIAN_CHECK(units.size() <= param_.size(), units.size(), param_.size());
  ARTESIAN_CHECK(saved_param_.empty() && old_state_.empty());  // called once
  std::uint64_t kept = 0;                                      // bytes
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit]) continue;
    ARTESIAN_CHECK(placement_.layout.units[unit].trainable, unit);  // otherwise it has no record
    if (const std::uint64_t bytes = old_state_bytes(placement_, unit); bytes != 0) {
      ARTESIAN_CHECK(kept + bytes <= old_state_buffer_.size(), unit, kept, bytes);
      old_state_.emplace(unit, old_state_buffer_.data() + kept);
      kept += bytes;
      continue;
    }
    for (std::uint64_t index = 0; index < placement_.sub_group_count(unit); ++index) {
      ARTESIAN_CHECK(placement_.optimizer_home(unit, index) == Tier::Nvme, unit, index);
      records.push_back(optimizer(unit, index));
    }
    if (!placement_.update_reads_param(unit)) continue;
    ShardOptions shard = store_->shard(param(unit));
    shard.name += " before the update";
    shard.home = Tier::Nvme;
    shard.volume = store_->shard(optimizer(unit, 0)).volume;
    saved.emplace(unit, static_cast<ShardId>(store_->size() + shards.size()));
    shards.push_back(std::move(shard));
  }
  ARTESIAN_TRY_VOID(store_->grow(std::move(shards), records));
  saved_param_ = std::move(saved);
  return {};
}

std::byte* ModelState::old_state(std::uint32_t unit, std::uint64_t sub_group) const noexcept {
  const auto found = old_state_.find(unit);
  if (found == old_state_.end()) return nullptr;
  const std::uint64_t param =
      placement_.update_reads_param(unit) ? dtype_size(placement_.param_dtype) : 0;
  return found->second +
         sub_group * placement_.sub_group_of(unit) * (placement_.state_size(unit) + param);
}

void ModelState::list_inputs(const SwapPaths& paths, std::vector<ShardOptions>& shards) {
  const KeptInputs& inputs = placement_.inputs;
  ARTESIAN_CHECK(inputs.names.size() >= inputs.bytes.size(), inputs.names.size());
  const std::uint64_t in_memory = 4096;  // not used there, but every shard needs a block size
  for (std::size_t stage = 0; stage < inputs.bytes.size(); ++stage) {
    for (std::uint64_t index = 0; index < inputs.at_once; ++index) {
      inputs_.push_back(static_cast<ShardId>(shards.size()));
      const Tier home = inputs.home(stage, index);
      if (home == Tier::Device) continue;  // in LibTorch's memory, without a shard
      shards.push_back({.name = fmt::format("{} input {}", inputs.names[stage], index),
                        .home = home,
                        .bytes = inputs.place_bytes(stage),
                        .block_bytes = home == Tier::Nvme ? inputs.block_bytes : in_memory,
                        .volume = paths.param_volume});
    }
  }
}

Result<void> ModelState::create_pools(const ModelStateOptions& options) {
  const auto at_least_a_page = [](std::uint64_t bytes) { return bytes == 0 ? 4096 : bytes; };
  ARTESIAN_TRY(device, device_.create_arena(at_least_a_page(placement_.device_pool_bytes)));
  device_pool_ = std::move(device);
  const auto lock = options.pin_memory ? pinned::Lock::Try : pinned::Lock::Never;
  ARTESIAN_TRY(host, pinned::Pool::create({.bytes = at_least_a_page(placement_.host_pool_bytes),
                                           .lock = lock,
                                           .name = "host memory",
                                           .nodes = options.host_nodes}));
  host_ = std::move(host);
  // Memory within the budgets is taken now, rather than in the middle of the first step.
  if (!separate_device()) device_pool_->fault_in();
  host_->fault_in();
  return {};
}

/// Lists the buffers for bytes on their way to or from a separate device, by address, with
/// neighbours merged. The ring is one of them: updated parameters are copied from it to their
/// unit's slot, and state whose home is the device streams through it.
std::vector<std::span<std::byte>> ModelState::passing_buffers() const {
  std::vector<std::span<std::byte>> found;
  const auto add = [&](const std::vector<std::span<std::byte>>& buffers) {
    found.insert(found.end(), buffers.begin(), buffers.end());
  };
  add(ring_->buffers());
  add(depot_->buffers());
  add(loader_->buffers());
  add(reader_->buffers());
  std::sort(found.begin(), found.end(),
            [](const auto& one, const auto& other) { return one.data() < other.data(); });
  std::vector<std::span<std::byte>> joined;
  for (const std::span<std::byte> buffer : found) {
    if (!joined.empty() && joined.back().data() + joined.back().size() == buffer.data()) {
      joined.back() = {joined.back().data(), joined.back().size() + buffer.size()};
    } else {
      joined.push_back(buffer);
    }
  }
  return joined;
}

/// Page-locks as many buffers as the driver allows. Errors: the first refusal.
Result<void> ModelState::register_buffers() {
  Result<void> first;
  for (const std::span<std::byte> buffers : passing_buffers()) {
    auto registered = device_.register_host(buffers);
    if (!registered.has_value() && first.has_value()) first = std::move(registered);
  }
  return first;
}

/// Page-locks host memory for a separate device, so that copies run in parallel with everything
/// else. Without this copies block: a copy of gradients would hold the thread until the device has
/// computed them. The buffers are locked first, as there may be a limit; they are small, so
/// pin_memory does not apply to them.
void ModelState::register_host(const ModelStateOptions& options) {
  host_registered_ = true;  // possibly only a part, after an error
  const auto buffers = register_buffers();
  const auto all = options.pin_memory ? device_.register_host(host_->range()) : Result<void>();
  if (!all.has_value()) {
    const char* what = buffers.has_value()
                           ? ", but for the buffers that copies pass through: copies of the rest"
                           : ": copies";
    log(LogLevel::Warning, "host memory is not page-locked for " + device_.name() + what +
                               " block, and steps are slower: " + all.error().to_string());
  } else if (!buffers.has_value() && !options.pin_memory) {
    log(LogLevel::Warning,
        "the buffers that copies pass through are not page-locked for " + device_.name() +
            ": copies block, and steps are slower: " + buffers.error().to_string());
  }
}

/// Creates the buffers between the host and a device with memory of its own.
Result<void> ModelState::create_staging() {
  if (!separate_device()) return {};
  const Placement& plan = placement_;
  ARTESIAN_TRY(loader,
               tiering::DeviceLoader::create({.staging_bytes = plan.staging_bytes,
                                              .staging_count = plan.param_staging_count,
                                              .expansion_bytes = plan.expansion_bytes},
                                             device_, *store_, executor_, *device_pool_, *host_));
  loader_ = std::move(loader);
  ARTESIAN_TRY(reader, tiering::DeviceReader::create(device_, *host_, plan.staging_bytes,
                                                     plan.grad_staging_count));
  reader_ = std::move(reader);
  if (plan.grad_scratch_bytes != 0) {
    ARTESIAN_TRY(scratch, device_pool_->lease(plan.grad_scratch_bytes, pinned::Placement::High));
    grad_scratch_ = std::move(scratch);
  }
  if (plan.exchange.device_bytes() != 0) {
    ARTESIAN_TRY(buffer,
                 device_pool_->lease(plan.exchange.device_bytes(), pinned::Placement::High));
    exchange_on_device_ = std::move(buffer);
  }
  return {};
}

Result<std::unique_ptr<ModelState>> ModelState::create(ModelStateOptions options,
                                                       aio::Engine& engine, FileSystem& files,
                                                       Executor& executor) {
  tiering::Device& device = options.device != nullptr ? *options.device : tiering::host_device();
  std::unique_ptr<ModelState> state(new ModelState(executor, device));
  state->placement_ = std::move(options.placement);
  ARTESIAN_CHECK(state->placement_.separate_device == !device.host_accessible(), device.name());
  state->rank_ = options.rank;
  auto opened = state->open(options, engine, files);
  if (opened.has_value()) return state;
  auto closed = state->close();
  state->stalled_ = state->stalled_ || timed_out(opened);
  // A disk that hangs must be distinguished from one that failed: the caller then keeps the engine
  // alive.
  return std::move(timed_out(closed) ? closed : opened).error();
}

Result<void> ModelState::open(const ModelStateOptions& options, aio::Engine& engine,
                              FileSystem& files) {
  ARTESIAN_TRY_VOID(create_pools(options));
  const SwapPaths& paths = options.paths;
  tiering::TierStoreOptions store_options{.directories = paths.directories,
                                          .volumes = paths.volumes,
                                          .disks = paths.disks,
                                          .stripe_bytes = paths.stripe_bytes,
                                          .run_id = options.run_id,
                                          .rank = options.rank,
                                          .verify = options.verify,
                                          .wait_seconds = options.wait_seconds,
                                          .timeline = options.timeline};
  auto shards = list_shards(paths);
  ARTESIAN_TRY(store, tiering::TierStore::open(store_options, std::move(shards), *device_pool_,
                                               *host_, engine, files));
  store_ = std::move(store);
  directories_ = paths.directories;
  volumes_ = paths.volumes;
  param_volume_ = paths.param_volume;
  optimizer_volume_ = paths.optimizer_volume;
  log_shares();
  for (std::uint32_t volume = 0; volume < volumes_.size(); ++volume) {
    // Done while the ring's memory in the pool is still free.
    ARTESIAN_TRY_VOID(store_->probe_disk(volume, *host_));
  }
  ARTESIAN_CHECK((placement_.ring_count == 0) == (placement_.ring_item_bytes == 0));
  ARTESIAN_TRY(ring, tiering::StagingRing::create(*store_, *host_, placement_.ring_item_bytes,
                                                  placement_.ring_count, device_));
  ring_ = std::move(ring);
  if (placement_.grad_buffer_bytes != 0) {
    ARTESIAN_TRY(buffer, host_->lease(placement_.grad_buffer_bytes));
    grad_buffer_ = std::move(buffer);
  }
  if (placement_.exchange.bytes() != 0) {
    ARTESIAN_TRY(buffer, host_->lease(placement_.exchange.bytes()));
    exchange_buffer_ = std::move(buffer);
  }
  if (placement_.matrix_buffer_bytes != 0) {
    ARTESIAN_TRY(buffer, host_->lease(placement_.matrix_buffer_bytes));
    matrix_buffer_ = std::move(buffer);
  }
  if (placement_.old_state_bytes != 0) {
    ARTESIAN_TRY(buffer, host_->lease(placement_.old_state_bytes));
    old_state_buffer_ = std::move(buffer);
  }
  const KeptInputs& inputs = placement_.inputs;
  ARTESIAN_TRY(depot, tiering::Depot::create(
                          {.buffer_bytes = inputs.block_bytes, .buffer_count = inputs.buffer_count},
                          *store_, *host_, device_, executor_));
  depot_ = std::move(depot);
  ARTESIAN_TRY_VOID(create_staging());
  if (separate_device()) register_host(options);
  const std::array<std::span<std::byte>, 2> both{host_->range(), device_pool_->range()};
  // The ranges that the disk accesses.
  const auto ranges = std::span(both).first(separate_device() ? 1 : 2);
  // If the limit on locked memory refused the pool, which was logged, it refuses this as well.
  const bool limited = options.pin_memory && !host_->statistics().locked;
  if (!paths.directories.empty() && !limited) {
    static_cast<void>(engine.register_memory(ranges));
  }
  return {};
}

std::vector<tiering::PathShare> ModelState::shares(std::uint32_t volume) const {
  if (volumes_.empty()) return {};
  ARTESIAN_CHECK(volume < volumes_.size(), volume, volumes_.size());
  return store_->shares(volume);
}

void ModelState::log_shares() const {
  for (std::uint32_t volume = 0; volume < volumes_.size(); ++volume) {
    if (volumes_[volume].size() == 1) continue;
    std::string line;
    for (const tiering::PathShare& path : store_->shares(volume)) {
      char text[96];
      const int length = std::snprintf(text, sizeof text, " %.0f%%", 100 * path.share);
      if (path.speed.read_bytes_per_s > 0) {
        std::snprintf(text + length, sizeof text - static_cast<std::size_t>(length),
                      " (%.2f GB/s read, %.2f written)", path.speed.read_bytes_per_s * 1e-9,
                      path.speed.write_bytes_per_s * 1e-9);
      }
      line += (line.empty() ? "" : ", ") + directories_[path.path] + text;
    }
    log(LogLevel::Info,
        "nvme_path: each folder's share of the bytes, by the speed of its disk: " + line);
  }
}

std::vector<SwapPathUse> ModelState::path_use() const {
  std::vector<SwapPathUse> use;
  const auto& bytes = store_->path_bytes();
  ARTESIAN_CHECK(bytes.size() == directories_.size(), bytes.size(), directories_.size());
  for (std::size_t path = 0; path < directories_.size(); ++path) {
    use.push_back({.directory = directories_[path],
                   .bytes_read = bytes[path].read,
                   .bytes_written = bytes[path].written});
  }
  return use;
}

ModelState::~ModelState() {
  if (!stalled_) {
    if (host_registered_) device_.unregister_host(host_->range());
    return;
  }
  grad_scratch_.abandon();
  keep_for_ever(std::move(reader_));
  keep_for_ever(std::move(loader_));
  keep_for_ever(std::move(ring_));
  keep_for_ever(std::move(depot_));
  keep_for_ever(std::move(store_));
  keep_for_ever(std::move(host_));
  keep_for_ever(std::move(device_pool_));
}

Result<void> ModelState::close() noexcept {
  auto drained = ring_ ? ring_->finish() : Result<void>();
  auto emptied = depot_ ? depot_->finish() : Result<void>();
  auto closed = store_ ? store_->close() : Result<void>();
  auto passed = device_.finish_all();
  stalled_ = timed_out(drained) || timed_out(emptied) || timed_out(closed) || timed_out(passed);
  for (auto* outcome : {&closed, &passed}) {  // the errors that the caller must see first
    if (timed_out(*outcome)) return std::move(*outcome);
  }
  if (!drained.has_value()) return drained;
  if (!emptied.has_value()) return emptied;
  if (!passed.has_value()) return passed;
  return closed;
}

std::vector<tiering::ResidentUnit> ModelState::resident_units() const {
  std::vector<tiering::ResidentUnit> units;
  for (std::uint32_t unit = 0; unit < placement_.layout.units.size(); ++unit) {
    const Unit& described = placement_.layout.units[unit];
    const bool cut = placement_.params_cut && described.is_cut();
    units.push_back({.shard = param(unit),
                     .stored = placement_.param_dtype,
                     .computed = placement_.units[unit].computed,
                     .route = placement_.units[unit].gather,
                     .image = described.image,
                     .share = cut ? described.share : 0,
                     .share_first = cut ? share_begin(unit) : 0,
                     .persistent = described.persistent});
  }
  return units;
}

}  // namespace artesian::zero3
