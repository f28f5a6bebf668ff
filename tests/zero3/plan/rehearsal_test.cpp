// Proves the rehearsed step. It takes no less time than its computing, its bytes at the disk's
// bandwidth, and the CPU's kernels. A faster resource never makes it longer. Without waits for a
// disk it takes its computing. Several ranks divide what their stage of ZeRO divides, and wait for
// the bus only where something needs its data.
#include "zero3/plan/rehearsal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/random.h"
#include "tests/zero3/small_model.h"
#include "zero3/plan/make_placement.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t plenty = std::uint64_t{1} << 40;

struct Case {
  SmallModel model;
  Config config;
  Placement placement;
  double share_under_backward = 0.0;
  std::uint64_t group = 1;
  std::uint64_t tokens = 32;
  bool speculative = false;
  std::uint64_t clipped_every = 0;
  std::function<void(StepEvent&)> see{};
  StepPlan plan{};
};

std::uint64_t below(std::uint64_t seed, std::uint64_t draw, std::uint64_t bound) {
  return random_word(51, seed, draw) % bound;
}

StepPlanRequest step_of(const Case& of) {
  return {.placement = &of.placement,
          .stages = &of.model.stages,
          .limits = PrefetchLimits::of(of.config.zero),
          .micro_batches = of.config.accumulation_steps,
          .group = of.group,
          .tokens = of.tokens,
          .lookup_width = 64,
          .under_backward = units_under_backward(of.placement, of.model.stages,
                                                 of.share_under_backward, of.speculative),
          .speculative = of.speculative,
          .clipped_every = of.clipped_every,
          .see = of.see};
}

StepPlan plan_of(const Case& of) {
  return plan_step(step_of(of)).value();
}

Case make_case(std::uint64_t seed, Config config, bool separate, std::uint64_t ranks = 1,
               std::uint64_t host_bytes = plenty, double share_under_backward = 0.0,
               int layers = 3) {
  Case made{.model = make_small_model(512, 64, layers, below(seed, 0, 2) == 0),
            .config = std::move(config),
            .placement = {},
            .share_under_backward = share_under_backward};
  made.placement =
      make_placement({.parameters = &made.model.parameters,
                      .stages = &made.model.stages,
                      .config = &made.config,
                      .compute_dtype = separate ? made.config.param_dtype : DType::Float32,
                      .separate_device = separate,
                      .device_bytes = plenty,
                      .host_bytes = host_bytes,
                      .ranks = ranks,
                      .spare_device = false})
          .value();
  made.plan = plan_of(made);
  return made;
}

Config config_of(Offload param, Offload optimizer, DType dtype = DType::Float16) {
  Config config;
  config.accumulation_steps = 1;
  config.param_dtype = config.grad_accum_dtype = dtype;
  config.zero.stage = 3;
  config.zero.offload_param.device = param;
  config.zero.offload_param.max_in_cpu = 0;
  config.zero.offload_optimizer.device = optimizer;
  config.zero.param_persistence_threshold = 0;
  config.zero.sub_group_size = 16384;
  return config;
}

Config random_config(std::uint64_t seed) {
  constexpr Offload homes[] = {Offload::None, Offload::Cpu, Offload::Nvme};
  Config config = config_of(homes[below(seed, 1, 3)], homes[below(seed, 2, 3)],
                            below(seed, 3, 2) == 0 ? DType::Float16 : DType::Float32);
  config.accumulation_steps = 1 + below(seed, 4, 3);
  config.zero.max_live_parameters = below(seed, 5, 2) == 0 ? 0 : plenty;
  config.zero.prefetch_bucket_size = below(seed, 6, 2) == 0 ? 0 : plenty;
  return config;
}

Case random_case(std::uint64_t seed) {
  return make_case(seed, random_config(seed), below(seed, 7, 2) == 0, 1 + 3 * below(seed, 8, 2),
                   plenty, std::array{0.0, 0.3, 0.7, 1.0}[below(seed, 9, 4)]);
}

/// A step that is simulated, and the bytes that it moves.
struct Request : StepTiming {
  StepPlanRequest step;
  Moved moved;
};

