// A trainer with its own model, data and loop that keeps the model's state on NVMe. The model, a
// chain of residual blocks, classifies points on five spirals. Its state takes 30 MB; the engine
// gets 5 MiB of device memory and 8 MiB of host memory.
//
// Usage: own_trainer [DEEPSPEED_CONFIG [STEPS [CHECKPOINTS]]]
//
// With a folder for checkpoints it saves there at the end, and resumes from a checkpoint that it
// finds there. The total number of steps and the bits are the same, since LibTorch's generator,
// which draws the points, is part of a checkpoint.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <zero3/torch/engine.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace {

using namespace artesian;

constexpr std::int64_t classes = 5;
constexpr std::int64_t features = 64;  // sines of the two coordinates
constexpr std::int64_t width = 512;
constexpr std::int64_t blocks = 8;

/// The model, in the engine's terms: parameters, and stages that use them. The engine gathers a
/// stage's parameters just before its forward and its backward, and keeps them only as long as that
/// pays off.
class SpiralClassifier final : public zero3::Module {
 public:
  SpiralClassifier() {
    const auto weights = [&](const std::string& name, std::int64_t out, std::int64_t in) {
      const auto first = static_cast<std::uint32_t>(parameters_.size());
      const double deviation = 0.5 / std::sqrt(static_cast<double>(in));
      parameters_.push_back(
          {.name = name + ".weight", .shape = {out, in}, .standard_deviation = deviation});
      parameters_.push_back(
          {.name = name + ".bias", .shape = {out}, .initial = zero3::Initial::Zeros});
      stages_.push_back({.name = name, .parameters = {first, first + 1}, .lookup = {}});
    };
    weights("in", width, features);
    for (std::int64_t block = 0; block < blocks; ++block) {
      weights("block." + std::to_string(block), width, width);
    }
    weights("out", classes, width);
  }

  const std::vector<zero3::ParameterSpec>& parameters() const noexcept override {
    return parameters_;
  }
  const std::vector<zero3::StageSpec>& stages() const noexcept override { return stages_; }

  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters,
                     const zero3::Batch& batch) override {
    // Parameters have the dtype artesian.compute_dtype, possibly 16 bit; the batch has its original
    // dtype.
    const at::Tensor in = input.to(parameters[0].scalar_type());
    const at::Tensor linear = at::linear(in, parameters[0], parameters[1]);
    if (stage == 0) return at::relu(linear);
    if (stage + 1 < stages_.size()) return in + at::relu(linear);
    if (!at::GradMode::is_enabled()) return linear.argmax(1);  // for evaluate(): the classes
    return at::cross_entropy_loss(linear.to(at::kFloat), batch.targets);
  }

 private:
  std::vector<zero3::ParameterSpec> parameters_;
  std::vector<zero3::StageSpec> stages_;
};

struct Points {
  at::Tensor input;    // [count, features]
  at::Tensor targets;  // [count], the number of the spiral
};

Points make_points(std::int64_t count) {
  const at::Tensor targets = at::randint(classes, {count}, at::kLong);
  const at::Tensor radius = at::rand({count});
  const at::Tensor angle =
      radius * 6.0 + targets * (2.0 * M_PI / classes) + at::randn({count}) * 0.1;
  const at::Tensor xy = at::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  const at::Tensor waves = at::arange(1, features / 4 + 1, at::kFloat);
  const at::Tensor phases = (xy.unsqueeze(2) * waves).flatten(1);  // [count, features / 2]
  return {at::cat({phases.sin(), phases.cos()}, 1), targets};
}

/// The share of points that the model assigns to the right spiral.
Result<double> accuracy(zero3::Engine& engine, const Points& points) {
  ARTESIAN_TRY(classified, engine.evaluate({points.input, points.targets}));
  return (classified == points.targets).to(at::kDouble).mean().item<double>();
}

/// Fills the engine from a checkpoint, or with random weights. Returns the steps done so far.
Result<int> begin(zero3::Engine& engine, const SpiralClassifier& model,
                  const std::string& checkpoints) {
  if (!checkpoints.empty()) {
    ARTESIAN_TRY_VOID(engine.open_checkpoints({.directory = checkpoints, .keep = 1}));
    if (!engine.checkpoints().found().latest.empty()) {
      ARTESIAN_TRY(loaded, engine.load_checkpoint({.directory = checkpoints}));
      std::printf("goes on from %s\n", loaded.tag.c_str());
      return static_cast<int>(loaded.manifest.state.step);
    }
  }
  zero3::RandomWeights weights(model.parameters(), /*seed=*/1);
  ARTESIAN_TRY_VOID(engine.initialize(weights));  // written directly to their homes on NVMe
  return 0;
}

Result<void> train(const std::string& config_path, int steps, const std::string& checkpoints) {
  at::manual_seed(1);
  const Points held_out = make_points(500);
  SpiralClassifier model;
  ARTESIAN_TRY(config, zero3::read_config(config_path, {}));
  ARTESIAN_TRY(engine, zero3::Engine::create(model, config, {}));
  ARTESIAN_TRY(done, begin(*engine, model, checkpoints));

  const auto samples = static_cast<std::int64_t>(config.micro_batch_size);
  double first_loss = 0.0;
  double last_loss = 0.0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  const auto count = [&](const std::optional<zero3::StepResult>& completed) {
    if (!completed.has_value()) return;
    bytes_read += completed->bytes_nvme_read;
    bytes_written += completed->bytes_nvme_write;
  };
  for (int step = done + 1; step <= steps; ++step) {
    for (std::uint64_t micro = 0; micro < config.accumulation_steps; ++micro) {
      const Points points = make_points(samples);
      ARTESIAN_TRY(loss, engine->forward({points.input, points.targets}));
      if (step == done + 1 && micro == 0) first_loss = loss;
      ARTESIAN_TRY_VOID(engine->backward());
    }
    count(engine->take_completed());  // the previous step, whose update this forward has completed
    ARTESIAN_TRY(result, engine->step());
    last_loss = result.loss;
    if (step % 10 != 0 && step != steps) continue;
    ARTESIAN_TRY(share, accuracy(*engine, held_out));
    std::printf("step %3d  loss %.4f  accuracy %.3f  %.2f s a step\n", step, result.loss, share,
                result.step_s);
  }
  ARTESIAN_TRY_VOID(engine->finish_update());
  count(engine->take_completed());
  std::printf("loss %.4f -> %.4f, NVMe read %.1f MB, written %.1f MB\n", first_loss, last_loss,
              static_cast<double>(bytes_read) * 1e-6, static_cast<double>(bytes_written) * 1e-6);
  if (!checkpoints.empty()) {
    ARTESIAN_TRY(saved, engine->save_checkpoint({}));
    std::printf("saved %s\n", saved.tag.c_str());
  }
  return engine->close();  // leaves nothing else on the disk
}

}  // namespace

int main(int argc, char** argv) {
  const auto outcome = train(argc > 1 ? argv[1] : "ds_config.json",
                             argc > 2 ? std::atoi(argv[2]) : 60, argc > 3 ? argv[3] : "");
  if (outcome.has_value()) return 0;
  std::fprintf(stderr, "own_trainer: error: %s\n", outcome.error().to_string().c_str());
  return 1;
}
