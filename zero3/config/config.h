// The training configuration: a DeepSpeed JSON, resolved. Every key either takes effect, is refused
// by name, or is reported once as having no effect; none is ignored silently. Sizes are elements
// except aio.block_size and the artesian section, which are bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace artesian::zero3 {

enum class Offload : std::uint8_t { None, Cpu, Nvme };

/// For counts of elements without a bound, since budgets in bytes bound them. Representable as a
/// JSON integer.
constexpr std::uint64_t no_limit = std::numeric_limits<std::int64_t>::max();

struct OffloadConfig {
  Offload device = Offload::None;
  std::vector<std::string> nvme_paths;  // folders over which the bytes are divided
  bool pin_memory = true;
  std::uint64_t buffer_count = 4;           // default for parameters: 5
  std::uint64_t buffer_size = 100'000'000;  // elements; only for parameters
  std::uint64_t max_in_cpu = no_limit;      // elements; only for parameters

  bool operator==(const OffloadConfig&) const = default;
};

struct ZeroConfig {
  int stage = 0;
  OffloadConfig offload_param;
  OffloadConfig offload_optimizer;
  std::uint64_t sub_group_size = 1'000'000'000;
  std::uint64_t prefetch_bucket_size = 50'000'000;
  std::uint64_t param_persistence_threshold = 100'000;
  std::uint64_t model_persistence_threshold = no_limit;
  std::uint64_t max_live_parameters = no_limit;
  std::uint64_t max_reuse_distance = no_limit;

  bool operator==(const ZeroConfig&) const = default;
};

enum class OptimizerType : std::uint8_t {  // the optimizers of optimizers.h
  Adam,
  Sgd,
  Adagrad,
  RmsProp,
  Lion,
  Lamb,
  Muon,  // Muon updates hidden matrices; AdamW updates all other parameters
};

/// How Muon orthogonalizes a matrix: iterating on the matrix itself (Standard), or on its smaller
/// Gram matrix (Gram).
enum class NewtonSchulz : std::uint8_t { Standard, Gram };

struct OptimizerConfig {
  OptimizerType type = OptimizerType::Adam;
  bool decoupled_decay = true;  // AdamW; false: "Adam" with adam_w_mode false (L2)
  double lr = 1e-3;
  double beta1 = 0.9;    // for SGD and RMSprop: momentum
  double beta2 = 0.999;  // for RMSprop: alpha
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool bias_correction = true;
  double dampening = 0.0;        // for SGD
  bool nesterov = false;         // for SGD
  double lr_decay = 0.0;         // for Adagrad
  double initial_squares = 0.0;  // for Adagrad: initial value of its sums
  double min_coeff = 0.01;       // for Lamb: bounds of the trust ratio
  double max_coeff = 10.0;
  // for Muon: learning rate of matrices; `lr` is that of all other parameters
  double muon_lr = 0.0;
  double momentum = 0.95;  // for Muon
  NewtonSchulz newton_schulz = NewtonSchulz::Gram;

  bool operator==(const OptimizerConfig&) const = default;
};

struct SchedulerConfig {
  enum class Type : std::uint8_t {
    Constant,
    WarmupLR,
    WarmupDecayLR,
    WarmupCosineLR,
    LRRangeTest,
    OneCycle
  };
  Type type = Type::Constant;
  double warmup_min_lr = 0.0;
  double warmup_max_lr = 0.0;  // resolved: always present
  std::uint64_t warmup_num_steps = 1000;
  bool warmup_linear = false;  // false: logarithmic
  std::uint64_t total_num_steps = 0;
  double warmup_min_ratio = 0.0;
  double cos_min_ratio = 1e-4;

  struct RangeTest {  // parameters of LRRangeTest
    double min_lr = 1e-3;
    std::uint64_t step_size = 2000;
    double step_rate = 1.0;
    bool staircase = false;

    bool operator==(const RangeTest&) const = default;
  };
  RangeTest range_test{};

  struct Cycle {  // parameters of OneCycle; steps of both halves; 0 stairs: no stairs
    double min_lr = 0.0;
    double max_lr = 0.0;
    double decay_lr_rate = 0.0;
    std::uint64_t first_steps = 2000;
    std::uint64_t second_steps = 2000;
    std::uint64_t first_stairs = 0;
    std::uint64_t second_stairs = 0;
    std::uint64_t decay_step_size = 0;  // 0: no decay after the cycle
    bool momentum = true;  // Adam's beta1 cycles in the opposite direction, and beta2 is 0.99
    double min_momentum = 0.8;
    double max_momentum = 0.9;
    double decay_momentum_rate = 0.0;

    bool operator==(const Cycle&) const = default;
  };
  Cycle cycle{};

  bool operator==(const SchedulerConfig&) const = default;
};

/// Loss scaling of fp16 (same semantics as DeepSpeed's loss_scaler).
struct LossScaleConfig {
  double loss_scale = 0.0;  // > 0: static; 0: dynamic
  std::uint32_t initial_scale_power = 16;
  std::uint64_t loss_scale_window = 1000;
  std::uint32_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;

  bool operator==(const LossScaleConfig&) const = default;
};