Request request_of(const Case& of, double disk = 1e8) {
  Request request;
  request.rates = {.disk_read = disk,
                   .disk_write = disk / 2,
                   .memory = 1e9,
                   .checksum = 4e9,
                   .device_memory = 1e10,
                   .to_device = 1e9,
                   .to_host = 1e9,
                   .bus = 1e9};
  request.stages.forward.assign(of.model.stages.size(), 1e-3);
  request.stages.backward.assign(of.model.stages.size(), 2e-3);
  request.step = step_of(of);
  request.moved = of.plan.moved.total();
  return request;
}

StepTime simulate(const Request& request) {
  return simulate_step({.step = request.step, .timing = request}).value().time;
}

double disk_seconds(const Request& request) {
  const Moved& moved = request.moved;
  const double read = static_cast<double>(moved.nvme_read) / request.rates.disk_read;
  const double written = static_cast<double>(moved.nvme_write) / request.rates.disk_write;
  return request.rates.disk == Disk::Shared ? read + written : std::max(read, written);
}

TEST(Rehearsal, IsNeverBelowItsBytesNorItsComputing) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case of = random_case(seed);
    for (const Disk disk : {Disk::Shared, Disk::Duplex}) {
      Request request = request_of(of);
      request.rates.disk = disk;
      const StepTime time = simulate(request);
      const double stages = static_cast<double>(of.model.stages.size());
      const double computing = 3e-3 * stages * static_cast<double>(of.config.accumulation_steps);
      EXPECT_NEAR(time.model_seconds, computing, 1e-9);
      EXPECT_GE(time.seconds, time.model_seconds * (1 - 1e-9));
      EXPECT_GE(time.seconds, disk_seconds(request) * (1 - 1e-9));
      for (const double busy : time.busy) EXPECT_GE(time.seconds, busy * (1 - 1e-9));
    }
  }
}

TEST(Rehearsal, EachDiskHasItsOwnBytes) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case of = random_case(seed);
    const MovedByKind& moved = of.plan.moved;
    Moved param = moved.param;
    param += moved.grad;
    param += moved.input;
    Request request = request_of(of);
    request.rates.param_read = request.rates.disk_read / 4;
    request.rates.param_write = request.rates.disk_write / 4;
    const StepTime one = simulate(request);
    request.rates.param_apart = true;
    const StepTime apart = simulate(request);
    EXPECT_LE(apart.seconds, one.seconds * (1 + 1e-9));
    const auto busy = [](const StepTime& time, Resource resource) {
      return time.busy[static_cast<std::size_t>(resource)];
    };
    const auto expect = [](double seconds, std::uint64_t bytes, double rate) {
      EXPECT_NEAR(seconds, static_cast<double>(bytes) / rate, 1e-6);
    };
    expect(busy(apart, Resource::ParamRead), param.nvme_read, request.rates.param_read);
    expect(busy(apart, Resource::ParamWrite), param.nvme_write, request.rates.param_write);
    expect(busy(apart, Resource::DiskRead), moved.optimizer.nvme_read, request.rates.disk_read);
    expect(busy(apart, Resource::DiskWrite), moved.optimizer.nvme_write, request.rates.disk_write);
    EXPECT_NEAR(busy(one, Resource::DiskRead),
                busy(apart, Resource::DiskRead) + busy(apart, Resource::ParamRead), 1e-6);
    EXPECT_EQ(busy(one, Resource::ParamRead), 0.0);
    request.rates.param_read = request.rates.disk_read;  // as if no rate were given for it
    request.rates.param_write = request.rates.disk_write;
    request.rates.param_apart = false;
    const double same = simulate(request_of(of)).seconds;
    EXPECT_NEAR(simulate(request).seconds, same, same * 1e-6);
  }
}

TEST(Rehearsal, AFasterResourceNeverMakesItLonger) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Case of = random_case(seed);
    const double before = simulate(request_of(of)).seconds;
    for (const auto rate :
         {&Rates::disk_read, &Rates::disk_write, &Rates::memory, &Rates::checksum,
          &Rates::device_memory, &Rates::to_device, &Rates::to_host, &Rates::bus}) {
      Request request = request_of(of);
      request.rates.*rate *= 3.0;
      EXPECT_LE(simulate(request).seconds, before * (1 + 1e-9)) << "seed " << seed;
    }
  }
}

