#include "tools/plan/plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "base/machine.h"
#include "base/units.h"
#include "models/llama_of_size.h"
#include "tools/plan/config.h"
#include "tools/plan/measure.h"
#include "tools/plan/planner.h"
#include "tools/plan/rates.h"
#include "tools/plan/report.h"
#include "tools/plan/run_memory.h"
#include "tools/shell/output_file.h"
#include "tools/shell/process_setup.h"
#include "tools/shell/report_error.h"
#include "tools/shell/standard_output.h"
#include "zero3/torch/compute_device.h"
#include "zero3/torch/engine.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t gpus_of_a_node = 8;
constexpr std::uint64_t assumed_gpu_memory = 80'000'000'000;
constexpr std::uint64_t assumed_host_memory = 128'000'000'000;  // for one rank of a node

class PlanRun {
 public:
  explicit PlanRun(const PlanOptions& options) : options_(options) {}

  int run() {
    const auto planned = answer();
    if (!planned.has_value()) {
      std::uint64_t count = 0;
      for (const auto& parameter : parameters_) count += parameter.numel();
      return report_error("artesian", with_parameter_count(planned.error(), count), 2);
    }
    const auto measured = measure();
    const auto written = write();  // also after a failed or stopped measurement
    if (!measured.has_value() && stop_requested() == 0) {
      report_error("artesian", measured.error(), 1);
    }
    if (!written.has_value()) report_error("artesian", written.error(), 1);
    if (stop_requested() != 0) return stop_exit_code();
    return measured.has_value() && written.has_value() ? 0 : 1;
  }

 private:
  Result<void> answer() {
    const StopAtOnce here;
    ARTESIAN_TRY_VOID(prepare());
    return plan();
  }

  Result<void> prepare() {
    ARTESIAN_TRY_VOID(read_model());
    ARTESIAN_TRY_VOID(read_config());
    ARTESIAN_TRY_VOID(check_measure());
    ARTESIAN_TRY_VOID(choose_memory());
    ARTESIAN_TRY(chosen, choose_rates(options_, plan_));
    report_.rates = std::move(chosen.rates);
    for (std::string& each : chosen.notes) note(std::move(each));
    return {};
  }

  Result<void> read_model() {
    if (options_.parameters.has_value()) {
      model_ = models::llama_of_size(*options_.parameters);
      report_.shape =
          "a Llama shape: heads of 128, a block for each 128 of the hidden size, intermediate size "
          "8/3 of it, vocabulary 32000 untied; blocks as the size asks for";
    } else {
      ARTESIAN_TRY(config, naming("--model", models::read_model_config(options_.model)));
      model_ = std::move(config);
    }
    parameters_ = models::model_parameters(model_);
    stages_ = models::model_stages(model_);
    const auto positions = static_cast<std::uint64_t>(model_.positions_max);
    for (const std::string& each : model_.notes) note(each);
    plan_.length = options_.length.value_or(std::min<std::uint64_t>(positions, 1024));
    if (plan_.length <= positions) return {};
    return make_error(ErrorCode::Invalid,
                      fmt::format("--seq-len: got {}, allowed 1 to {}, {}", plan_.length, positions,
                                  model_.positions_limit));
  }

  Result<void> read_config() {
    plan_.gpu = options_.gpus.has_value();
    report_.gpus = options_.gpus.value_or(0);
    report_.nodes = options_.nodes;
    plan_.ranks = options_.ranks_of_node() * options_.nodes;
    if (report_.gpus > gpus_of_a_node && options_.nodes == 1) {
      note(fmt::format(
          "--gpus: got {}, planned as one node, with the bus of one; nodes have {} as "
          "a rule: --gpus 8 --nodes {}",
          report_.gpus, gpus_of_a_node, (report_.gpus + gpus_of_a_node - 1) / gpus_of_a_node));
    }
    if (plan_.ranks > 1'000'000) {
      return make_error(
          ErrorCode::Invalid,
          fmt::format("{}: got {} ranks with --nodes, allowed 1000000 in all; lower one of them",
                      plan_.gpu ? "--gpus" : "--ranks", plan_.ranks));
    }
    auto read =
        read_plan_config(options_.config, {.micro_batch_size = options_.micro_batch,
                                           .accumulation_steps = options_.accumulation,
                                           .lr = {},
                                           .steps = {},
                                           .hidden_size = static_cast<std::uint64_t>(model_.hidden),
                                           .world_size = plan_.ranks});
    if (!read.has_value()) {
      const bool file = read.error().code == ErrorCode::Io;
      return file ? naming("--config", std::move(read).error()) : std::move(read).error();
    }
    plan_.config = std::move(read->config);
    plan_.buckets = read->buckets;
    plan_.grad_accum_by_default = !read->grad_accum_dtype_given;
    for (const std::string& each : plan_.config.notes) note(each);
    plan_.model = &model_;
    plan_.parameters = &parameters_;
    plan_.stages = &stages_;
    return check_tokens();
  }

