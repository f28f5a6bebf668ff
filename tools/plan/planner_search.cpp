// The part of the planner for "what if" questions: single changes, whole strategies, advice. Each
// answer is a plan of a changed case.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/units.h"
#include "models/model_config.h"
#include "tools/plan/planner.h"
#include "tools/shell/print.h"
#include "zero3/config/resolve.h"
#include "zero3/plan/units_under_backward.h"

namespace artesian::tools {

using zero3::Offload;

namespace {

constexpr double gain_min = 0.01;
constexpr const char* param_device_key = "zero_optimization.offload_param.device";
constexpr const char* optimizer_device_key = "zero_optimization.offload_optimizer.device";

/// A size as written in a config: rounded up, so that the run gets what was planned.
struct WrittenSize {
  explicit WrittenSize(std::uint64_t at_least)
      : bytes(round_up(at_least, std::uint64_t{1} << 20)) {}
  std::string text() const {
    constexpr std::uint64_t gib = std::uint64_t{1} << 30;
    return bytes % gib == 0 ? fmt::format("{} GiB", bytes / gib)
                            : fmt::format("{} MiB", bytes >> 20);
  }
  const std::uint64_t bytes;
};

/// Chooses as a run of the changed config would.
void choose_grad_accum_dtype(PlanCase& plan) {
  if (!plan.grad_accum_by_default) return;
  plan.config.grad_accum_dtype = zero3::default_grad_accum_dtype(
      plan.config.param_dtype, plan.config.accumulation_steps, plan.ranks);
}

class Changes {
 public:
  Changes(const PlanCase& plan, const PlanFigures& now) : plan_(plan), now_(now) {}

  std::vector<Change> find() {
    try_memory();
    try_disk();
    try_batch();
    try_offload();
    try_limits();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Change& a, const Change& b) { return a.gain > b.gain; });
    std::vector<Change> best;
    for (Change& change : found_) {
      const auto same = [&](const Change& other) { return other.key == change.key; };
      if (std::none_of(best.begin(), best.end(), same)) best.push_back(std::move(change));
    }
    return best;
  }

 private:
  void change(const std::string& key, const std::string& from, const std::string& to,
              const std::function<void(PlanCase&)>& apply) {
    PlanCase changed = plan_;
    apply(changed);
    choose_grad_accum_dtype(changed);
    const auto figures = evaluate(changed);
    if (!figures.has_value()) return;
    const double gain = figures->tokens_per_s / now_.tokens_per_s - 1.0;
    if (gain < gain_min) return;
    found_.push_back({.key = key,
                      .from = from,
                      .to = to,
                      .tokens_per_s = figures->tokens_per_s,
                      .gain = gain,
                      .step_seconds = figures->time.seconds});
  }

  void try_memory() {
    const auto twice = [&](const char* key, auto member, std::uint64_t bytes) {
      const WrittenSize to(2 * bytes);
      change(key, format_size(bytes), to.text(), [&](PlanCase& plan) { plan.*member = to.bytes; });
    };
    twice("artesian.host_memory", &PlanCase::host_bytes, plan_.host_bytes);
    if (plan_.device_bytes.has_value()) {
      twice("artesian.device_memory", &PlanCase::device_bytes, *plan_.device_bytes);
    } else {
      twice("a GPU with more memory", &PlanCase::gpu_bytes, *plan_.gpu_bytes);
    }
    const zero3::OffloadConfig& param = plan_.config.zero.offload_param;
    if (param.device == Offload::Nvme && param.max_in_cpu < now_.elements) {
      change("zero_optimization.offload_param.max_in_cpu", std::to_string(param.max_in_cpu),
             std::to_string(now_.elements),
             [&](PlanCase& plan) { plan.config.zero.offload_param.max_in_cpu = now_.elements; });
    }
  }

  void try_disk() {
    const zero3::Rates& rates = plan_.rates;
    const auto both = [&](double factor) {
      const auto text = [&](double read, double write) {
        return print("%.2f GB/s read, %.2f GB/s write", read * factor * 1e-9,
                     write * factor * 1e-9);
      };
      std::string disk = text(rates.disk_read, rates.disk_write);
      if (rates.param_read == 0.0) return disk;
      return disk + ", of parameters " + text(rates.param_read, rates.param_write);
    };
    change("a disk of twice the speed (nvme_path)", both(1), both(2), [](PlanCase& plan) {
      for (const auto rate : {&zero3::Rates::disk_read, &zero3::Rates::disk_write,
                              &zero3::Rates::param_read, &zero3::Rates::param_write}) {
        plan.rates.*rate *= 2;
      }
    });
  }

