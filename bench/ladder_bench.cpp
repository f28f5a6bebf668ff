// One rung of the ladder (bench/ladder.py): trains a model on random tokens with the given
// schedule, and prints a JSON line for each measured step and one for the run.
//
//   ladder_bench MODEL_DIR CONFIG LENGTH WARM_UP STEPS [serial-update] [forward-alone] [one-by-one]
//     [whole-master] [slots-alone]
//
// serial-update: the update is complete before the next forward begins. forward-alone: none of it
// runs under backward. one-by-one: a forward and a backward for each micro-batch, instead of layer
// by layer. whole-master: fp32 master weights beside bf16 parameters, instead of their low halves.
// slots-alone: spare device memory is not used for homes of parameters.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/made_up_engine.h"
#include "tools/shell/process_setup.h"
#include "tools/train/made_up_tokens.h"

namespace artesian::bench {
namespace {

struct Rung {
  std::string model;
  std::string config;
  std::uint64_t length = 0;
  std::uint64_t warm_up = 0;
  std::uint64_t steps = 0;
  bool serial_update = false;
  bool forward_alone = false;
  bool one_by_one = false;
  bool whole_master = false;
  bool slots_alone = false;
};

class Run {
 public:
  Run(const Rung& rung, const models::ModelConfig& model, zero3::Engine& engine)
      : rung_(rung),
        engine_(engine),
        tokens_({.vocabulary = model.vocab_size,
                 .micro_batches = engine.config().accumulation_steps,
                 .samples = engine.config().micro_batch_size,
                 .length = rung.length}) {}

  Result<void> run() {
    for (std::uint64_t step = 0; step < rung_.warm_up + rung_.steps; ++step) {
      const std::uint64_t begin = monotonic_ns();
      ARTESIAN_TRY(loss, one_step());
      if (step < rung_.warm_up) continue;
      std::printf("{\"seconds\": %.6f, \"loss\": %.9g}\n", seconds_since(begin), loss);
      std::fflush(stdout);
    }
    return report();
  }

 private:
  Result<double> one_step() {
    const std::vector<zero3::Batch> batches = tokens_.next();
    if (rung_.one_by_one) {
      for (const zero3::Batch& batch : batches) {
        ARTESIAN_TRY_VOID(engine_.forward(batch));
        ARTESIAN_TRY_VOID(engine_.backward());
      }
    } else {
      ARTESIAN_TRY_VOID(engine_.forward_backward(batches));
    }
    ARTESIAN_TRY(result, engine_.step());
    if (result.end.has_value()) return *std::move(result.end);
    if (rung_.serial_update) ARTESIAN_TRY_VOID(engine_.finish_update());
    return result.loss;
  }

  Result<void> report() {
    ARTESIAN_TRY(digest, engine_.digest());  // completes the last step's update
    const auto last = engine_.take_completed();
    std::printf("{\"read\": %llu, \"written\": %llu, \"rss\": %llu, \"digest\": \"%s\"}\n",
                static_cast<unsigned long long>(last->bytes_nvme_read),
                static_cast<unsigned long long>(last->bytes_nvme_write),
                static_cast<unsigned long long>(last->peak_process_rss), digest.c_str());
    return {};
  }

  const Rung& rung_;
  zero3::Engine& engine_;
  tools::MadeUpTokens tokens_;
};

Result<void> measure(const Rung& rung) {
  zero3::EngineOptions options{.split_master = !rung.whole_master,
                               .spare_device = !rung.slots_alone};
  if (rung.forward_alone) options.share_under_backward = 0.0;
  ARTESIAN_TRY(made, make_engine(rung.model, rung.config, options));
  ARTESIAN_TRY_VOID(Run(rung, made.model, *made.engine).run());
  return made.engine->close();
}

}  // namespace
}  // namespace artesian::bench

int main(int argc, char** argv) {
  artesian::tools::set_up_process();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 5) {
    std::fputs("ladder_bench: got too few arguments; see bench/ladder_bench.cpp\n", stderr);
    return 2;
  }
  const auto given = [&](const char* flag) {
    return std::find(arguments.begin() + 5, arguments.end(), flag) != arguments.end();
  };
  const auto number = [&](std::size_t index) {
    return std::strtoull(arguments[index].c_str(), nullptr, 10);
  };
  artesian::zero3::track_activations();
  const auto done = artesian::bench::measure({.model = arguments[0],
                                              .config = arguments[1],
                                              .length = number(2),
                                              .warm_up = number(3),
                                              .steps = number(4),
                                              .serial_update = given("serial-update"),
                                              .forward_alone = given("forward-alone"),
                                              .one_by_one = given("one-by-one"),
                                              .whole_master = given("whole-master"),
                                              .slots_alone = given("slots-alone")});
  if (done.has_value()) return 0;
  std::fprintf(stderr, "ladder_bench: %s\n", done.error().to_string().c_str());
  return 1;
}