  /// Limits these factors, which are multiplied: far above any batch, and low enough for 64 bits.
  Result<void> check_tokens() const {
    const double tokens =
        static_cast<double>(plan_.config.train_batch_size) * static_cast<double>(plan_.length);
    if (tokens <= 1e12) return {};
    return make_error(
        ErrorCode::Invalid,
        fmt::format("train_batch_size: got {}, allowed 10^12 tokens of a step; lower it",
                    plan_.config.train_batch_size));
  }

  Result<void> choose_memory() {
    const zero3::ArtesianConfig& ours = plan_.config.artesian;
    const auto device = options_.device_memory;
    const auto host = options_.host_memory.has_value() ? options_.host_memory : ours.host_memory;
    ARTESIAN_TRY_VOID(choose_compute_dtypes());
    note_replaced("host_memory", ours.host_memory, host);
    if (!plan_.gpu) {
      note_replaced("device_memory", ours.device_memory, device);
      ARTESIAN_TRY(budgets,
                   zero3::choose_budgets(plan_.config, "cpu", {}, options_.ranks_of_node()));
      const std::uint64_t available = available_memory() / options_.ranks_of_node();
      if (available != 0) plan_.memory_max = available;
      plan_.activation_bytes = budgets.activations;
      plan_.device_bytes = device.value_or(budgets.device);
      plan_.host_bytes = host.value_or(budgets.host);
      return {};
    }
    plan_.gpu_bytes = device.value_or(assumed_gpu_memory);
    plan_.device_bytes = ours.device_memory;
    plan_.host_bytes = host.value_or(assumed_host_memory);
    plan_.activation_bytes = ours.activation_memory.value_or(*plan_.gpu_bytes / 20);
    if (!device.has_value()) {
      note("--device-memory: assumed " + format_size(assumed_gpu_memory) + " of a GPU");
    }
    if (!host.has_value()) {
      note("--host-memory: assumed " + format_size(assumed_host_memory) + " of a rank");
    }
    return {};
  }

  /// Logs that a flag replaces a key of the config.
  void note_replaced(const std::string& key, std::optional<std::uint64_t> given,
                     std::optional<std::uint64_t> planned) {
    if (!given.has_value() || !planned.has_value() || *given == *planned) return;
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    note(flag + ": planned with " + format_size(*planned) + ", in place of the config's artesian." +
         key + ", " + format_size(*given));
  }

  /// Also considers bf16 instead of fp32; its seconds are set with the rates.
  Result<void> choose_compute_dtypes() {
    ARTESIAN_TRY(dtype, run_compute_dtype(plan_.config, plan_.gpu));
    plan_.compute_dtype = dtype;
    if (plan_.config.param_dtype != DType::Float32) return {};
    zero3::Config bf16 = plan_.config;
    bf16.param_dtype = DType::BFloat16;
    ARTESIAN_TRY(narrow, run_compute_dtype(bf16, plan_.gpu));
    plan_.bf16 = ComputeInBf16{.compute_dtype = narrow,
                               .grad_accum_dtype = plan_.config.grad_accum_dtype,  // or by default
                               .compute = {}};
    return {};
  }

  void note(std::string text) { report_.notes.push_back(std::move(text)); }

