// Proves that N ranks with devices of their own train with the bits of one rank on the CPU, whether
// bytes pass between them through host memory or from device to device; that the bytes are those
// planned; and that a device which waits for a rank that is gone ends at the deadline.
#include "tests/zero3/torch/ranks_harness.h"

namespace artesian::zero3 {
namespace {

using Case = RankCase;
using RanksOnDevices = RanksHarness;

/// Each rank has a device with memory of its own, which computes late, early or at random; bytes
/// pass between ranks from device to device, or through host memory. One rank computes on the CPU.
TEST_F(RanksOnDevices, WithDevicesOfTheirOwnHaveTheBitsOfTheCpu) {
  std::uint64_t draw = 0;
  std::size_t skipped = 0;
  for (std::uint32_t ranks = 2; ranks <= 3; ++ranks) {
    for (int optimizer = 0; optimizer < 3; ++optimizer) {
      for (int params = 0; params < 2; ++params) {
        for (int dtype = 0; dtype < 4; ++dtype) {
          const auto chance = [&](std::uint64_t values) {
            return static_cast<int>(random_word(72, 0, draw++) % values);
          };
          const Case each{.ranks = ranks,
                          .optimizer = optimizer,
                          .params = params,
                          .dtype = dtype,
                          .accumulation = chance(3),
                          .head = chance(2),
                          .schedule = chance(4),
                          .stage = params == 0 ? chance(4) : 3,
                          .device = static_cast<SeparateDevice::Order>(chance(3)),
                          .joined = (optimizer + params + dtype) % 2 == 0};
          SCOPED_TRACE(testing::Message()
                       << ranks << " ranks, optimizer " << optimizer << ", params " << params
                       << ", dtype " << dtype << ", accumulation " << each.accumulation << ", head "
                       << each.head << ", schedule " << each.schedule << ", stage " << each.stage
                       << ", order " << static_cast<int>(*each.device)
                       << (each.joined ? ", joined" : ""));
          skipped += expect_bits_of_one(each);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(skipped, 5u);  // by fp16's loss scale
  EXPECT_GT(updated_there_, 0);
}

/// Ranks that divide the parameters gather a unit's into whatever slot is free.
TEST_F(RanksOnDevices, GatherParametersIntoSlotsThatOthersHaveLeft) {
  for (int dtype = 0; dtype < 4; ++dtype) {
    const Case each{.ranks = 2 + static_cast<std::uint32_t>(dtype) % 2,
                    .optimizer = 1 + dtype % 2,
                    .params = 1 + dtype / 2,
                    .dtype = dtype,
                    .accumulation = dtype % 2,
                    .head = 1,
                    .tight = true,
                    .on_demand = dtype == 2,
                    .device = static_cast<SeparateDevice::Order>(dtype % 3),
                    .joined = true};
    SCOPED_TRACE(testing::Message() << "dtype " << dtype);
    expect_bits_of_one(each);
    if (HasFatalFailure()) return;
  }
}

/// Gradients that are sent once a step, as the host has held them, or in a narrower type, pass from
/// device to device with the bits that they have through host memory.
TEST_F(RanksOnDevices, SendHeldAndNarrowedGradientsFromDeviceToDevice) {
  for (int choice = 0; choice < 6; ++choice) {
    const bool fast = choice % 3 != 2;
    const Case on_host{.ranks = 2 + static_cast<std::uint32_t>(choice) % 2,
                       .optimizer = choice % 3,
                       .params = choice / 2,
                       .dtype = choice % 3 == 1 ? 1 : 0,
                       .accumulation = fast ? 1 : choice / 3,
                       .head = choice / 3,
                       .fast = fast,
                       .sent = choice % 3 == 1 ? std::nullopt : std::optional(DType::BFloat16)};
    Case there = on_host;
    there.device = static_cast<SeparateDevice::Order>(choice % 3);
    there.joined = true;
    SCOPED_TRACE(testing::Message() << "choice " << choice);
    expect_same(run_all(there), run_all(on_host));
  }
}

/// From device to device, too, the bytes between ranks are those planned.
TEST_F(RanksOnDevices, BytesBetweenDevicesAreThosePlanned) {
  for (std::uint32_t ranks = 2; ranks <= 3; ++ranks) {
    for (int params = 0; params < 3; ++params) {
      const Case each{.ranks = ranks,
                      .optimizer = static_cast<int>(ranks) - 1,
                      .params = params,
                      .dtype = params % 2,
                      .accumulation = params,
                      .head = 1,
                      .schedule = 0,
                      .fast = params == 2,
                      .device = SeparateDevice::Order::Late,
                      .joined = true};
      SCOPED_TRACE(testing::Message() << ranks << " ranks, params " << params);
      LocalRanks shared(ranks);
      run_ranks(shared, [&](comm::Group& group) {
        expect_as_planned(each, static_cast<test_support::LocalGroup&>(group),
                          ranks * (std::uint64_t{1} << each.accumulation));
      });
    }
  }
}

/// Rank 1's device fails after the ranks have met: rank 0's waits for its bytes up to the deadline,
/// and then for nothing any more. They are those of parameters where ranks divide them, else those
/// of gradients.
TEST_F(RanksOnDevices, ADeviceThatWaitsForARankThatIsGoneEndsAtTheDeadline) {
  for (const int stage : {2, 3}) {
    const Case each{.stage = stage, .device = SeparateDevice::Order::Late, .joined = true};
    LocalRanks ranks(2, {.deadline_seconds = 0.5});
    std::vector<std::string> errors(2);
    run_ranks(ranks, [&](comm::Group& group) {
      auto made = make(each, &group, 2);
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      made->devices->fails = group.rank() == 1;
      const auto batches = micro_batches(0, 2, group.rank(), 2);
      auto trained = made->engine->forward(batches.front().batch()).and_then([&](double) {
        return made->engine->backward();
      });
      ASSERT_FALSE(trained.has_value());
      errors[group.rank()] = trained.error().to_string();
      EXPECT_EQ(trained.error().code, ErrorCode::PeerLost);
      EXPECT_EQ(made->devices->aborts, 1u);
      EXPECT_FALSE(made->engine->step().has_value());  // the run has ended
    });
    const char* const of = stage == 3 ? "waiting for parameters of" : "waiting for gradients of";
    EXPECT_NE(errors[0].find(of), std::string::npos) << errors[0];
  }
}

}  // namespace
}  // namespace artesian::zero3
