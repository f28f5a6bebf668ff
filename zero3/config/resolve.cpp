#include "zero3/config/resolve.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "zero3/config/optimizers.h"

namespace artesian::zero3 {
namespace {

/// One resolution: all functions below fill `config_`.
class Resolver {
 public:
  Resolver(const Settings& settings, const ConfigArguments& arguments, Faults& faults)
      : settings_(settings), arguments_(arguments), faults_(faults) {}

  Config run() {
    resolve_batch(settings_, arguments_, config_, faults_);
    top_level();
    precision();
    optimizer();
    scheduler();
    trackers();
    zero();
    aio();
    artesian();
    note_unused();
    note_automatic();
    return std::move(config_);
  }

 private:
  void note(std::string line) { config_.notes.push_back(std::move(line)); }

  void top_level() {
    config_.gradient_clipping = settings_.real("gradient_clipping");
    if (!settings_.given("gradient_clipping") && !settings_.automatic("gradient_clipping")) {
      note("gradient_clipping: absent: " + shortest(config_.gradient_clipping) +
           ", as in DeepSpeed; 0 turns it off");
    }
    if (settings_.given("steps_per_print") && std::isfinite(settings_.real("steps_per_print"))) {
      config_.steps_per_print = settings_.integer("steps_per_print");
    }
    config_.managed_gradient_accumulation = settings_.boolean("managed_gradient_accumulation");
    config_.wall_clock_breakdown = settings_.boolean("wall_clock_breakdown");
    activation_checkpointing();
  }

  void precision() {
    for (const char* path : {"fp16.enabled", "bf16.enabled"}) {
      if (settings_.automatic(path)) {
        note(settings_.name(path) +
             ": \"auto\" is false here: no trainer decides; write true to "
             "train in this type");
      }
    }
    if (settings_.boolean("fp16.enabled")) config_.param_dtype = DType::Float16;
    if (settings_.boolean("bf16.enabled")) config_.param_dtype = DType::BFloat16;
    accumulation();
    if (settings_.given("communication_data_type")) {
      const std::string sent = settings_.text("communication_data_type");
      if (!sent.empty()) config_.communication_dtype = dtype_of(sent);
    }
    config_.loss_scale.loss_scale = settings_.real("fp16.loss_scale");
    config_.loss_scale.initial_scale_power =
        static_cast<std::uint32_t>(settings_.integer("fp16.initial_scale_power"));
    config_.loss_scale.loss_scale_window = settings_.integer("fp16.loss_scale_window");
    config_.loss_scale.hysteresis =
        static_cast<std::uint32_t>(settings_.integer("fp16.hysteresis"));
    config_.loss_scale.consecutive_hysteresis = settings_.boolean("fp16.consecutive_hysteresis");
    config_.loss_scale.min_loss_scale = settings_.real("fp16.min_loss_scale");
    config_.check_grad_overflow =
        config_.param_dtype != DType::BFloat16 || settings_.boolean("bf16.check_grad_overflow");
  }

  void accumulation() {
    constexpr const char* path = "data_types.grad_accum_dtype";
    if (settings_.given(path)) {
      config_.grad_accum_dtype = dtype_of(settings_.text(path));
      return;
    }
    const std::uint64_t ranks = arguments_.world_size;
    config_.grad_accum_dtype =
        default_grad_accum_dtype(config_.param_dtype, config_.accumulation_steps, ranks);
    if (config_.grad_accum_dtype == config_.param_dtype) return;
    note(fmt::format(
        "{}: absent: fp32, as a step adds {} gradients; \"{}\" halves their bytes and "
        "rounds each sum",
        settings_.name(path), config_.accumulation_steps * ranks, dtype_name(config_.param_dtype)));
  }

  static DType dtype_of(const std::string& name) {
    if (name == "fp16" || name == "float16") return DType::Float16;
    if (name == "bf16" || name == "bfloat16") return DType::BFloat16;
    return DType::Float32;
  }