  void try_batch() {
    const std::uint64_t micro = plan_.config.micro_batch_size;
    change("train_micro_batch_size_per_gpu (and train_batch_size)", std::to_string(micro),
           std::to_string(2 * micro), [](PlanCase& plan) { plan.config.micro_batch_size *= 2; });
    const std::uint64_t steps = plan_.config.accumulation_steps;
    if (steps > 1) offer_activation_memory(now_.activations * steps);
    change("gradient_accumulation_steps (and train_batch_size)", std::to_string(steps),
           std::to_string(4 * steps), [](PlanCase& plan) { plan.config.accumulation_steps *= 4; });
    if (steps > 1 && steps % 2 == 0) {  // the same batch in larger pieces
      change("train_micro_batch_size_per_gpu, with half of gradient_accumulation_steps",
             std::to_string(micro), std::to_string(2 * micro), [](PlanCase& plan) {
               plan.config.micro_batch_size *= 2;
               plan.config.accumulation_steps /= 2;
             });
    }
  }

  void offer_activation_memory(std::uint64_t bytes) {
    const WrittenSize to(bytes);
    change("artesian.activation_memory", format_size(plan_.activation_bytes), to.text(),
           [&](PlanCase& plan) { plan.activation_bytes = to.bytes; });
  }

  void try_offload() {
    for (const Offload to : {Offload::None, Offload::Cpu}) {
      for (const auto& [name, member] :
           {std::pair{param_device_key, &zero3::ZeroConfig::offload_param},
            std::pair{optimizer_device_key, &zero3::ZeroConfig::offload_optimizer}}) {
        const Offload from = (plan_.config.zero.*member).device;
        if (from == to || from == Offload::None) continue;
        change(name, offload_name(from), offload_name(to),
               [to, offload = member](PlanCase& plan) { (plan.config.zero.*offload).device = to; });
      }
      try_both_offloads(to);
    }
  }

  /// Suggested if both together gain more than each alone, as each may need the memory that the
  /// other frees.
  void try_both_offloads(Offload to) {
    const zero3::ZeroConfig& zero = plan_.config.zero;
    const Offload param = zero.offload_param.device;
    const Offload optimizer = zero.offload_optimizer.device;
    if (param == to || optimizer == to || param == Offload::None || optimizer == Offload::None) {
      return;
    }
    double alone = 0.0;
    for (const Change& found : found_) {
      const bool of_one = found.key == param_device_key || found.key == optimizer_device_key;
      if (of_one && found.to == offload_name(to)) alone += found.gain;
    }
    const std::size_t before = found_.size();
    const bool same = param == optimizer;
    change("zero_optimization.offload_param.device and offload_optimizer.device",
           std::string(offload_name(param)) +
               (same ? "" : std::string(" and ") + offload_name(optimizer)),
           offload_name(to), [to](PlanCase& plan) {
             plan.config.zero.offload_param.device = plan.config.zero.offload_optimizer.device = to;
           });
    if (found_.size() > before && found_.back().gain <= alone) found_.pop_back();
  }