  Result<void> plan() {
    report_.plan = &plan_;
    auto figures = evaluate(plan_);
    if (!figures.has_value() && plan_.gpu) figures = evaluate_recomputing(std::move(figures));
    report_.candidates = search(plan_);
    if (!figures.has_value()) {
      log(LogLevel::Info,
          report_.candidates.empty()
              ? "no stage and no offload of this model fits in these budgets"
              : "what fits, and is fastest: " + candidate_text(report_.candidates.front()));
      return std::move(figures).error();
    }
    report_.figures = std::move(figures).value();
    for (const std::string& each : report_.figures.notes) note(each);
    if (!plan_.device_bytes.has_value()) {
      note("artesian.device_memory: planned with " + format_size(report_.figures.device.budget) +
           ", what activations and CUDA leave of a GPU, as a run does");
    }
    report_.exposed_bus = exposed_bus(plan_, report_.figures);
    note_exposed_bus();
    report_.changes = find_changes(plan_, report_.figures);
    report_.advice = advise(plan_);
    return {};
  }

  /// From 5% of a step on, with what it would be if gradients were sent once a step.
  void note_exposed_bus() {
    if (report_.exposed_bus < 0.05 * report_.figures.time.seconds || !can_reduce_fast(plan_))
      return;
    PlanCase fast = plan_;
    fast.config.artesian.reduction = zero3::Reduction::Fast;
    const auto figures = evaluate(fast);
    if (!figures.has_value()) return;
    note(
        fmt::format("artesian.reduction: {:.3g} s of a step are time of the bus that nothing "
                    "hides; {:.3g} s with \"fast\", which does not have the bits of one rank",
                    report_.exposed_bus, exposed_bus(fast, *figures)));
  }

  /// Retries with recomputation, with which many more models fit, and logs that.
  Result<PlanFigures> evaluate_recomputing(Result<PlanFigures> refused) {
    PlanCase again = plan_;
    for (const auto& [member, key] :
         {std::pair{&zero3::Config::activation_checkpointing, "partition_activations"},
          std::pair{&zero3::Config::cpu_checkpointing, "cpu_checkpointing"}}) {
      if (again.config.*member) continue;
      again.config.*member = true;
      auto figures = evaluate(again);
      if (!figures.has_value()) continue;
      plan_ = std::move(again);
      note(std::string("activation_checkpointing: planned with it, as nothing else fits; set "
                       "\"activation_checkpointing\": {\"") +
           key + "\": true}");
      return figures;
    }
    return refused;
  }

  /// Checks that there is one rank, on the device that is planned for.
  Result<void> check_measure() const {
    if (!options_.measure) return {};
    if (plan_.ranks == 1) {
      return plan_.gpu ? naming("--measure", zero3::check_device("cuda")) : Result<void>();
    }
    return make_error(
        ErrorCode::Unsupported,
        fmt::format("--measure: got {} for {} ranks, allowed one: it trains with one rank",
                    plan_.gpu ? "--gpus and --nodes" : "--ranks and --nodes", plan_.ranks));
  }

  Result<void> measure() {
    if (!options_.measure) return {};
    const auto progress = [](const Candidate& candidate, std::uint64_t number) {
      log(LogLevel::Info, fmt::format("--measure: running {} of the fastest: {}", number,
                                      candidate_text(candidate)));
    };
    const MeasureOptions options{.device = plan_.gpu ? "cuda" : "cpu", .progress = progress};
    ARTESIAN_TRY(notes, measure_candidates(plan_, report_.candidates, options));
    for (const std::string& each : notes) note(each);
    return {};
  }

  /// Writes the results before the picture, which may fail.
  Result<void> write() {
    const std::string text = options_.json ? plan_json(report_) : plan_text(report_);
    ARTESIAN_TRY_VOID(write_stdout(text));
    if (options_.plot.empty()) return {};
    return naming("--plot", write_file(options_.plot, plan_svg(report_)));
  }

  const PlanOptions& options_;
  models::ModelConfig model_;
  std::vector<zero3::ParameterSpec> parameters_;
  std::vector<zero3::StageSpec> stages_;
  PlanCase plan_;
  PlanReport report_;
};

}  // namespace

int run_plan(const PlanOptions& options) {
  return PlanRun(options).run();
}

}  // namespace artesian::tools