  /// Muon has separate constants for matrices: muon_lr and adam_lr take precedence over lr.
  void muon(const OptimizerForm& form) {
    OptimizerConfig& optimizer = config_.optimizer;
    const bool given = settings_.given("optimizer.params.lr") || arguments_.lr.has_value();
    optimizer.muon_lr = given ? optimizer.lr : 0.02;
    const auto rate = [&](const char* path, double& value) {
      if (settings_.given(path)) value = settings_.real(path);
      automatic_[path] = shortest(value);
    };
    rate("optimizer.params.muon_lr", optimizer.muon_lr);
    rate("optimizer.params.adam_lr", optimizer.lr);
    if (settings_.given("optimizer.params.momentum")) {
      optimizer.momentum = settings_.real("optimizer.params.momentum");
    }
    if (!settings_.given("optimizer.params.betas")) optimizer.beta2 = form.beta2;
    const bool gram = settings_.text("optimizer.params.ns_method") == "gram";
    optimizer.newton_schulz = gram ? NewtonSchulz::Gram : NewtonSchulz::Standard;
  }

  void optimizer() {
    OptimizerConfig& optimizer = config_.optimizer;
    const OptimizerForm* known = find_optimizer(settings_.text("optimizer.type"));
    const OptimizerForm& form = known != nullptr ? *known : optimizer_forms().front();
    optimizer.type = form.type;
    const auto real = [&](const char* path, double otherwise) {
      if (settings_.real(path) != otherwise) automatic_[path] = shortest(otherwise);
      return settings_.given(path) ? settings_.real(path) : otherwise;
    };
    optimizer.lr = real("optimizer.params.lr", form.lr);
    if (!settings_.given("optimizer.params.lr") && arguments_.lr) optimizer.lr = *arguments_.lr;
    automatic_["optimizer.params.lr"] = shortest(optimizer.lr);
    const JsonValue betas = settings_.value("optimizer.params.betas");
    ARTESIAN_CHECK(betas.elements.size() == 2, betas.elements.size());
    optimizer.beta1 = betas.elements[0].number;
    optimizer.beta2 = betas.elements[1].number;
    if (form.type == OptimizerType::Muon) {
      muon(form);
    } else if (form.params.find("momentum") != form.params.npos) {
      optimizer.beta1 = settings_.real("optimizer.params.momentum");
    }
    if (form.params.find("alpha") != form.params.npos) {
      optimizer.beta2 = settings_.real("optimizer.params.alpha");
    }
    optimizer.eps = real("optimizer.params.eps", form.eps);
    optimizer.dampening = settings_.real("optimizer.params.dampening");
    optimizer.nesterov = settings_.boolean("optimizer.params.nesterov");
    optimizer.lr_decay = settings_.real("optimizer.params.lr_decay");
    optimizer.initial_squares = settings_.real("optimizer.params.initial_accumulator_value");
    optimizer.min_coeff = settings_.real("optimizer.params.min_coeff");
    optimizer.max_coeff = settings_.real("optimizer.params.max_coeff");
    optimizer.weight_decay = settings_.real("optimizer.params.weight_decay");
    optimizer.bias_correction = settings_.boolean("optimizer.params.bias_correction");
    const bool decoupled = settings_.boolean("optimizer.params.adam_w_mode");
    const bool named_adamw = settings_.text("optimizer.type") == "AdamW";
    optimizer.decoupled_decay = decoupled || named_adamw;
    if (named_adamw && !decoupled) {
      note(settings_.name("optimizer.params.adam_w_mode") +
           ": accepted, has no effect here (the type is AdamW; DeepSpeed does the same)");
    }
    if (!settings_.given("optimizer")) {
      note("optimizer: absent: AdamW with lr " + shortest(optimizer.lr) + ", betas " +
           shortest(optimizer.beta1) + " and " + shortest(optimizer.beta2) + ", eps " +
           shortest(optimizer.eps) + ", weight decay " + shortest(optimizer.weight_decay));
    }
  }

  std::optional<std::uint64_t> steps_of_run() const {
    return arguments_.steps ? arguments_.steps : arguments_.steps_of_data;
  }

  std::uint64_t warmup_steps() {
    constexpr const char* path = "scheduler.params.warmup_num_steps";
    std::uint64_t steps = settings_.integer(path);
    if (settings_.automatic(path) && steps_of_run()) {
      steps = std::clamp<std::uint64_t>(*steps_of_run() / 10, 1, 1000);
    }
    automatic_[path] = std::to_string(steps);
    return steps;
  }