TEST(Rehearsal, WithAnInfiniteDiskItIsWhatIsComputed) {
  for (const Offload param : {Offload::Cpu, Offload::Nvme}) {
    const Case of = make_case(1, config_of(param, Offload::Nvme), false);
    const StepTime time = simulate(request_of(of, 1e30));
    const double computed = time.busy[static_cast<std::size_t>(Resource::Compute)];
    EXPECT_NEAR(time.seconds, computed, computed * 1e-6);
    EXPECT_GT(computed, time.model_seconds);  // the optimizer's work, too
  }
}

TEST(Rehearsal, WithoutAWaitItIsTheSlowerOfDiskAndComputing) {
  // A slow disk and a ring of four items: the disk never rests while the optimizer streams.
  const Case of = make_case(1, config_of(Offload::Cpu, Offload::Nvme), false);
  const Request request = request_of(of, 1e6);
  const StepTime time = simulate(request);
  const double beside = time.seconds - disk_seconds(request);
  EXPECT_GE(beside, time.model_seconds * (1 - 1e-9));
  EXPECT_LE(beside, time.busy[static_cast<std::size_t>(Resource::Compute)] * (1 + 1e-9));
}

TEST(Rehearsal, OfAnUpdateUnderBackwardIsWhatBothWindowsHaveTimeFor) {
  // Disk and computing take about as long, so with the update under forward alone the disk rests in
  // backward.
  const Config config = config_of(Offload::Nvme, Offload::Nvme, DType::BFloat16);
  const std::uint64_t host = 3 << 20;
  const auto seconds = [&](double share) {
    const Case of = make_case(1, config, false, 1, host, share, 12);
    EXPECT_EQ(of.plan.moved.grad.nvme_read, 0u);
    Request request = request_of(of);
    request.rates.memory = 1e12;
    request.rates.checksum = 0.0;
    const double disk = disk_seconds(request);
    for (auto* stages : {&request.stages.forward, &request.stages.backward}) {
      const double part = stages == &request.stages.forward ? 1.0 / 3 : 2.0 / 3;
      stages->assign(stages->size(), disk * part / static_cast<double>(stages->size()));
    }
    const double taken = simulate(request).seconds / disk;
    EXPECT_GE(taken, 1.0);
    return taken;
  };
  const double deferred = seconds(0.0);
  const double shared = seconds(0.6);
  EXPECT_LT(shared, 0.85 * deferred);
  EXPECT_LT(shared, seconds(1.0));  // with all units updated so, forward has too little left
}

// A clipped step has written shadows, and its tried updates are repeated under the next forward;
// the step after it tries nothing. So every second step has the bytes of both.
TEST(Rehearsal, AnUpdateThatIsRolledBackIsPaidForTwice) {
  Case of = make_case(1, config_of(Offload::Nvme, Offload::Nvme, DType::BFloat16), false, 1,
                      3 << 20, 0.0, 12);
  of.speculative = true;
  const auto run = [&](double share, std::uint64_t clipped_every) {
    of.share_under_backward = share;
    of.clipped_every = clipped_every;
    of.plan = plan_of(of);
    return simulate(request_of(of)).seconds;
  };
  const double deferred = run(0.0, 0);
  const Moved all = of.plan.moved.optimizer;
  const double kept = run(0.6, 0);
  const Moved saved = of.plan.moved.optimizer;
  std::uint64_t restored = 0;
  MovedByKind tried;
  of.see = [&](StepEvent& event) {
    restored += event.kind == StepEvent::Kind::Restore ? 1 : 0;
    if (event.under_backward) tried += event.moved;
  };
  of.plan = {};
  of.clipped_every = 2;
  const StepPlan plan = plan_of(of);  // two steps to settle, of which the first tries, and two
  of.see = nullptr;
  const std::vector<bool> chosen = step_of(of).under_backward;
  const auto units = static_cast<std::uint64_t>(std::count(chosen.begin(), chosen.end(), true));
  ASSERT_GT(units, 4u);
  EXPECT_EQ(restored, 2 * units);
  EXPECT_EQ(plan.moved.optimizer.nvme_write, all.nvme_write + tried.optimizer.nvme_write / 4);
  EXPECT_EQ(saved.nvme_read, all.nvme_read);  // what is kept is read once
  EXPECT_GT(plan.moved.optimizer.nvme_read, saved.nvme_read);
  EXPECT_GT(run(0.6, 2), 1.05 * kept);
  EXPECT_NEAR(run(0.6, 1), deferred, 1e-3 * deferred);  // no step tries
}