  void try_limits() {
    const auto limit = [&](const char* key, std::uint64_t zero3::ZeroConfig::*member,
                           std::uint64_t to) {
      const std::uint64_t from = plan_.config.zero.*member;
      if (from >= to) return;
      change(std::string("zero_optimization.") + key, std::to_string(from), std::to_string(to),
             [&](PlanCase& plan) { plan.config.zero.*member = to; });
    };
    const std::uint64_t all = now_.elements;
    limit("stage3_max_live_parameters", &zero3::ZeroConfig::max_live_parameters, all);
    // The reuse distance of a unit is at most the rest of a forward and of a backward.
    limit("stage3_max_reuse_distance", &zero3::ZeroConfig::max_reuse_distance, 2 * all);
    limit("stage3_prefetch_bucket_size", &zero3::ZeroConfig::prefetch_bucket_size, all);
    if (plan_.config.accumulation_steps > 1) offer_activation_memory(plan_.activation_bytes * 2);
    if (can_reduce_fast(plan_)) {
      change("artesian.reduction", "exact", "fast",
             [](PlanCase& plan) { plan.config.artesian.reduction = zero3::Reduction::Fast; });
    }
    if (!plan_.config.cpu_checkpointing) {
      change("activation_checkpointing.cpu_checkpointing", "false", "true", [](PlanCase& plan) {
        plan.config.activation_checkpointing = plan.config.cpu_checkpointing = true;
      });
    }
    const bool clips = plan_.config.gradient_clipping != 0.0;
    if (plan_.config.param_dtype == DType::BFloat16 && plan_.config.check_grad_overflow && !clips) {
      change("bf16.check_grad_overflow", "true", "false",
             [](PlanCase& plan) { plan.config.check_grad_overflow = false; });
    }
    if (!plan_.config.artesian.speculative_update && zero3::waits_for_norm(plan_.config)) {
      change("artesian.speculative_update", "false", "true",
             [](PlanCase& plan) { plan.config.artesian.speculative_update = true; });
    }
    if (plan_.config.param_dtype == DType::Float32 && plan_.bf16.has_value()) {
      change("bf16.enabled", "false", "true", [](PlanCase& plan) {
        plan.config.param_dtype = DType::BFloat16;
        plan.config.grad_accum_dtype = plan.bf16->grad_accum_dtype;
        plan.compute_dtype = plan.bf16->compute_dtype;
        plan.compute = plan.bf16->compute;
      });
    }
  }

  const PlanCase& plan_;
  const PlanFigures& now_;
  std::vector<Change> found_;
};

struct Strategy {
  const char* name;
  int stage;
  Offload param, optimizer;
};

// In the order of speed given by DeepSpeed's guide. Stages 0 and 1 run as stage 2, as gradients and
// optimizer state are always divided among the ranks.
constexpr std::array<Strategy, 7> strategies{{
    {"ZeRO-2", 2, Offload::None, Offload::None},
    {"ZeRO-2, optimizer on cpu", 2, Offload::None, Offload::Cpu},
    {"ZeRO-3", 3, Offload::None, Offload::None},
    {"ZeRO-3, optimizer on cpu", 3, Offload::None, Offload::Cpu},
    {"ZeRO-3, optimizer and parameters on cpu", 3, Offload::Cpu, Offload::Cpu},
    {"ZeRO-Infinity, optimizer on nvme", 3, Offload::Cpu, Offload::Nvme},
    {"ZeRO-Infinity, optimizer and parameters on nvme", 3, Offload::Nvme, Offload::Nvme},
}};

/// Micro-batch sizes that divide the same batch: powers of two, and the config's.
std::vector<std::uint64_t> micro_batches(const PlanCase& plan) {
  const std::uint64_t own = plan.config.micro_batch_size;
  const std::uint64_t batch = own * plan.config.accumulation_steps;
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = 1; size <= 256 && size <= batch; size *= 2) {
    if (batch % size == 0 && size != own) sizes.push_back(size);
  }
  sizes.push_back(own);
  return sizes;
}

/// With the config's checkpointing, or more if that does not fit or is slower by 1%: keeping only
/// stage inputs, or moving inputs from the device to the tiers, which makes room for larger groups
/// of micro-batches.
std::optional<Candidate> best_checkpointing(PlanCase plan, const char* name) {
  std::optional<Candidate> best;
  const auto attempt = [&] {
    auto figures = evaluate(plan);
    if (!figures.has_value()) return;
    const double needed = best.has_value() ? best->figures.tokens_per_s * (1 + gain_min) : 0.0;
    if (figures->tokens_per_s <= needed) return;
    best = Candidate{name, plan.config, std::move(figures).value(), {}};
  };
  attempt();
  for (const auto member :
       {&zero3::Config::activation_checkpointing, &zero3::Config::cpu_checkpointing}) {
    if (plan.config.*member) continue;
    plan.config.*member = true;
    attempt();
  }
  return best;
}

/// True if it fits without reducing persistence, which a placement would do first.
bool keeps_all(const PlanCase& plan) {
  const auto figures = evaluate(plan);
  if (!figures.has_value()) return false;
  return std::none_of(figures->notes.begin(), figures->notes.end(), [](const std::string& note) {
    return note.starts_with("stage3_param_persistence_threshold");
  });
}

}  // namespace

std::vector<Change> find_changes(const PlanCase& plan, const PlanFigures& now) {
  return Changes(plan, now).find();
}