  std::uint64_t total_steps(const std::string& type) {
    constexpr const char* path = "scheduler.params.total_num_steps";
    if (settings_.given(path)) return settings_.integer(path);
    if (steps_of_run().value_or(0) > 0) {
      automatic_[path] = std::to_string(*steps_of_run());
      return *steps_of_run();
    }
    if (!settings_.broken(path) && !arguments_.steps_later) {
      faults_.invalid(settings_.name(path) + ": " +
                      (settings_.automatic(path) ? "got \"auto\"" : "missing") + " for " + type +
                      ", allowed " + allowed_text(*find_config_key(path)) +
                      "; set it or give --steps");
    }
    return 0;
  }

  void trackers() {
    for (const std::string name : {"tensorboard", "wandb", "csv_monitor", "comet"}) {
      if (!settings_.boolean(name + ".enabled")) continue;
      TrackerConfig tracker{.name = name, .options = {}};
      for (const auto& [path, setting] : settings_.all()) {
        if (!path.starts_with(name + ".") || !settings_.given(path)) continue;
        const JsonValue& value = setting.value;
        tracker.options[path.substr(name.size() + 1)] = value.kind == JsonValue::Kind::Boolean
                                                            ? (value.boolean ? "true" : "false")
                                                            : value.text;
      }
      config_.trackers.push_back(std::move(tracker));
    }
  }

  void scheduler() {
    using Type = SchedulerConfig::Type;
    SchedulerConfig& scheduler = config_.scheduler;
    if (!settings_.given("scheduler") || !settings_.given("scheduler.type")) return;
    const std::string type = settings_.text("scheduler.type");
    scheduler.type = type == "WarmupLR"        ? Type::WarmupLR
                     : type == "WarmupDecayLR" ? Type::WarmupDecayLR
                     : type == "LRRangeTest"   ? Type::LRRangeTest
                     : type == "OneCycle"      ? Type::OneCycle
                                               : Type::WarmupCosineLR;
    if (scheduler.type == Type::LRRangeTest) return range_test(scheduler.range_test);
    if (scheduler.type == Type::OneCycle) return one_cycle(scheduler.cycle);
    scheduler.warmup_min_lr = settings_.real("scheduler.params.warmup_min_lr");
    scheduler.warmup_max_lr = warmup_max_lr();
    scheduler.warmup_num_steps = warmup_steps();
    scheduler.warmup_linear = settings_.text("scheduler.params.warmup_type") == "linear";
    if (scheduler.type != Type::WarmupLR) scheduler.total_num_steps = total_steps(type);
    scheduler.warmup_min_ratio = settings_.real("scheduler.params.warmup_min_ratio");
    scheduler.cos_min_ratio = settings_.real("scheduler.params.cos_min_ratio");
    note_surprises(scheduler);
  }

  void range_test(SchedulerConfig::RangeTest& test) const {
    test.min_lr = settings_.real("scheduler.params.lr_range_test_min_lr");
    test.step_size = settings_.integer("scheduler.params.lr_range_test_step_size");
    test.step_rate = settings_.real("scheduler.params.lr_range_test_step_rate");
    test.staircase = settings_.boolean("scheduler.params.lr_range_test_staircase");
  }