TEST(Rehearsal, WhatFillsTheRingIsReadUnderBackward) {
  // Memory and checksums take no time: a longer ring hides its own reads, and nothing else.
  Case of = make_case(1, config_of(Offload::Cpu, Offload::Nvme), false, 1, 1 << 20);
  const auto seconds = [&](std::uint32_t items) {
    of.placement.ring_count = items;
    Request request = request_of(of, 1e7);
    request.rates.memory = 1e12;
    request.rates.checksum = 0.0;
    const StepTime time = simulate(request);
    for (const StepSpan& span : time.spans) {
      EXPECT_GE(span.begin, 0.0);
      EXPECT_LE(span.end, time.seconds * (1 + 1e-9));
    }
    return time.seconds;
  };
  const std::uint64_t item = of.placement.sub_group * of.placement.state_size_max();
  const double one = seconds(1);
  const double two = seconds(2);
  EXPECT_LT(two, one);
  EXPECT_LE(one - two, 2 * static_cast<double>(item) / 1e7);
}

TEST(Rehearsal, UnderBackwardReadsGoOnIntoWhatActivationsHaveLeft) {
  // Backward is longer than the reads that fill the ring; forward is too short for the rest.
  const Case of = make_case(1, config_of(Offload::Cpu, Offload::Nvme), false, 1, 1 << 20);
  const std::uint64_t item = of.placement.ring_item_bytes;
  const auto seconds = [&](std::uint64_t activation_bytes) {
    Request request = request_of(of, 1e7);
    request.rates.memory = 1e12;
    request.rates.checksum = 0.0;
    request.stages.backward.assign(of.model.stages.size(), 0.3);
    request.activation_bytes = activation_bytes;
    const double taken = simulate(request).seconds;
    EXPECT_GE(taken, disk_seconds(request));
    return taken;
  };
  const double none = seconds(0);
  const double read = static_cast<double>(item) / 1e7;
  EXPECT_EQ(seconds(item), none);             // half of it is too little
  EXPECT_LT(seconds(8 * item), none - read);  // several items
  EXPECT_LT(seconds(64 * item), seconds(8 * item));
}

TEST(Rehearsal, WhatHasComeIsWrittenBeforeSubGroupsInMemoryAreDone) {
  // The first units' state is in memory, and takes the cores longer than the disk takes for the
  // rest.
  Case of = make_case(2, config_of(Offload::Cpu, Offload::Nvme, DType::Float32), false, 1, 4 << 20,
                      0.0, 8);
  Request request = request_of(of, 1e9);
  request.rates.memory = 1e8;
  double in_memory = 0.0;  // seconds, at the least
  for (std::uint32_t unit = 0; unit < 4; ++unit) {
    UnitPlacement& place = of.placement.units[unit];
    ASSERT_TRUE(place.aliased());
    place.optimizer = tiering::Tier::Host;
    place.optimizer_homes.clear();
    in_memory += 2 * static_cast<double>(of.placement.optimizer_bytes(unit)) / request.rates.memory;
  }
  of.plan = plan_of(of);
  double first_write = 1e30;
  for (const StepSpan& span : simulate(request).spans) {
    if (span.resource == Resource::DiskWrite) first_write = std::min(first_write, span.begin);
  }
  EXPECT_LT(first_write, in_memory / 4);
}