std::vector<Candidate> search(const PlanCase& plan) {
  std::vector<Candidate> found;
  const std::uint64_t batch = plan.config.micro_batch_size * plan.config.accumulation_steps;
  for (const Strategy& strategy : strategies) {
    std::optional<Candidate> best;
    for (const std::uint64_t size : micro_batches(plan)) {
      PlanCase tried = plan;
      tried.config.zero.stage = strategy.stage;
      tried.config.zero.offload_param.device = strategy.param;
      tried.config.zero.offload_optimizer.device = strategy.optimizer;
      tried.config.micro_batch_size = size;
      tried.config.accumulation_steps = batch / size;
      choose_grad_accum_dtype(tried);
      auto found_here = best_checkpointing(std::move(tried), strategy.name);
      if (!found_here.has_value()) continue;
      const double rate = found_here->figures.tokens_per_s;
      if (best.has_value() && best->figures.tokens_per_s >= rate) continue;
      best = std::move(found_here);
    }
    if (best.has_value()) found.push_back(*std::move(best));
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.figures.tokens_per_s > b.figures.tokens_per_s;
  });
  return found;
}

zero3::Config config_of_run(const PlanCase& plan, const Candidate& candidate) {
  zero3::Config config = candidate.config;
  config.artesian.device_memory = candidate.figures.device.budget;  // beside activations
  config.artesian.host_memory = candidate.figures.host.budget;
  config.artesian.activation_memory = plan.activation_bytes;
  config.artesian.compute_dtype = plan.compute_dtype;
  return config;
}

namespace {

/// Advice from DeepSpeed's user guides about the buckets of stages 1 and 2, each of which exists
/// several times in memory.
void advise_of_buckets(const PlanCase& plan, std::vector<std::string>& advice) {
  const int stage = plan.config.zero.stage;
  const DeepSpeedBuckets& buckets = plan.buckets;
  if (plan.ranks == 1 || stage < 1 || stage > 2 || !buckets.overlap_comm) return;
  const std::uint64_t size = dtype_size(plan.config.param_dtype);
  const double elements = static_cast<double>(buckets.reduce_bucket_size) +
                          static_cast<double>(buckets.allgather_bucket_size);
  const double bytes = 4.5 * elements * static_cast<double>(size);
  advice.push_back(
      fmt::format("zero_optimization.overlap_comm: DeepSpeed takes 4.5 x (reduce_bucket_size + "
                  "allgather_bucket_size) x {} bytes for it, {} of each GPU; smaller buckets take "
                  "less. Artesian has no such buckets, and they are not in this plan",
                  size, print("%.3g GB", bytes * 1e-9)));
}

}  // namespace

std::vector<std::string> advise(const PlanCase& plan) {
  std::vector<std::string> advice;
  advise_of_buckets(plan, advice);
  const auto hidden = static_cast<std::uint64_t>(plan.model->hidden);
  const std::uint64_t threshold = 6 * hidden * hidden;
  const zero3::ZeroConfig& zero = plan.config.zero;
  if (zero.stage == 3) {
    PlanCase kept = plan;
    kept.config.zero.param_persistence_threshold = threshold;
    kept.config.zero.offload_param.device = Offload::None;
    const bool is_so =
        zero.param_persistence_threshold >= threshold && zero.offload_param.device == Offload::None;
    if (!is_so && keeps_all(kept)) {
      advice.push_back(
          fmt::format("zero_optimization.stage3_param_persistence_threshold: {} (6 x hidden^2) "
                      "with offload_param.device none keeps the blocks on the device, at the speed "
                      "of stage 2; it fits",
                      threshold));
    }
  }
  const auto check = [&](const char* what, std::int64_t value) {
    if (value % 16 == 0) return;
    advice.push_back(fmt::format("{}: {} is no multiple of 16, which matrix units want; {} is",
                                 what, value, round_up(static_cast<std::uint64_t>(value), 16)));
  };
  check("hidden size", plan.model->hidden);
  check("vocabulary", plan.model->vocab_size);
  const bool is_llama = plan.model->is_llama();
  check("intermediate size", is_llama ? plan.model->llama.inner : plan.model->gpt2.inner);
  check("tokens of a micro-batch",
        static_cast<std::int64_t>(plan.config.micro_batch_size * plan.length));
  return advice;
}

}  // namespace artesian::tools