  void one_cycle(SchedulerConfig::Cycle& cycle) {
    const auto required = [&](const std::string& path) {
      if (settings_.given(path)) return settings_.real(path);
      if (!settings_.broken(path)) {
        faults_.invalid(settings_.name(path) + ": missing for OneCycle, allowed " +
                        allowed_text(*find_config_key(path)));
      }
      return 0.0;
    };
    const auto or_else = [&](const char* path, std::uint64_t first) {
      return settings_.given(path) ? settings_.integer(path) : first;
    };
    cycle.min_lr = required("scheduler.params.cycle_min_lr");
    cycle.max_lr = required("scheduler.params.cycle_max_lr");
    cycle.decay_lr_rate = settings_.real("scheduler.params.decay_lr_rate");
    cycle.first_steps = settings_.integer("scheduler.params.cycle_first_step_size");
    cycle.second_steps = or_else("scheduler.params.cycle_second_step_size", cycle.first_steps);
    cycle.first_stairs = settings_.integer("scheduler.params.cycle_first_stair_count");
    cycle.second_stairs = or_else("scheduler.params.cycle_second_stair_count", cycle.first_stairs);
    cycle.decay_step_size = settings_.integer("scheduler.params.decay_step_size");
    cycle.momentum = settings_.boolean("scheduler.params.cycle_momentum");
    cycle.min_momentum = settings_.real("scheduler.params.cycle_min_mom");
    cycle.max_momentum = settings_.real("scheduler.params.cycle_max_mom");
    cycle.decay_momentum_rate = settings_.real("scheduler.params.decay_mom_rate");
  }

  /// The optimizer's rate; also for WarmupDecayLR, whose default in DeepSpeed is always 0.001.
  double warmup_max_lr() {
    constexpr const char* path = "scheduler.params.warmup_max_lr";
    const double optimizer = config_.optimizer.lr;
    automatic_[path] = shortest(optimizer);
    if (settings_.given(path)) {
      const double rate = settings_.real(path);
      if (rate > optimizer) {
        note(settings_.name(path) + ": got " + shortest(rate) + ", above the optimizer's lr " +
             shortest(optimizer) + ": the schedule goes up to it, as in DeepSpeed");
      }
      return rate;
    }
    if (config_.scheduler.type == SchedulerConfig::Type::WarmupDecayLR &&
        !settings_.automatic(path) && optimizer != 1e-3) {
      note(settings_.name(path) + ": absent: the optimizer's lr " + shortest(optimizer) +
           " (DeepSpeed's default for WarmupDecayLR is 0.001)");
    }
    return optimizer;
  }

  /// Notes on settings that are valid but probably not intended: a warm-up that decreases the rate,
  /// and a schedule whose length differs from the run's.
  void note_surprises(const SchedulerConfig& scheduler) {
    constexpr const char* low = "scheduler.params.warmup_min_lr";
    if (scheduler.type != SchedulerConfig::Type::WarmupCosineLR &&
        scheduler.warmup_min_lr > scheduler.warmup_max_lr) {
      note(settings_.name(low) + ": got " + shortest(scheduler.warmup_min_lr) +
           ", above the rate that the warm-up leads to, " + shortest(scheduler.warmup_max_lr));
    }
    constexpr const char* total = "scheduler.params.total_num_steps";
    const std::uint64_t run = steps_of_run().value_or(0);
    if (scheduler.type == SchedulerConfig::Type::WarmupLR || !settings_.given(total) || run == 0) {
      return;
    }
    if (run < scheduler.total_num_steps) {
      note(fmt::format("{}: the run has {} of its {} steps: it ends before the schedule does",
                       settings_.name(total), run, scheduler.total_num_steps));
    } else if (run > scheduler.total_num_steps) {
      note(
          fmt::format("{}: the run has {} steps: those beyond {} train at the schedule's last rate",
                      settings_.name(total), run, scheduler.total_num_steps));
    }
  }

  OffloadConfig offload(const std::string& section, const char* legacy) {
    OffloadConfig offload;
    const std::string device = settings_.text(section + ".device");
    offload.device = device == "nvme"  ? Offload::Nvme
                     : device == "cpu" ? Offload::Cpu
                                       : Offload::None;
    if (settings_.given(legacy) && settings_.boolean(legacy)) {
      offload.device = Offload::Cpu;
      note(settings_.name(legacy) + ": the old name of " + section + ".device \"cpu\"");
    }
    if (settings_.given(section + ".nvme_path")) {
      for (const JsonValue& folder : settings_.value(section + ".nvme_path").elements) {
        offload.nvme_paths.push_back(folder.text);
      }
    }
    offload.pin_memory = settings_.boolean(section + ".pin_memory");
    offload.buffer_count = settings_.integer(section + ".buffer_count");
    return offload;
  }

