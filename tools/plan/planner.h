// The planner: what a training job would be, without running it. Pure and without LibTorch: model,
// configuration, memory and rates in; memory, bytes, seconds, and what to change out. What it says
// of memory is the engine's own Placement, of bytes its own Prefetcher (zero3/plan/rehearsal.h).
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

/// Returns the seconds of a token at this many floating-point operations per second; backward takes
/// twice as long as forward.
ModelSeconds token_seconds(const models::ForwardFlops& forward, double flops_per_s);

/// The rates of a GPU, in a second, of each kind of work (models/device_work.h).
struct DeviceRates {
  double products = 0.0;   // floating-point operations
  double attention = 0.0;  // forward; backward at half of it
  double bytes = 0.0;
};

/// Returns the seconds of a token, one kind of work after the other.
ModelSeconds token_seconds(const models::DeviceWork& work, const DeviceRates& rates);

/// Returns the seconds of a micro-batch's launches, `each` seconds one.
ModelSeconds launch_seconds(const models::DeviceWork& work, double each);

/// As configs spell it.
const char* offload_name(zero3::Offload offload) noexcept;

/// The buckets of DeepSpeed's communication, which Artesian takes no memory for: for advice alone.
struct DeepSpeedBuckets {
  bool overlap_comm = false;
  std::uint64_t reduce_bucket_size = 0;  // elements
  std::uint64_t allgather_bucket_size = 0;
};

/// Says what fp32 parameters would be computed with, were they bf16.
struct ComputeInBf16 {
  DType compute_dtype = DType::Float32;
  DType grad_accum_dtype = DType::BFloat16;
  ModelSeconds compute;  // for each token
};

struct PlanCase {
  const models::ModelConfig* model = nullptr;
  const std::vector<zero3::ParameterSpec>* parameters = nullptr;
  const std::vector<zero3::StageSpec>* stages = nullptr;
  zero3::Config config;  // micro_batch_size and accumulation_steps are of one rank
  /// The config names no type of accumulated gradients: a change of the others changes it.
  bool grad_accum_by_default = false;
  std::uint64_t length = 0;
  std::uint64_t ranks = 1;
  bool gpu = false;  // false: the CPU of one rank
  /// The size of the device tier. Absent: what is left of gpu_bytes, which must be set.
  std::optional<std::uint64_t> device_bytes;
  /// All of a GPU's memory: activations and CUDA's part are in it, beside the tier. Absent:
  /// unknown, or equal to memory_max.
  std::optional<std::uint64_t> gpu_bytes;
  std::uint64_t host_bytes = 0;
  /// Bytes that activations, both tiers and the program may take together, if they share one
  /// memory; with a GPU only host tier and program. More is refused. Absent: unknown.
  std::optional<std::uint64_t> memory_max;
  /// Bytes that the process takes beside them, more than it has now: pages of libraries, and their
  /// buffers.
  std::uint64_t program_bytes = 0;
  DiskSpace space;  // state on NVMe that does not fit here is refused
  /// The bytes that activations of several micro-batches may take at once, to run layer by layer.
  std::uint64_t activation_bytes = 0;
  DType compute_dtype = DType::Float32;
  zero3::Rates rates;
  ModelSeconds compute;  // for each token
  /// Seconds of a micro-batch's launches, than which it takes no less. 0: not a GPU.
  ModelSeconds launches;
  std::optional<ComputeInBf16> bf16;  // absent: not measured
  DeepSpeedBuckets buckets;
};

/// Bytes in one tier, by kind.
struct TierBytes {
  std::uint64_t budget = 0;     // of NVMe the free bytes; 0: none
  std::uint64_t param = 0;      // homes
  std::uint64_t grad = 0;       // accumulators
  std::uint64_t optimizer = 0;  // homes
  std::uint64_t gathered = 0;   // slots
  std::uint64_t buffers = 0;    // staging, gradients of a stage; shadows of optimizer state
  std::uint64_t input = 0;      // stage inputs, kept for backward
  std::uint64_t used() const noexcept {
    return param + grad + optimizer + gathered + buffers + input;
  }
};

struct PlanFigures {
  std::uint64_t elements = 0;  // parameters of the model
  TierBytes device, host, nvme;
  std::uint64_t activations = 0;  // an estimate
  zero3::MovedByKind moved;
  zero3::StepTime time;
  /// Seconds of a step if gradients are clipped in each, so that no update begins under backward.
  double clipped_seconds = 0.0;
  std::uint64_t tokens = 0;  // tokens of a step, of all ranks
  double tokens_per_s = 0.0;
  double tflops = 0.0;      // for each rank
  double idle_share = 0.0;  // of the device that computes the model
  std::string bottleneck;
  double nvme_terabytes_written = 0.0;  // 1,000 steps, all ranks
  std::uint64_t checkpoint = 0;         // bytes of one, all ranks
  /// Seconds of one save: state on NVMe is read, and all state is written there. 0: unknown.
  double save_seconds = 0.0;
  std::vector<std::string> notes;
};

/// Errors: Exhausted, NoSpace, with the bytes missing and the key to change.
Result<PlanFigures> evaluate(const PlanCase& plan);

/// Plans memory alone: tiers, activations and notes as evaluate() finds them, without disk, traffic
/// and time; rates and DiskSpace are ignored. Errors: Exhausted, as above.
Result<PlanFigures> evaluate_memory(const PlanCase& plan);

/// "1 GiB of activations beside 2 GiB of the device tier, 3 GiB of the host's and 4 MiB of the
/// program": what memory_max is held against.
std::string memory_text(const PlanCase& plan, const PlanFigures& figures);

struct Change {
  std::string key;  // the config's key, or what to buy
  std::string from, to;
  double tokens_per_s = 0.0;
  double gain = 0.0;  // in tokens/s: 0.25 is a quarter more
  double step_seconds = 0.0;
};

/// Returns what single changes would bring, best first, of each key the best: each is the case
/// planned anew. Those that do not fit or bring less than 1% are left out.
std::vector<Change> find_changes(const PlanCase& plan, const PlanFigures& now);

struct Candidate {
  std::string name;  // "ZeRO-2, optimizer on cpu"
  zero3::Config config;
  PlanFigures figures;
  std::optional<double> measured_seconds;  // of a step, if it was run
};

/// For each strategy that fits, in DeepSpeed's order of speed from ZeRO-2 to ZeRO-Infinity, its
/// fastest micro-batch at the same train_batch_size. Fastest first.
std::vector<Candidate> search(const PlanCase& plan);

/// Returns the config for a run of this candidate, so that the run is what was planned.
zero3::Config config_of_run(const PlanCase& plan, const Candidate& candidate);

/// In DeepSpeed's keys, one line each.
std::vector<std::string> advise(const PlanCase& plan);

}  // namespace artesian::tools