TEST(UpdateTimes, AreAGroupsShareOfTheModelsWorkAndAllOfTheUpdates) {
  const StepFigure step{
      .forward = 8, .backward = 16, .disk = 12, .update_disk = 4, .update = 2, .gradients = 4};
  const UpdateTimes cpu = update_times(step, 0.25, /*separate=*/false);
  EXPECT_EQ(cpu.forward, 2.0);
  EXPECT_EQ(cpu.backward, 4.0);
  EXPECT_EQ(cpu.forward_disk, 1.0);  // half of the quarter that is not the update's
  EXPECT_EQ(cpu.backward_disk, 1.0);
  EXPECT_EQ(cpu.update_disk, 4.0);
  EXPECT_EQ(cpu.update + cpu.update_host + cpu.backward_host, 2.0);
  const UpdateTimes separate = update_times(step, 0.25, /*separate=*/true);
  EXPECT_EQ(separate.update, 0.0);
  EXPECT_EQ(separate.update_host, 2.0);
  EXPECT_EQ(separate.backward_host, 1.0);
}

TEST(Rehearsal, TheFirstMicroBatchsGradientsAreAddedToNothing) {
  for (const std::uint64_t micro_batches : {1u, 2u, 5u}) {
    Config config = config_of(Offload::Cpu, Offload::Cpu);
    config.accumulation_steps = micro_batches;
    const Case of = make_case(1, config, false);
    const Request request = request_of(of);
    double seconds = 0.0;
    for (const StepSpan& span : simulate(request).spans) {
      if (span.kind == StepEvent::Kind::Gradients) seconds += span.end - span.begin;
    }
    std::uint64_t elements = 0;
    for (const StageSpec& stage : of.model.stages) {
      for (const auto parameter : stage.parameters) {
        if (stage.lookup != parameter) elements += of.model.parameters[parameter].numel();
      }
    }
    ASSERT_GT(elements, 0u);
    // Reads fp32, and reads and writes a 16-bit sum; the first sum is not read.
    const double bytes = static_cast<double>(elements * (micro_batches * (4 + 2 + 2) - 2));
    EXPECT_NEAR(seconds, bytes / request.rates.memory, seconds * 1e-9);
  }
}

TEST(Rehearsal, GradientsThatSpillCostTheirBytes) {
  const Config config = config_of(Offload::Nvme, Offload::Nvme);
  const Case all = make_case(1, config, false);
  const Case spilled = make_case(1, config, false, 1, 256 << 10);
  EXPECT_EQ(all.plan.moved.grad.nvme_write, 0u);
  EXPECT_GT(spilled.plan.moved.grad.nvme_write, 0u);
  EXPECT_EQ(spilled.plan.moved.grad.nvme_read, spilled.plan.moved.grad.nvme_write);
  EXPECT_GT(simulate(request_of(spilled)).seconds, simulate(request_of(all)).seconds);
}

TEST(Rehearsal, GradientsThatSpillAreReadAheadAndWrittenBehind) {
  for (const bool separate : {false, true}) {
    for (const Disk disk : {Disk::Shared, Disk::Duplex}) {
      // Nothing else passes through the ring.
      Case of = make_case(1, config_of(Offload::Nvme, Offload::None), separate, 1, 256 << 10);
      ASSERT_GT(of.plan.moved.grad.nvme_read, 0u);
      ASSERT_EQ(of.plan.moved.optimizer.nvme_read, 0u);
      const auto seconds = [&](std::uint32_t items) {
        of.placement.ring_count = items;
        Request request = request_of(of);
        request.rates.disk = disk;
        request.rates.memory = 4e8;  // the kernels take about as long as the disk
        request.stages.forward.assign(of.model.stages.size(), 0.0);
        request.stages.backward.assign(of.model.stages.size(), 0.0);
        const double taken = simulate(request).seconds;
        EXPECT_GE(taken, disk_seconds(request) * (1 - 1e-9));
        return taken;
      };
      EXPECT_LT(seconds(8), 0.9 * seconds(1)) << separate;
      EXPECT_LE(seconds(8), seconds(2) * (1 + 1e-9)) << separate;
    }
  }
}