  /// "auto" for a size that depends on the model's width; `by_width` is not called if the width is
  /// unknown.
  template <typename ByWidth>
  std::uint64_t size(const char* path, ByWidth by_width) {
    std::uint64_t elements = settings_.integer(path);
    if (settings_.automatic(path) && arguments_.hidden_size) {
      elements = by_width(static_cast<double>(*arguments_.hidden_size));
    }
    automatic_[path] = std::to_string(elements);
    return elements;
  }

  void zero() {
    ZeroConfig& zero = config_.zero;
    zero.stage = static_cast<int>(settings_.integer("zero_optimization.stage"));
    zero.offload_param =
        offload("zero_optimization.offload_param", "zero_optimization.cpu_offload_param");
    zero.offload_param.buffer_size =
        settings_.integer("zero_optimization.offload_param.buffer_size");
    zero.offload_param.max_in_cpu = settings_.integer("zero_optimization.offload_param.max_in_cpu");
    zero.offload_optimizer =
        offload("zero_optimization.offload_optimizer", "zero_optimization.cpu_offload");
    // In DeepSpeed both 0 and 1 make each parameter its own sub-group.
    zero.sub_group_size =
        std::max<std::uint64_t>(1, settings_.integer("zero_optimization.sub_group_size"));
    zero.prefetch_bucket_size = size("zero_optimization.prefetch_bucket_size", [](double width) {
      return static_cast<std::uint64_t>(0.9 * width * width);
    });
    zero.param_persistence_threshold =
        size("zero_optimization.param_persistence_threshold",
             [](double width) { return static_cast<std::uint64_t>(10.0 * width); });
    zero.model_persistence_threshold =
        settings_.integer("zero_optimization.model_persistence_threshold");
    zero.max_live_parameters = settings_.integer("zero_optimization.max_live_parameters");
    zero.max_reuse_distance = settings_.integer("zero_optimization.max_reuse_distance");
    if (settings_.given("zero_optimization.stage") && zero.stage < 3) {
      note(
          fmt::format("zero_optimization.stage: {} keeps parameters resident; the results are "
                      "those of stage 3",
                      zero.stage));
    }
  }

  /// Configs that set DeepSpeed's ways of storing checkpoints are for models that use
  /// checkpointing.
  void activation_checkpointing() {
    const std::string section = "activation_checkpointing.";
    bool on = settings_.given(section + "number_checkpoints");
    for (const char* key :
         {"partition_activations", "contiguous_memory_optimization", "cpu_checkpointing"}) {
      on = on || settings_.boolean(section + key);
    }
    config_.activation_checkpointing = on;
    config_.cpu_checkpointing = settings_.boolean(section + "cpu_checkpointing");
    if (config_.cpu_checkpointing) {
      note(
          "activation_checkpointing: stages keep their inputs alone, in host memory and on NVMe, "
          "and run once more in backward");
    } else if (on) {
      note(
          "activation_checkpointing: stages keep their inputs alone, where they computed them, "
          "and run once more in backward");
    }
  }

  void aio() {
    config_.aio_from_profile = !settings_.given("aio");
    config_.aio.block_size = settings_.integer("aio.block_size");
    config_.aio.queue_depth = static_cast<std::uint32_t>(settings_.integer("aio.queue_depth"));
    config_.aio.intra_op_parallelism =
        static_cast<std::uint32_t>(settings_.integer("aio.intra_op_parallelism"));
    config_.aio.single_submit = settings_.boolean("aio.single_submit");
    config_.aio.overlap_events = settings_.boolean("aio.overlap_events");
  }

