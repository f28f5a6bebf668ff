// The planner: predicts a training job without running it. Pure and without LibTorch: from model,
// configuration, memory and rates it computes memory, bytes, seconds, and suggested changes. Memory
// is computed by the engine's own Placement, bytes by its own Prefetcher (zero3/plan/rehearsal.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/activation_bytes.h"
#include "models/device_work.h"
#include "models/flops.h"
#include "models/model_config.h"
#include "tools/plan/disk_space.h"
#include "zero3/config/config.h"
#include "zero3/plan/rehearsal.h"

namespace artesian::tools {

/// Seconds in a block and in the head, forward and backward.
struct ModelSeconds {
  double block_forward = 0.0, block_backward = 0.0;
  double head_forward = 0.0, head_backward = 0.0;
};

/// Returns the seconds per token at this many floating-point operations per second; backward takes
/// twice as long as forward.
ModelSeconds token_seconds(const models::ForwardFlops& forward, double flops_per_s);

/// The rates of a GPU, per second, for each kind of work (models/device_work.h).
struct DeviceRates {
  double products = 0.0;   // floating-point operations in matrix products
  double attention = 0.0;  // in forward; backward runs at half this rate
  double bytes = 0.0;
};

/// Returns the seconds per token, with the kinds of work one after the other.
ModelSeconds token_seconds(const models::DeviceWork& work, const DeviceRates& rates);

/// Returns the seconds of a micro-batch's launches, `each` seconds per launch.
ModelSeconds launch_seconds(const models::DeviceWork& work, double each);

/// The spelling in configs.
const char* offload_name(zero3::Offload offload) noexcept;

/// The buckets of DeepSpeed's communication, for advice only: Artesian needs no memory for them.
struct DeepSpeedBuckets {
  bool overlap_comm = false;
  std::uint64_t reduce_bucket_size = 0;  // elements
  std::uint64_t allgather_bucket_size = 0;
};

/// The compute time of fp32 parameters if they were bf16.
struct ComputeInBf16 {
  DType compute_dtype = DType::Float32;
  DType grad_accum_dtype = DType::BFloat16;
  ModelSeconds compute;  // per token
};

struct PlanCase {
  const models::ModelConfig* model = nullptr;
  const std::vector<zero3::ParameterSpec>* parameters = nullptr;
  const std::vector<zero3::StageSpec>* stages = nullptr;
  zero3::Config config;  // with micro_batch_size and accumulation_steps per rank
  /// The config does not set the dtype of accumulated gradients, so changing other keys changes it.
  bool grad_accum_by_default = false;
  std::uint64_t length = 0;
  std::uint64_t ranks = 1;
  bool gpu = false;  // false: ranks on CPUs
  /// The size of the device tier. Absent: what remains of gpu_bytes, which must be set.
  std::optional<std::uint64_t> device_bytes;
  /// A GPU's whole memory, including activations and CUDA's part beside the tier. Absent: unknown,
  /// or equal to memory_max.
  std::optional<std::uint64_t> gpu_bytes;
  std::uint64_t host_bytes = 0;
  /// The most bytes for activations, both tiers and the program if they share one memory; with a
  /// GPU only for host tier and program. A plan that needs more is refused. Absent: unknown.
  std::optional<std::uint64_t> memory_max;
  /// Bytes that the process will use besides these and beyond its present ones: pages of libraries,
  /// and their buffers.
  std::uint64_t program_bytes = 0;
  DiskSpace space;  // a plan whose NVMe state does not fit here is refused
  /// The most bytes for activations of several micro-batches that run layer by layer.
  std::uint64_t activation_bytes = 0;
  DType compute_dtype = DType::Float32;
  zero3::Rates rates;
  ModelSeconds compute;  // per token
  /// Seconds of a micro-batch's launches, a lower bound of its time. 0: not a GPU.
  ModelSeconds launches;
  std::optional<ComputeInBf16> bf16;  // absent: not measured
  DeepSpeedBuckets buckets;
};

/// Bytes in one tier, by kind.
struct TierBytes {
  std::uint64_t budget = 0;     // for NVMe the free bytes; 0: none
  std::uint64_t param = 0;      // bytes of homes
  std::uint64_t grad = 0;       // bytes of accumulators
  std::uint64_t optimizer = 0;  // bytes of homes
  std::uint64_t gathered = 0;   // bytes of slots
  // staging and gradients of a stage; on NVMe shadows of optimizer state
  std::uint64_t buffers = 0;
  std::uint64_t input = 0;  // stage inputs, kept for backward
  std::uint64_t used() const noexcept {
    return param + grad + optimizer + gathered + buffers + input;
  }
};

struct PlanFigures {
  std::uint64_t elements = 0;  // number of the model's parameters
  TierBytes device, host, nvme;
  std::uint64_t activations = 0;  // estimated bytes
  zero3::MovedByKind moved;
  zero3::StepTime time;
  /// Seconds of a step if gradients are clipped in every step, so that no update begins under
  /// backward.
  double clipped_seconds = 0.0;
  std::uint64_t tokens = 0;  // tokens per step, of all ranks
  double tokens_per_s = 0.0;
  double tflops = 0.0;      // per rank
  double idle_share = 0.0;  // of the device that computes the model
  std::string bottleneck;
  double nvme_terabytes_written = 0.0;  // per 1,000 steps, all ranks
  std::uint64_t checkpoint = 0;         // bytes of one checkpoint, all ranks
  /// Seconds of one save: reading the state on NVMe and writing all state there. 0: unknown.
  double save_seconds = 0.0;
  std::vector<std::string> notes;
};

/// Plans the case. Errors: Exhausted, NoSpace, with the bytes missing and the key to change.
Result<PlanFigures> evaluate(const PlanCase& plan);

/// True if `artesian.reduction` fast would send less.
inline bool can_reduce_fast(const PlanCase& plan) {
  return plan.ranks > 1 && plan.config.accumulation_steps > 1 &&
         plan.config.artesian.reduction == zero3::Reduction::Exact;
}

/// Seconds of a planned step that a bus without bounds would spare.
double exposed_bus(const PlanCase& plan, const PlanFigures& planned);

/// Plans only the memory: the same tiers, activations and notes as evaluate(), without disk,
/// traffic and time; rates and DiskSpace are ignored. Errors: Exhausted, as above.
Result<PlanFigures> evaluate_memory(const PlanCase& plan);

/// "1 GiB of activations beside 2 GiB of the device tier, 3 GiB of the host's and 4 MiB of the
/// program": the sum that is compared with memory_max.
std::string memory_text(const PlanCase& plan, const PlanFigures& figures);

struct Change {
  std::string key;  // the config's key, or what to buy
  std::string from, to;
  double tokens_per_s = 0.0;
  double gain = 0.0;  // relative, in tokens/s: 0.25 is a quarter more
  double step_seconds = 0.0;
};

/// Returns the gains of single changes, best first, only the best of each key; each is computed by
/// planning the changed case. Changes that do not fit or gain less than 1% are left out.
std::vector<Change> find_changes(const PlanCase& plan, const PlanFigures& now);

struct Candidate {
  std::string name;  // "ZeRO-2, optimizer on cpu"
  zero3::Config config;
  PlanFigures figures;
  std::optional<double> measured_seconds;  // measured seconds of a step, if it was run
};

/// Returns, for each strategy that fits (DeepSpeed's ZeRO-2 to ZeRO-Infinity), its fastest
/// micro-batch at the same train_batch_size. Fastest first.
std::vector<Candidate> search(const PlanCase& plan);

/// Returns the config with which a run does exactly what was planned for this candidate.
zero3::Config config_of_run(const PlanCase& plan, const Candidate& candidate);

/// Returns advice in terms of DeepSpeed's keys, one line each.
std::vector<std::string> advise(const PlanCase& plan);

}  // namespace artesian::tools
