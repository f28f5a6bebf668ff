// The tiers of a small model for tests: everything on NVMe (a directory of its own, thread-pool
// engine) but the gradients, whose home the test chooses.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "aio/threads.h"
#include "tests/support/backwards_executor.h"
#include "tests/support/temporary_directory.h"
#include "tests/zero3/small_model.h"
#include "zero3/config/config.h"
#include "zero3/plan/make_placement.h"
#include "zero3/step/optimizer.h"
#include "zero3/step/state.h"

namespace artesian::zero3 {

struct TierOptions {
  DType dtype = DType::Float32;
  DType compute = DType::Float32;
  tiering::Tier grad = tiering::Tier::Host;
  std::uint64_t sub_group = 2048;                        // elements
  std::uint64_t device_bytes = std::uint64_t{64} << 20;  // budget
  std::uint64_t host_bytes = std::uint64_t{64} << 20;
  Offload home = Offload::Nvme;  // of parameters and optimizer state
  bool spare_memory_holds_state = false;
  int stage = 3;  // below, parameters are on the device
  std::uint64_t ranks = 1;
  bool split_master = true;
  OptimizerConfig optimizer{};
  DType moments = DType::Float32;
};

/// Decides where everything lives: by default on NVMe, in `directory`, except gradients.
inline Placement place(const SmallModel& model, const TierOptions& options,
                       const std::string& directory) {
  Config config;
  config.param_dtype = config.grad_accum_dtype = options.dtype;
  config.zero.stage = options.stage;
  config.optimizer = options.optimizer;
  config.artesian.moments = options.moments;
  const Offload param_home = options.stage == 3 ? options.home : Offload::None;
  config.zero.offload_param = {.device = param_home, .nvme_paths = {directory}, .max_in_cpu = 0};
  config.zero.offload_optimizer = {.device = options.home, .nvme_paths = {directory}};
  config.zero.param_persistence_threshold = 0;
  config.zero.sub_group_size = options.sub_group;
  Placement placement = make_placement({.parameters = &model.parameters,
                                        .stages = &model.stages,
                                        .config = &config,
                                        .compute_dtype = options.compute,
                                        .device_bytes = options.device_bytes,
                                        .host_bytes = options.host_bytes,
                                        .ranks = options.ranks,
                                        .split_master = options.split_master,
                                        .spare_device = false})
                            .value();
  for (UnitPlacement& unit : placement.units) {
    unit.grad = options.grad;
    if (!options.spare_memory_holds_state) unit.optimizer_homes.clear();
  }
  if (options.grad == tiering::Tier::Nvme) {
    placement.grad_buffer_bytes = placement.largest_stage_grad_bytes();
    placement.host_pool_bytes += placement.grad_buffer_bytes;
  }
  return placement;
}

inline ModelStateOptions state_options(Placement placement, const std::string& directory) {
  ModelStateOptions options;
  options.placement = with_routes(std::move(placement));
  options.paths = resolve_swap_paths({directory}, {directory}).value();
  options.run_id = 1;
  options.pin_memory = false;
  return options;
}

inline std::unique_ptr<tiering::Residency> residency_of(ModelState& state, Executor& executor) {
  return std::make_unique<tiering::Residency>(state.resident_units(), state.store(),
                                              state.device_pool(), executor);
}

class Tiers {
  test_support::TemporaryDirectory directory_;  // first, so that they outlive what uses them
  test_support::BackwardsExecutor executor_;
  std::unique_ptr<aio::Engine> engine_;
  bool closed_ = false;

 public:
  /// `engine`: null for the threads engine.
  Tiers(SmallModel described, const TierOptions& options,
        std::unique_ptr<aio::Engine> engine = nullptr)
      : engine_(std::move(engine)), model(std::move(described)) {
    if (!engine_) engine_ = aio::make_threads({.block_size = 64 << 10, .queue_depth = 4}).value();
    state = ModelState::create(
                state_options(place(model, options, directory_.path()), directory_.path()),
                *engine_, system_files(), executor_)
                .value();
    residency = residency_of(*state, executor_);
  }
  ~Tiers() {
    if (closed_) return;
    EXPECT_TRUE(residency->clear().has_value());
    EXPECT_TRUE(state->close().has_value());
  }
  /// The test has cleared and closed them itself.
  void forget() { closed_ = true; }
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  const std::string& directory() const { return directory_.path(); }
  const Layout& layout() const { return state->layout(); }

  const SmallModel model;
  std::unique_ptr<ModelState> state;
  std::unique_ptr<tiering::Residency> residency;
};

}  // namespace artesian::zero3