TEST(Rehearsal, GradientsThatSpillAreReadWhileOthersAreVerified) {
  // The second micro-batch reads what the first has written, and adding takes as long as reading.
  Config config = config_of(Offload::Nvme, Offload::None);
  config.accumulation_steps = 2;
  Case of = make_case(1, config, false, 1, 256 << 10);
  const auto reading = [&](std::uint32_t items) {
    of.placement.ring_count = items;
    Request request = request_of(of);
    request.rates.disk = Disk::Duplex;
    request.rates.disk_write = 1e30;
    request.rates.checksum = request.rates.disk_read;
    double busy = 0.0;
    double beside = 0.0;  // of these seconds, overlapped by work on gradients
    const StepTime time = simulate(request);
    for (const StepSpan& read : time.spans) {
      if (read.kind != StepEvent::Kind::Gradients || read.resource != Resource::DiskRead) continue;
      busy += read.end - read.begin;
      for (const StepSpan& work : time.spans) {
        if (work.kind != read.kind || work.resource != Resource::Compute) continue;
        beside += std::max(0.0, std::min(read.end, work.end) - std::max(read.begin, work.begin));
      }
    }
    EXPECT_GT(busy, 0.0);
    return beside / busy;
  };
  EXPECT_NEAR(reading(1), 0.0, 1e-9);
  EXPECT_GT(reading(8), 0.5);
}

/// Bytes of gradients that cross the bus after the last backward has been computed.
std::uint64_t reduced_last(const StepPlan& plan) {
  std::uint64_t bytes = 0;
  for (auto event = plan.events.rbegin(); event->kind != StepEvent::Kind::Compute; ++event) {
    bytes += event->moved.grad.bus;
  }
  return bytes;
}

TEST(Rehearsal, GradientsAreReducedUnderBackward) {
  // Each unit's transfer is shorter than a stage, so only the last one is waited for; on CPUs each.
  for (const bool separate : {false, true}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {  // tied and not
        SCOPED_TRACE("stage " + std::to_string(stage) + ", seed " + std::to_string(seed));
        Config config = config_of(Offload::None, Offload::None);
        config.zero.stage = stage;
        config.accumulation_steps = 1 + seed % 3;
        Case of = make_case(seed, config, separate, 8);
        of.see = [](StepEvent& event) { event.moved.param.bus = 0; };
        Request request = request_of(of);
        const StepTime time = simulate(request);
        const double bus = time.busy[static_cast<std::size_t>(Resource::Bus)];
        EXPECT_NEAR(bus, static_cast<double>(of.plan.moved.grad.bus) / request.rates.bus, 1e-9);
        const double last = static_cast<double>(reduced_last(of.plan)) / request.rates.bus;
        EXPECT_LT(last, bus / 2);
        request.rates.bus = 1e30;
        EXPECT_NEAR(time.seconds, simulate(request).seconds + (separate ? last : bus), 1e-9);
      }
    }
  }
}

TEST(Rehearsal, TheNormWaitsForGradientsOfAllRanks) {
  for (const bool separate : {false, true}) {
    for (const Offload optimizer : {Offload::None, Offload::Cpu}) {
      for (const int stage : {0, 1, 2, 3}) {
        Config config = config_of(Offload::None, optimizer);
        config.zero.stage = stage;
        const Case of = make_case(1, config, separate, 8);
        Request request = request_of(of);
        request.rates.bus = 1e6;  // it is what takes longest
        double reduced = 0.0;
        double norm = 1e30;
        for (const StepSpan& span : simulate(request).spans) {
          using Kind = StepEvent::Kind;
          if (span.kind == Kind::Norm) norm = std::min(norm, span.begin);
          if (span.kind == Kind::Gradients || span.kind == Kind::Rows)
            reduced = std::max(reduced, span.end);
        }
        EXPECT_GT(reduced, 0.0);
        EXPECT_GE(norm, reduced * (1 - 1e-9)) << "stage " << stage;
      }
    }
  }
}

/// Only computing and the bus take time.
Request of_the_bus(const Case& of) {
  Request request = request_of(of);
  for (const auto rate :
       {&Rates::memory, &Rates::device_memory, &Rates::to_device, &Rates::to_host}) {
    request.rates.*rate = 1e30;
  }
  return request;
}