struct AioConfig {
  std::uint64_t block_size = 1 << 20;  // bytes
  std::uint32_t queue_depth = 8;
  std::uint32_t intra_op_parallelism = 1;
  bool single_submit = false;
  bool overlap_events = true;

  bool operator==(const AioConfig&) const = default;
};

enum class VerifyMode : std::uint8_t { Full, Sample, Off };
enum class EngineChoice : std::uint8_t { Auto, IoUring, Libaio, Threads };
enum class PollingChoice : std::uint8_t { Off, Submission, Completion, Both };

/// The determinism of LibTorch's operations on a GPU. Preferred: operations without a deterministic
/// kernel run, too, and LibTorch's fused attention uses its nondeterministic kernel.
enum class Determinism : std::uint8_t { Required, Preferred };

/// How ranks add up gradients: each micro-batch's, in an order that gives the bits of one rank; or
/// each rank's sum, once a step.
enum class Reduction : std::uint8_t { Exact, Fast };

/// The "artesian" section.
struct ArtesianConfig {
  std::optional<std::uint64_t> device_memory;  // bytes; absent: chosen from the machine
  std::optional<std::uint64_t> host_memory;
  std::optional<std::uint64_t> activation_memory;
  VerifyMode verify = VerifyMode::Full;
  std::optional<DType> compute_dtype;  // absent: auto
  Determinism determinism = Determinism::Required;
  EngineChoice engine = EngineChoice::Auto;
  PollingChoice polling = PollingChoice::Off;
  bool speculative_update = true;  // update under backward, rolled back if needed: under_backward.h
  // the run ends after more skipped steps in a row than this; 0: no limit
  std::uint64_t skipped_steps_max = 100;
  std::uint64_t checkpoint_every = 0;  // steps between checkpoints; 0: only at the end
  DType moments = DType::Float32;  // dtype of the optimizer's moments; BFloat16 rounds to nearest
  Reduction reduction = Reduction::Exact;

  bool operator==(const ArtesianConfig&) const = default;
};

/// An enabled section for a tracker, to which a trainer sends the figures of each step, besides its
/// log.
struct TrackerConfig {
  std::string name;                            // tensorboard, wandb, csv_monitor or comet
  std::map<std::string, std::string> options;  // keys given in the section, as text

  bool operator==(const TrackerConfig&) const = default;
};

struct Config {
  std::uint64_t train_batch_size = 0;
  std::uint64_t micro_batch_size = 0;
  std::uint64_t accumulation_steps = 0;
  bool managed_gradient_accumulation = true;  // false: every step() of a Python script is a step
  double gradient_clipping = 1.0;             // 0: off
  std::optional<std::uint64_t> steps_per_print;
  bool wall_clock_breakdown = false;
  DType param_dtype = DType::Float32;        // from the fp16 or bf16 section, else fp32
  DType grad_accum_dtype = DType::Float32;   // default: param_dtype
  std::optional<DType> communication_dtype;  // in which ranks send gradients; absent: param_dtype
  LossScaleConfig loss_scale;                // used with fp16
  bool check_grad_overflow = true;           // bf16 section; always true for fp16 and fp32
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  std::vector<TrackerConfig> trackers;
  // keep only the stages' inputs, and recompute stages in backward
  bool activation_checkpointing = false;
  bool cpu_checkpointing = false;  // keep these inputs in host memory or on NVMe
  ZeroConfig zero;
  AioConfig aio;
  /// The config has no aio section, so settings that `aio_bench tune` found for a disk override
  /// `aio` (path_io.h). A Config that was not read from JSON uses its own `aio`, unless it sets
  /// this.
  bool aio_from_profile = false;
  ArtesianConfig artesian;
  std::vector<std::string> notes;  // one line each: keys without effect, and resolved values

  bool operator==(const Config&) const = default;
};

/// How unknown keys are treated: as faults, or ignored and listed in Config::notes.
enum class UnknownKeys : std::uint8_t { AreFaults, AreNoted };

/// Values from the command line and the model, used if the config lacks one or says "auto".
struct ConfigArguments {
  std::optional<std::uint64_t> micro_batch_size;
  std::optional<std::uint64_t> accumulation_steps;
  std::optional<double> lr;
  std::optional<std::uint64_t> steps;  // total optimizer steps, for learning rate schedules
  // The run's number of steps as given by its data, without --steps; known only after the config
  // was first read.
  std::optional<std::uint64_t> steps_of_data = {};
  bool steps_later = false;  // the number of steps follows later, so a schedule may lack it for now
  std::optional<std::uint64_t> hidden_size;  // for "auto" bucket sizes
  std::uint64_t world_size = 1;
  UnknownKeys unknown_keys = UnknownKeys::AreFaults;
};

/// Reads and resolves the text of a config; `path` is for messages. Errors: Invalid, whose message
/// holds one line per fault (at most 5), each "KEY.PATH: got X, allowed Y; FIX"; Unsupported, "not
/// supported yet: KEY".
Result<Config> parse_config(std::string_view text, const std::string& path,
                            const ConfigArguments& arguments);

}  // namespace artesian::zero3
