// Proves that N ranks train with the bits of one: losses, norms, skipped steps, loss scales and the
// final state are those of one rank that runs all their micro-batches, for every number of ranks,
// dtype and placement tried, tied and untied, whatever the order in which ranks reach operations.
#include <array>

#include "base/durable_folder.h"
#include "tests/support/process.h"
#include "tests/zero3/torch/ranks_harness.h"
#include "zero3/checkpoint/checkpoint_folder.h"
#include "zero3/step/agreement.h"

namespace artesian::zero3 {
namespace {

using Case = RankCase;
using Ranks = RanksHarness;

/// Homes and dtypes in turn; the rest at random.
TEST_F(Ranks, AnyNumberHasTheBitsOfOne) {
  std::uint64_t draw = 0;
  std::size_t skipped = 0;
  for (int optimizer = 0; optimizer < 3; ++optimizer) {
    for (int params = 0; params < 3; ++params) {
      for (int dtype = 0; dtype < 4; ++dtype) {
        const auto chance = [&](std::uint64_t values) {
          return static_cast<int>(random_word(71, 0, draw++) % values);
        };
        const Case each{.ranks = static_cast<std::uint32_t>(2 + (optimizer + params + dtype) % 3),
                        .optimizer = optimizer,
                        .params = params,
                        .dtype = dtype,
                        .accumulation = chance(3),
                        .head = chance(2),
                        .schedule = chance(4),
                        .stage = params == 0 && chance(2) == 0 ? chance(3) : 3,
                        .delays = chance(3) == 0 ? 1u : 0u,
                        .tight = chance(2) == 1,
                        .on_demand = chance(3) == 0};
        SCOPED_TRACE(testing::Message()
                     << each.ranks << " ranks, optimizer " << optimizer << ", params " << params
                     << ", dtype " << dtype << ", accumulation " << each.accumulation << ", head "
                     << each.head << ", schedule " << each.schedule << ", stage " << each.stage
                     << (each.tight ? ", tight" : "") << (each.on_demand ? ", on demand" : ""));
        skipped += expect_bits_of_one(each);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(skipped, 5u);  // by fp16's loss scale
}

/// The whole product, of which the test before it draws some; minutes.
TEST_F(Ranks, EveryPlaceHasTheBitsOfOne) {
  if (!test_support::soaking()) GTEST_SKIP() << "ARTESIAN_SOAK=1 asks for it";
  for (int number = 0; number < 162; ++number) {
    const int place = number / 3 % 6;  // stages 0 to 2, and 3 with parameters in three places
    const Case each{.ranks = 2 + static_cast<std::uint32_t>(number / 54),
                    .optimizer = number / 18 % 3,
                    .params = std::max(place - 3, 0),
                    .dtype = number % 3,
                    .accumulation = number / 7 % 3,
                    .head = number / 5 % 2,
                    .stage = std::min(place, 3)};
    SCOPED_TRACE(testing::Message() << number);
    expect_bits_of_one(each);
    if (HasFatalFailure()) return;
  }
}

/// The bytes between ranks, and those that each rank moves by itself, are those planned for the
/// engine's own placement: to the byte, except rows that are looked up and the few bytes of each
/// message by which ranks agree.
TEST_F(Ranks, BytesAreThosePlanned) {
  std::uint64_t draw = 0;
  std::uint64_t gathered = 0;
  std::uint64_t beside = 0;
  for (std::uint32_t ranks = 2; ranks <= 8; ++ranks) {
    for (int params = 0; params < 3; ++params) {
      const auto chance = [&](std::uint64_t values) {
        return static_cast<int>(random_word(73, 0, draw++) % values);
      };
      const Case each{.ranks = ranks,
                      .optimizer = chance(3),
                      .params = params,
                      .dtype = chance(2),
                      .accumulation = chance(2),
                      .head = chance(2),
                      .schedule = 0,
                      .tight = chance(2) == 1,
                      .on_demand = chance(3) == 0};
      SCOPED_TRACE(testing::Message()
                   << ranks << " ranks, params " << params << ", optimizer " << each.optimizer
                   << ", dtype " << each.dtype << ", head " << each.head << ", accumulation "
                   << each.accumulation << (each.tight ? ", tight" : "")
                   << (each.on_demand ? ", on demand" : ""));
      const std::uint64_t all = ranks * (std::uint64_t{1} << each.accumulation);
      LocalRanks shared(ranks);
      run_ranks(shared, [&](comm::Group& group) {
        auto& counted = static_cast<test_support::LocalGroup&>(group);
        const std::uint64_t planned = expect_as_planned(each, counted, all).parameters;
        if (group.rank() != 0) return;
        gathered += planned;
        beside += counted.beside_others();  // of gradients, in backward
      });
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(gathered, 0u);
  EXPECT_GT(beside, 0u);
}

/// Optimizers with one moment, two or none, and moments in two bytes.
TEST_F(Ranks, EveryOptimizerHasTheBitsOfOne) {
  for (const OptimizerType type :
       {OptimizerType::Sgd, OptimizerType::Adagrad, OptimizerType::RmsProp, OptimizerType::Lion,
        OptimizerType::Lamb}) {
    expect_bits_of_one({.ranks = 3, .optimizer = 2, .dtype = 1, .type = type});
  }
  expect_bits_of_one({.ranks = 2, .optimizer = 1, .dtype = 1, .moments = DType::BFloat16});
}

/// One rank's loss is infinite: all ranks skip that step.
TEST_F(Ranks, ALossThatIsNotFiniteOnOneIsSkippedByAll) {
  for (std::uint32_t bad = 0; bad < 3; ++bad) {
    const auto before = [&](OddModule& module, Engine&, std::uint64_t step, std::uint64_t rank) {
      module.infinite = step == 2 + bad && rank == bad;
    };
    std::vector<Outcome> outcomes(3);
    LocalRanks ranks(3);
    run_ranks(ranks, [&](comm::Group& group) {
      outcomes[group.rank()] = run_as({.ranks = 3, .dtype = 1}, &group, 3, before);
      if (outcomes[group.rank()].digest.empty()) ranks.leave(group.rank());
    });
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.steps.size(), scale.steps);
      for (std::uint64_t step = 0; step < scale.steps; ++step) {
        EXPECT_EQ(outcome.steps[step].overflow, step == 2 + bad) << step;
        EXPECT_EQ(outcome.steps[step].overflow_parameter,
                  outcomes[0].steps[step].overflow_parameter);
      }
      EXPECT_EQ(outcome.digest, outcomes[0].digest);
    }
  }
}

/// A block that all micro-batches leave out in one step, and rank 1's alone in others, gets the
/// gradients of the micro-batches that use it.
TEST_F(Ranks, WhatOneLeavesOutTheOthersGive) {
  const Case each{.ranks = 3, .optimizer = 1};
  const auto leaves_out = [](std::uint64_t step, std::uint64_t rank) {
    return step % 4 == 1 || (step % 2 == 0 && rank == 1);
  };
  const std::uint64_t all = 3;
  // One rank runs the micro-batches one by one, each as its own rank would.
  Outcome one;
  {
    auto made = make(each, nullptr, all);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    for (std::uint64_t step = 0; step < scale.steps; ++step) {
      for (std::uint64_t rank = 0; rank < all; ++rank) {
        made->module->leaves_out = leaves_out(step, rank);
        ASSERT_TRUE(run_micro_batches(*made->engine, micro_batches(step, all, rank, all), true));
      }
      auto result = made->engine->step();
      ASSERT_TRUE(result.has_value()) << result.error().to_string();
      one.steps.push_back(std::move(result).value());
    }
    one.digest = digest_of(*made->engine, one.steps);
    ASSERT_TRUE(made->engine->close().has_value());
  }
  LocalRanks ranks(each.ranks);
  std::vector<Outcome> outcomes(each.ranks);
  run_ranks(ranks, [&](comm::Group& group) {
    outcomes[group.rank()] = run_as(
        each, &group, all, [&](OddModule& module, Engine&, std::uint64_t step, std::uint64_t rank) {
          module.leaves_out = leaves_out(step, rank);
        });
    if (outcomes[group.rank()].digest.empty()) ranks.leave(group.rank());
  });
  for (const Outcome& outcome : outcomes) expect_same(outcome, one);
}

/// All ranks give that forward up, and continue as if it had not begun.
TEST_F(Ranks, ABatchThatOneRefusesIsRefusedByAll) {
  for (const int params : {1, 2}) {
    const Case each{.ranks = 2, .optimizer = 2, .params = params, .dtype = 1};
    std::vector<std::string> errors(2);
    const auto before = [&](OddModule& module, Engine& engine, std::uint64_t step,
                            std::uint64_t rank) {
      if (step % 3 != 1) return;
      module.refuses = rank == step % 2;
      const auto refused = engine.forward(micro_batches(step, 2, rank, 2).front().batch());
      module.refuses = false;
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
      if (rank != step % 2) errors[rank] = refused.error().message;
    };
    expect_bits_of_one(each, {}, before);
    EXPECT_EQ(errors[0], "rank 1 has refused its batch");
    EXPECT_EQ(errors[1], "rank 0 has refused its batch");
  }
}

/// Before any memory is allocated, and on all of them.
TEST_F(Ranks, WhatRanksHaveOtherwiseIsNamed) {
  const auto errors_of = [&](const std::function<void(Config&, std::uint32_t rank)>& change) {
    LocalRanks ranks(3);
    std::vector<std::string> errors(3);
    run_ranks(ranks, [&](comm::Group& group) {
      auto made =
          make({.ranks = 3}, &group, 3, [&](Config& config) { change(config, group.rank()); });
      EXPECT_FALSE(made.has_value());
      if (!made.has_value()) errors[group.rank()] = made.error().message;
    });
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_EQ(errors[0], errors[2]);
    return errors[0];
  };
  EXPECT_EQ(errors_of([](Config& config, std::uint32_t rank) {
              if (rank == 2) config.optimizer.lr = 0.5;
            }),
            "the learning rate behind 0 updates: rank 0 has 0.001, rank 2 has 0.5; give all ranks "
            "the same");
  EXPECT_EQ(errors_of([](Config& config, std::uint32_t rank) {
              config.gradient_clipping = rank == 1 ? 2.0 : 1.0;
            }),
            "gradient_clipping: rank 0 has 1, rank 1 has 2; give all ranks the same");
}

/// One machine has less memory than the others: all ranks plan with its memory.
TEST_F(Ranks, TheLeastMemoryOfAllIsWhatAllPlanWith) {
  const Case each{.ranks = 2};
  std::array<std::uint64_t, 3> pools{};  // of the device tier; with the last, all have enough
  for (const std::uint32_t poorest : {0u, 1u, 2u}) {
    LocalRanks ranks(2);
    std::array<std::uint64_t, 2> found{};
    run_ranks(ranks, [&](comm::Group& group) {
      auto made = make(each, &group, 2, [&](Config& config) {
        if (group.rank() == poorest) config.artesian.device_memory = least_device(each, config);
      });
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      found[group.rank()] = made->engine->placement().device_pool_bytes;
      ASSERT_TRUE(made->engine->close().has_value());
    });
    EXPECT_EQ(found[0], found[1]) << poorest;
    pools[poorest] = found[0];
  }
  EXPECT_EQ(pools[0], pools[1]);
  EXPECT_LT(pools[0], pools[2]);
}

/// Its gradients would be added in another order than on one rank.
TEST_F(Ranks, AParameterOfTwoGraphsIsRefused) {
  class Shared final : public Module {
   public:
    const std::vector<ParameterSpec>& parameters() const noexcept override { return parameters_; }
    const std::vector<StageSpec>& stages() const noexcept override { return stages_; }
    at::Tensor forward(std::size_t, const at::Tensor& input, const std::vector<at::Tensor>&,
                       const Batch&) override {
      return input;
    }

   private:
    const std::vector<ParameterSpec> parameters_{{.name = "w", .shape = {4}}};
    const std::vector<StageSpec> stages_{{.name = "one", .parameters = {0}, .lookup = {}},
                                         {.name = "two", .parameters = {0}, .lookup = {}}};
  };
  LocalRanks ranks(2);
  run_ranks(ranks, [&](comm::Group& group) {
    Shared module;
    const auto engine = Engine::create(module, config_of(choice_of({})), {.group = &group});
    ASSERT_FALSE(engine.has_value());
    EXPECT_EQ(engine.error().message,
              "not supported yet with 2 ranks: a parameter that the graphs of two stages have; "
              "train with one process");
  });
}

/// One rank calls step() while the others are still in the middle of their micro-batches.
TEST_F(Ranks, RanksThatDoDifferentThingsAllFail) {
  const auto act = [](Engine& engine, std::uint32_t rank, const std::vector<TokenBatch>& batches,
                      std::string& error) {
    ASSERT_TRUE(engine.forward(batches[0].batch()).has_value());
    ASSERT_TRUE(engine.backward().has_value());
    if (rank == 1) {
      const auto stepped = engine.step({.micro_batches = 1});
      ASSERT_FALSE(stepped.has_value());
      error = stepped.error().message;
    } else {
      const auto loss = engine.forward(batches[1].batch());
      ASSERT_FALSE(loss.has_value());
      error = loss.error().message;
    }
  };
  const auto errors = errors_of_two({.ranks = 2, .accumulation = 1}, 4, act);
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 0"), std::string::npos) << errors[1];
}

/// One rank evaluates where the other trains.
TEST_F(Ranks, APassThatOneRunsAloneFailsOnAll) {
  const auto act = [](Engine& engine, std::uint32_t rank, const std::vector<TokenBatch>& batches,
                      std::string& error) {
    if (rank == 0) {
      const auto output = engine.evaluate(batches[0].batch());
      ASSERT_FALSE(output.has_value());
      error = output.error().message;
    } else {
      const auto loss = engine.forward(batches[0].batch());
      ASSERT_FALSE(loss.has_value());
      error = loss.error().message;
    }
  };
  const auto errors = errors_of_two({.ranks = 2, .params = 2}, 2, act);
  EXPECT_EQ(
      errors[0],
      "ranks do different things: rank 0 is at parameters of an evaluation of step 1 behind 0 "
      "micro-batches, rank 1 at parameters of step 1 behind 0 micro-batches");
  EXPECT_EQ(errors[1],
            "ranks do different things: rank 1 is at parameters of step 1 behind 0 micro-batches, "
            "rank 0 at parameters of an evaluation of step 1 behind 0 micro-batches");
}

/// Before a share of one unit could be taken for one of the other.
TEST_F(Ranks, UnitsInAnotherOrderFailOnAll) {
  LocalRanks ranks(3);
  std::vector<std::string> errors(3);
  run_ranks(ranks, [&](comm::Group& group) {
    Agreement agreement(&group);
    const auto name_of = [](std::uint64_t unit) { return "h." + std::to_string(unit); };
    for (std::uint64_t access = 0; access < 2; ++access) {
      const std::uint64_t unit = group.rank() == 2 ? 2 * access : access;
      const auto entered = agreement.enter(5, 0, {.first = unit, .units = unit}, name_of);
      EXPECT_EQ(entered.has_value(), access == 0);
      if (!entered.has_value()) errors[group.rank()] = entered.error().message;
    }
  });
  EXPECT_EQ(errors[0], "ranks enter different units: rank 0 is at h.1, rank 2 at h.2");
  EXPECT_EQ(errors[1], "ranks enter different units: rank 1 is at h.1, rank 2 at h.2");
  EXPECT_EQ(errors[2], "ranks enter different units: rank 2 is at h.2, rank 0 at h.1");
}

/// Evaluations between steps, and between the micro-batches of one, one of them refused by a rank.
TEST_F(Ranks, EvaluationsLeaveTheBitsAlone) {
  std::array<double, 2> losses{};
  const auto before = [&](OddModule& module, Engine& engine, std::uint64_t step,
                          std::uint64_t rank) {
    module.refuses = step == 3 && rank == 1;
    const auto output = engine.evaluate(micro_batches(step, 1, 0, 1).front().batch());
    module.refuses = false;
    ASSERT_EQ(output.has_value(), step != 3 || rank != 1);
    if (step == 5) losses[rank] = output->item<double>();
  };
  for (const int params : {0, 1, 2}) {
    expect_bits_of_one({.ranks = 2, .optimizer = 2, .params = params, .dtype = 1, .tight = true},
                       {}, before);
    EXPECT_EQ(losses[0], losses[1]);
  }
}

/// A rank ends in the middle of a step: the other rank's run ends with an error that names it.
TEST_F(Ranks, ARankThatIsGoneEndsTheOthers) {
  for (const std::uint64_t gone_at : {0, 3}) {
    LocalRanks ranks(2);
    std::string error;
    run_ranks(ranks, [&](comm::Group& group) {
      auto made = make({.ranks = 2, .optimizer = 2}, &group, 2);
      if (!made.has_value()) return;
      for (std::uint64_t step = 0;; ++step) {
        if (group.rank() == 1 && step == gone_at) return ranks.leave(1);
        const auto loss =
            made->engine->forward(micro_batches(step, 2, group.rank(), 2).front().batch());
        const auto backward =
            loss.has_value() ? made->engine->backward() : Result<void>(Error(loss.error()));
        if (!backward.has_value()) {
          error = backward.error().message;
          EXPECT_EQ(backward.error().code, ErrorCode::PeerLost);
          return;
        }
        ASSERT_TRUE(made->engine->step().has_value());
      }
    });
    EXPECT_EQ(error, "rank 1 is gone");
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "left behind in the nvme paths";
  }
}

class RanksWithCheckpoints : public Ranks {
 protected:
  RanksWithCheckpoints() {
    folder_ = std::filesystem::temp_directory_path() /
              ("artesian-ranks-checkpoints-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
  }
  ~RanksWithCheckpoints() override { std::filesystem::remove_all(folder_); }

  /// Runs steps [first, last) as the rank of `group`, from the checkpoint before them, and saves
  /// after them.
  void go_on(const Case& each, comm::Group* group, std::uint64_t first, std::uint64_t last,
             std::string& digest) {
    auto made = make(each, group, all);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    Engine& engine = *made->engine;
    if (first != 0) {
      const auto loaded = engine.load_checkpoint({.directory = folder_});
      ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
      EXPECT_EQ(loaded->manifest.state.step, first);
    }
    const std::uint64_t ranks = group == nullptr ? 1 : group->ranks();
    const std::uint64_t rank = group == nullptr ? 0 : group->rank();
    for (std::uint64_t step = first; step < last; ++step) {
      ASSERT_TRUE(run_micro_batches(engine, micro_batches(step, all, rank, ranks), false));
      ASSERT_TRUE(engine.step().has_value());
    }
    const auto opened = engine.open_checkpoints({.directory = folder_});
    ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
    const auto saved = engine.save_checkpoint({});
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
    EXPECT_EQ(saved->step, last);
    std::vector<StepResult> steps(static_cast<std::size_t>(last));
    digest = digest_of(engine, steps);
    EXPECT_TRUE(engine.close().has_value());
  }

  static constexpr std::uint64_t all = 12;  // micro-batches of a step
  std::string folder_;
};

/// Each number of ranks continues from the checkpoint of another.
TEST_F(RanksWithCheckpoints, AnyNumberGoesOnWithTheBitsOfOne) {
  for (const int dtype : {1, 2}) {
    const auto case_of = [&](std::uint32_t ranks) {
      return Case{.ranks = ranks,
                  .optimizer = ranks == 2 ? 2 : 1,
                  .params = ranks == 3 ? 1 : 2,
                  .dtype = dtype};
    };
    const Outcome one = run_as(case_of(1), nullptr, all);
    std::uint64_t step = 0;
    std::string last;
    for (const std::uint32_t count : {4u, 2u, 1u, dtype == 1 ? 4u : 3u}) {
      std::vector<std::string> digests(count);
      if (count == 1) {
        go_on(case_of(1), nullptr, step, step + 2, digests[0]);
      } else {
        LocalRanks ranks(count);
        run_ranks(ranks, [&](comm::Group& group) {
          go_on(case_of(count), &group, step, step + 2, digests[group.rank()]);
          if (digests[group.rank()].empty()) ranks.leave(group.rank());
        });
      }
      for (const std::string& digest : digests) ASSERT_EQ(digest, digests.front()) << count;
      last = digests.front();
      step += 2;
    }
    ASSERT_EQ(step, scale.steps);
    EXPECT_EQ(last, one.digest);
    std::filesystem::remove_all(folder_);
  }
}

/// On one rank the name of its checksums is taken: that save fails on all ranks, and the training
/// continues.
TEST_F(RanksWithCheckpoints, ASaveThatOneCannotWriteFailsOnAll) {
  const Case each{.ranks = 2, .optimizer = 1};
  LocalRanks ranks(2);
  std::vector<std::string> errors(2);
  run_ranks(ranks, [&](comm::Group& group) {
    auto made = make(each, &group, 2);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    Engine& engine = *made->engine;
    ASSERT_TRUE(engine.open_checkpoints({.directory = folder_}).has_value());
    for (std::uint64_t step = 0; step < 3; ++step) {
      ASSERT_TRUE(run_micro_batches(engine, micro_batches(step, 2, group.rank(), 2), false));
      ASSERT_TRUE(engine.step().has_value());
      SaveRequest request;
      ASSERT_TRUE(engine.begin_checkpoint(request).has_value());
      ASSERT_TRUE(engine.finish_update().has_value());
      if (step == 1 && group.rank() == 1) {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
          const std::string folder = entry.path().parent_path().filename();  // of a draft
          if (entry.path().filename() != "rank1.safetensors" || folder[0] != '.') continue;
          std::filesystem::create_directory(entry.path().parent_path() / "rank1.sums");
        }
      }
      ASSERT_TRUE(engine.commit_checkpoint().has_value());
      const auto saved = engine.finish_checkpoint(10.0);
      EXPECT_EQ(saved.has_value(), step != 1) << step;
      if (!saved.has_value()) errors[group.rank()] = saved.error().to_string();
    }
    EXPECT_TRUE(engine.close().has_value());
  });
  EXPECT_NE(errors[1], "");
  EXPECT_NE(errors[0].find("rank 1: "), std::string::npos) << errors[0];
  const auto folder = open_system_folder(folder_);
  ASSERT_TRUE(folder.has_value());
  EXPECT_EQ(read_checkpoints(**folder)->found.size(), 2u);
}

}  // namespace
}  // namespace artesian::zero3