TEST(Rehearsal, FreshParametersComeUnderForward) {
  // Each unit's transfer is shorter than a stage, so only the first stage waits for its own.
  for (const Offload optimizer : {Offload::None, Offload::Cpu}) {
    for (const int stage : {1, 2}) {
      for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", seed " + std::to_string(seed));
        Config config = config_of(Offload::None, optimizer);
        config.zero.stage = stage;
        Case of = make_case(seed, config, true, 8);
        std::uint64_t first = 0;
        of.see = [](StepEvent& event) { event.moved.grad.bus = 0; };
        for (const StepEvent& event : of.plan.events) {
          if (event.kind == StepEvent::Kind::Update && event.unit == 0)
            first += event.moved.param.bus;
        }
        Request request = of_the_bus(of);
        const StepTime time = simulate(request);
        const double bus = time.busy[static_cast<std::size_t>(Resource::Bus)];
        EXPECT_NEAR(bus, static_cast<double>(of.plan.moved.param.bus) / request.rates.bus, 1e-9);
        const double waits = static_cast<double>(first) / request.rates.bus;
        EXPECT_GT(waits, 0.0);
        EXPECT_LT(waits, bus / 2);
        EXPECT_NEAR(time.seconds, time.model_seconds + waits, 1e-9);
      }
    }
  }
}

TEST(Rehearsal, AStageWaitsForFreshParametersOfItsOwnUnitsAlone) {
  for (const Offload optimizer : {Offload::None, Offload::Cpu}) {
    Config config = config_of(Offload::None, optimizer);
    config.zero.stage = 1;
    Case of = make_case(1, config, true, 8);
    const auto last = static_cast<std::uint32_t>(of.placement.units.size() - 1);
    of.see = [last](StepEvent& event) {
      event.moved.grad.bus = 0;
      const bool slow = event.kind == StepEvent::Kind::Update && event.unit == last;
      event.moved.param.bus = slow ? 100'000'000 : 0;
    };
    double before = 0.0;  // end of the stages before the last
    double after = 1.0;   // its begin
    for (const StepSpan& span : simulate(of_the_bus(of)).spans) {
      if (span.kind != StepEvent::Kind::Compute) continue;
      const bool waited = span.begin > 0.05;
      if (waited) after = std::min(after, span.begin);
      if (!waited) before = std::max(before, span.end);
    }
    EXPECT_NEAR(before, 1e-3 * static_cast<double>(of.model.stages.size() - 1), 1e-9);
    EXPECT_NEAR(after, 0.1, 1e-9);
  }
}

TEST(Rehearsal, FreshParametersComeInTheOrderOfUseAsDoesWhatIsFetched) {
  // The table is fetched, since backward does not use it; units after it are kept, and are fresh.
  Config config = config_of(Offload::None, Offload::None);
  config.zero.max_reuse_distance = 100'000;
  Case of = make_case(2, config, true, 8);
  for (UnitPlacement& unit :
       of.placement.units) {  // units that the device updates wait for no host
    unit.update = tiering::Route::OnDevice;
    unit.grad = unit.optimizer = tiering::Tier::Device;
  }
  of.placement = with_routes(of.placement);
  of.placement.device_pool_bytes += std::uint64_t{1} << 30;
  of.plan = plan_of(of);
  ASSERT_NE(of.model.stages.back().parameters.back(), of.model.stages.front().lookup);  // not tied
  std::uint64_t fetched = 0;
  std::uint64_t fresh = 0;
  for (auto event = of.plan.events.rbegin(); event->kind != StepEvent::Kind::Norm; ++event) {
    if (event->kind == StepEvent::Kind::Update) fresh += event->moved.param.bus;
    if (event->kind == StepEvent::Kind::Fetch && event->unit == 0) fetched = event->moved.param.bus;
  }
  ASSERT_GT(fetched, 0u);
  ASSERT_GT(fresh, 0u);
  const Request request = of_the_bus(of);
  double begin = 1.0;
  for (const StepSpan& span : simulate(request).spans) {
    if (span.kind == StepEvent::Kind::Compute) begin = std::min(begin, span.begin);
  }
  EXPECT_NEAR(begin, static_cast<double>(fetched) / request.rates.bus, 1e-9);
}