  void artesian() {
    ArtesianConfig& ours = config_.artesian;
    for (const auto& [key, member] :
         {std::pair{"artesian.device_memory", &ArtesianConfig::device_memory},
          std::pair{"artesian.host_memory", &ArtesianConfig::host_memory},
          std::pair{"artesian.activation_memory", &ArtesianConfig::activation_memory}}) {
      if (settings_.given(key)) ours.*member = settings_.integer(key);
    }
    const std::string verify = settings_.text("artesian.verify");
    ours.verify = verify == "sample" ? VerifyMode::Sample
                  : verify == "off"  ? VerifyMode::Off
                                     : VerifyMode::Full;
    const std::string compute = settings_.text("artesian.compute_dtype");
    if (compute != "auto") ours.compute_dtype = dtype_of(compute);
    if (settings_.text("artesian.determinism") == "preferred") {
      ours.determinism = Determinism::Preferred;
    }
    const std::string engine =
        settings_.given("artesian.engine") ? settings_.text("artesian.engine") : "auto";
    ours.engine = engine == "io_uring"  ? EngineChoice::IoUring
                  : engine == "libaio"  ? EngineChoice::Libaio
                  : engine == "threads" ? EngineChoice::Threads
                                        : EngineChoice::Auto;
    const std::string polling = settings_.text("artesian.polling");
    ours.polling = polling == "sqpoll"   ? PollingChoice::Submission
                   : polling == "iopoll" ? PollingChoice::Completion
                   : polling == "both"   ? PollingChoice::Both
                                         : PollingChoice::Off;
    ours.moments = dtype_of(settings_.text("artesian.moments"));
    if (settings_.text("artesian.reduction") == "fast") ours.reduction = Reduction::Fast;
    ours.speculative_update = settings_.boolean("artesian.speculative_update");
    ours.skipped_steps_max = settings_.integer("artesian.skipped_steps_max");
    ours.checkpoint_every = settings_.integer("artesian.checkpoint_every");
  }

  void note_unused() {
    const auto unless = [&](const std::string& prefix, const std::string& except, bool used,
                            const std::string& condition) {
      if (used) return;
      std::string list;
      for (const auto& [path, setting] : settings_.all()) {
        if (!path.starts_with(prefix) || path == except) continue;
        if (setting.key->effect != KeyEffect::InEffect) continue;
        list += (list.empty() ? "" : ", ") + setting.typed_path;
      }
      if (!list.empty()) note(list + ": accepted, has no effect here (" + condition + ")");
    };
    unless("fp16.", "fp16.enabled", config_.param_dtype == DType::Float16, "fp16 is not enabled");
    unless("bf16.", "bf16.enabled", config_.param_dtype == DType::BFloat16, "bf16 is not enabled");
    for (const std::string name : {"offload_param", "offload_optimizer"}) {
      const OffloadConfig& offload =
          name == "offload_param" ? config_.zero.offload_param : config_.zero.offload_optimizer;
      const std::string section = "zero_optimization." + name + ".";
      for (const char* key : {"nvme_path", "buffer_count", "buffer_size", "max_in_cpu"}) {
        unless(section + key, "", offload.device == Offload::Nvme, name + ".device is not nvme");
      }
    }
  }

  /// Adds one line that lists the values of all "auto" keys.
  void note_automatic() {
    automatic_["train_batch_size"] = std::to_string(config_.train_batch_size);
    automatic_["train_micro_batch_size_per_gpu"] = std::to_string(config_.micro_batch_size);
    automatic_["gradient_accumulation_steps"] = std::to_string(config_.accumulation_steps);
    std::string list;
    for (const auto& [path, setting] : settings_.all()) {
      if (!setting.automatic || setting.key->effect != KeyEffect::InEffect) continue;
      const auto found = automatic_.find(path);
      list += (list.empty() ? "" : ", ") + setting.typed_path + " = " +
              (found != automatic_.end() ? found->second : std::string(setting.key->fallback));
    }
    if (!list.empty()) note("\"auto\": " + list);
  }

  const Settings& settings_;
  const ConfigArguments& arguments_;
  Faults& faults_;
  Config config_;
  std::map<std::string, std::string> automatic_;  // canonical path -> value that replaced "auto"
};

}  // namespace

DType default_grad_accum_dtype(DType param_dtype, std::uint64_t micro_batches,
                               std::uint64_t ranks) noexcept {
  constexpr std::uint64_t terms_min = 8;
  const bool many = std::min(micro_batches, terms_min) * std::min(ranks, terms_min) >= terms_min;
  return many ? DType::Float32 : param_dtype;
}

Config resolve_config(const Settings& settings, const ConfigArguments& arguments, Faults& faults) {
  check_rules(settings, faults);
  check_arguments(settings, arguments, faults);
  return Resolver(settings, arguments, faults).run();
}

}  // namespace artesian::zero3