TEST(Rehearsal, RowsComeOverTheBusAtEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::uint64_t micro_batches : {1u, 3u, 20u}) {
      for (const std::uint64_t seed : {1u, 4u}) {  // a table apart, and one that is tied
        Config config = config_of(Offload::None, Offload::None);
        config.zero.stage = stage;
        config.accumulation_steps = micro_batches;
        const Case of = make_case(seed, config, true, 8);
        const auto rows = std::find_if(
            of.plan.events.begin(), of.plan.events.end(),
            [](const StepEvent& event) { return event.kind == StepEvent::Kind::Rows; });
        ASSERT_NE(rows, of.plan.events.end());
        const std::uint64_t all = micro_batches * 32 * (8 + 64 * 4);  // tokens: id, width in fp32
        const std::uint64_t others = all / 8 * 7;
        EXPECT_EQ(rows->moved.grad.bus, others) << stage << " " << micro_batches;
      }
    }
  }
}

TEST(Rehearsal, RanksShareStateAndPayOnTheBus) {
  const Config config = config_of(Offload::Nvme, Offload::Nvme);
  const Case alone = make_case(1, config, true);
  const Case shared = make_case(1, config, true, 4);
  EXPECT_EQ(alone.plan.moved.total().bus, 0u);
  std::uint64_t elements = 0;
  for (const Unit& unit : shared.placement.layout.units) elements += unit.image;
  // Everything fits: the parts that the three others updated arrive once a step.
  EXPECT_NEAR(static_cast<double>(shared.plan.moved.param.bus),
              static_cast<double>(2 * elements / 4 * 3), 0.1 * static_cast<double>(elements));
  const std::uint64_t padding = shared.placement.units.size() * image_alignment * 12;
  const auto expect_quarter = [&](std::uint64_t part, std::uint64_t whole) {
    EXPECT_GE(part, whole / 4);
    EXPECT_LE(part, whole / 4 + padding);
  };
  expect_quarter(shared.placement.nvme_optimizer_bytes, alone.placement.nvme_optimizer_bytes);
  expect_quarter(shared.plan.moved.optimizer.nvme_write, alone.plan.moved.optimizer.nvme_write);
}

TEST(Rehearsal, StagesBelowThreeAreOne) {
  const auto of_stage = [](int stage) {
    Config config = config_of(Offload::None, Offload::None);
    config.zero.stage = stage;
    config.accumulation_steps = 3;
    return make_case(1, config, true, 8);
  };
  const Case whole = of_stage(2);
  EXPECT_GT(whole.plan.moved.grad.bus, 0u);
  EXPECT_GT(whole.plan.moved.param.bus, 0u);
  for (const int stage : {0, 1}) {
    const Case of = of_stage(stage);
    EXPECT_EQ(of.plan.moved, whole.plan.moved) << "stage " << stage;
    EXPECT_EQ(of.placement.device_pool_bytes, whole.placement.device_pool_bytes);
    EXPECT_EQ(simulate(request_of(of)).seconds, simulate(request_of(whole)).seconds);
  }
  EXPECT_LT(of_stage(3).placement.device_homes(), whole.placement.device_homes());
}

// The device adds the gradients of four micro-batches that run layer by layer, and sends the host
// one sum, as of one micro-batch. One by one the host adds four.
TEST(Rehearsal, OfASeparateDeviceAddsToTheHostsGradientsOnceAGroup) {
  Config config = config_of(Offload::Cpu, Offload::Cpu, DType::BFloat16);
  const auto busy = [&](std::uint64_t micro_batches, std::uint64_t group, Resource resource) {
    config.accumulation_steps = micro_batches;
    Case made = make_case(1, config, /*separate=*/true);
    made.group = group;
    made.tokens = 0;  // no rows
    return simulate(request_of(made)).busy[static_cast<std::size_t>(resource)];
  };
  for (const Resource resource : {Resource::ToHost, Resource::Host}) {
    EXPECT_DOUBLE_EQ(busy(4, 4, resource), busy(1, 1, resource));
    EXPECT_GT(busy(4, 1, resource), busy(1, 1, resource));
  }
  EXPECT_GT(busy(4, 4, Resource::Compute), busy(4, 1, Resource::Compute));
}

}  // namespace
}  // namespace artesian::zero3
