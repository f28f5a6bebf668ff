#include "tools/plan/rates.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "models/flops.h"
#include "tools/plan/disk.h"
#include "tools/plan/probe.h"

namespace artesian::tools {
namespace {

constexpr double giga = 1e9;
// Assumed if nothing is known, which is reported: an unshared PCIe 4 SSD; a 16-bit matrix rate that
// H100-class GPUs sustain, and an eighth of it in fp32; memory and links of such machines.
constexpr tiering::DiskSpeed assumed_disk{3.0 * giga, 2.0 * giga};
constexpr double assumed_gpu_tflops = 400.0;
constexpr double assumed_attention_share = 0.5;       // share of the products' rate
constexpr double assumed_launch = 5e-6;               // seconds of the host's thread, per launch
constexpr double assumed_memory_speed = 25.0 * giga;  // for one rank of a node
constexpr double assumed_device_memory = 2000.0 * giga;
constexpr double assumed_link = 25.0 * giga;
constexpr double assumed_bus = 200.0 * giga;
constexpr double assumed_bus_between = 25.0 * giga;
// Gloo, with a core for each rank: measured with two ranks, sending at the same time.
constexpr double assumed_bus_of_cpus = 0.7 * giga;

class Chooser {
 public:
  Chooser(const PlanOptions& options, PlanCase& plan) : options_(options), plan_(plan) {}

  Result<ChosenRates> run() {
    choose_disk();
    choose_memory();
    if (plan_.gpu) choose_links();
    if (plan_.ranks > 1) choose_bus();
    ARTESIAN_TRY_VOID(choose_compute());
    return ChosenRates{.rates = std::move(sources_), .notes = std::move(notes_)};
  }

 private:
  void say(const char* name, double value, const std::string& source) {
    sources_.push_back({name, value / giga, "GB/s", source});
  }

  double given_or(const char* name, const std::optional<double>& given, double otherwise,
                  const std::string& source) {
    const double value = given.value_or(otherwise);
    say(name, value, given.has_value() ? "given" : source);
    return value;
  }

  /// Describes the source of a key's disk speeds.
  std::string source_of(const SwapVolume& volume) const {
    std::string source = "assumed; measure with aio_bench tune, or give --nvme-read, --nvme-write";
    if (!volume.measured_at.empty()) source = "measured by aio_bench tune, " + volume.measured_at;
    if (volume.disks.size() > 1 && !options_.disks.has_value()) {
      source += fmt::format("; {} paths together", volume.disks.size());
    }
    return source;
  }

  tiering::DiskSpeed speed_of(const SwapVolume& volume) const {
    if (volume.disks.empty() || options_.disks.has_value()) return assumed_disk;
    return tiering::striped_speed(volume.disks, tiering::stripe_weights(volume.disks));
  }

  /// The rate of one rank: the ranks of a node share its disks.
  double disk_rate(const char* name, const std::optional<double>& given, double otherwise,
                   const std::string& source) {
    const std::uint64_t ranks = options_.ranks_of_node();
    const std::uint64_t disks = options_.disks.value_or(1);
    const double value =
        given.value_or(otherwise) * static_cast<double>(disks) / static_cast<double>(ranks);
    std::string whose = ranks > 1 ? fmt::format("of each of {} ranks", ranks) : "";
    if (options_.disks.has_value()) {
      whose +=
          fmt::format("{}{} {}", whose.empty() ? "" : " on ", disks, disks == 1 ? "disk" : "disks");
    }
    if (!whose.empty()) whose += ", ";
    say(name, value, whose + (given.has_value() ? "given" : source));
    return value;
  }

  void choose_disk() {
    zero3::Rates& rates = plan_.rates;
    const SwapVolumes found =
        swap_volumes(plan_.config, {.here = !plan_.gpu, .assumed = assumed_disk});
    if (!plan_.gpu) plan_.space = free_space(found, system_files());
    plan_.space.ranks = options_.ranks_of_node();
    const auto duplex = [](const SwapVolume& volume) {
      return volume.duplex && !volume.measured_at.empty();
    };
    const bool both = duplex(found.optimizer) && (found.same || duplex(found.param));
    rates.disk = both ? zero3::Disk::Duplex : zero3::Disk::Shared;
    const tiering::DiskSpeed speed = speed_of(found.optimizer);
    const std::string of = found.same ? "" : "; of offload_optimizer.nvme_path";
    const std::string source = source_of(found.optimizer) + of;
    rates.disk_read = disk_rate("nvme_read", options_.nvme_read, speed.read_bytes_per_s, source);
    rates.disk_write =
        disk_rate("nvme_write", options_.nvme_write, speed.write_bytes_per_s, source);
    notes_ = found.optimizer.notes;
    if (!found.same) choose_param_disk(found);
  }

  /// Parameters have separate folders. A given rate is the total over all disks.
  void choose_param_disk(const SwapVolumes& found) {
    zero3::Rates& rates = plan_.rates;
    const tiering::DiskSpeed speed = speed_of(found.param);
    const std::string source = source_of(found.param) + "; of offload_param.nvme_path";
    rates.param_read = rates.disk_read;
    rates.param_write = rates.disk_write;
    if (!options_.nvme_read.has_value()) {
      rates.param_read = disk_rate("param_nvme_read", {}, speed.read_bytes_per_s, source);
    }
    if (!options_.nvme_write.has_value()) {
      rates.param_write = disk_rate("param_nvme_write", {}, speed.write_bytes_per_s, source);
    }
    rates.param_apart =
        found.apart && !options_.nvme_read.has_value() && !options_.nvme_write.has_value();
    for (const std::string& each : found.param.notes) {
      if (std::find(notes_.begin(), notes_.end(), each) == notes_.end()) notes_.push_back(each);
    }
  }

  void choose_memory() {
    zero3::Rates& rates = plan_.rates;
    const bool measures = !plan_.gpu && !options_.memory.has_value();
    const ProbedMemory probed = measures ? probe_memory() : ProbedMemory{};
    rates.memory = given_or("cpu_kernels", options_.memory,
                            measures ? probed.kernels / of_rank() : assumed_memory_speed,
                            measures ? "measured: Adam on all threads" + shared() : "assumed");
    rates.checksum = measures ? probed.checksum / of_rank() : rates.memory;
    if (plan_.config.artesian.verify == zero3::VerifyMode::Off) {
      rates.checksum = 0.0;
    } else {
      say("checksums", rates.checksum,
          measures ? "measured: beside Adam" + shared() : "as cpu_kernels");
    }
  }

  void choose_links() {
    zero3::Rates& rates = plan_.rates;
    rates.to_device = rates.to_host = given_or("link", options_.link, assumed_link, "assumed");
    rates.device_memory =
        given_or("device_memory", options_.device_bandwidth, assumed_device_memory, "assumed");
  }

  void choose_bus() {
    double& bus = plan_.rates.bus;
    if (!plan_.gpu) {
      bus = given_or("bus", options_.bus, assumed_bus_of_cpus, "assumed: Gloo, within a node");
      return;
    }
    const bool one_node = options_.nodes == 1;
    bus = given_or("bus", options_.bus, one_node ? assumed_bus : assumed_bus_between,
                   one_node ? "assumed: within a node" : "assumed: between nodes");
  }

  /// What is measured on all of this machine's threads is shared by the ranks of a node.
  double of_rank() const { return static_cast<double>(options_.ranks_of_node()); }
  std::string shared() const {
    return options_.processes == 1 ? "" : fmt::format(", shared by {} ranks", options_.processes);
  }

  ModelSeconds seconds_at(double tflops, DType dtype) const {
    if (!plan_.gpu) {
      const auto flops = models::forward_flops_per_token(*plan_.model, plan_.length);
      return token_seconds(flops, tflops * 1e12);
    }
    return token_seconds(models::device_work(*plan_.model, plan_.length, dtype),
                         {.products = tflops * 1e12,
                          .attention = attention_tflops(tflops) * 1e12,
                          .bytes = plan_.rates.device_memory});
  }

  double attention_tflops(double tflops) const {
    return options_.attention_tflops.value_or(assumed_attention_share * tflops);
  }

  void say_attention(double tflops) {
    sources_.push_back(
        {"attention", attention_tflops(tflops), "TFLOP/s",
         options_.attention_tflops.has_value() ? "given" : "assumed: half of compute"});
  }

  void choose_launches() {
    const double launch = options_.launch.value_or(assumed_launch);
    sources_.push_back(
        {"launch", launch * 1e6, "us", options_.launch.has_value() ? "given" : "assumed"});
    const auto work = models::device_work(*plan_.model, plan_.length, plan_.compute_dtype);
    plan_.launches = launch_seconds(work, launch);
  }

  Result<void> choose_compute() {
    if (options_.tflops.has_value() || plan_.gpu) {
      const bool narrow = plan_.config.param_dtype != DType::Float32;
      const double assumed = narrow ? assumed_gpu_tflops : assumed_gpu_tflops / 8;
      const double tflops = options_.tflops.value_or(assumed);
      plan_.compute = seconds_at(tflops, plan_.compute_dtype);
      sources_.push_back({"compute", tflops, "TFLOP/s",
                          options_.tflops.has_value() ? "given" : "assumed; give --tflops"});
      if (plan_.gpu) {
        say_attention(tflops);
        choose_launches();
      }
      if (plan_.bf16.has_value()) assume_bf16();
      return {};
    }
    log(LogLevel::Info, "measuring one block and the head on this CPU; --tflops X spares that");
    ARTESIAN_TRY(seconds, probe("compute", plan_.compute_dtype, plan_.config.param_dtype));
    plan_.compute = seconds;
    if (!plan_.bf16.has_value()) return {};
    plan_.bf16->compute = seconds;
    if (plan_.bf16->compute_dtype == plan_.compute_dtype) return {};  // bf16 is not faster here
    ARTESIAN_TRY(in_bf16, probe("compute_bf16", plan_.bf16->compute_dtype, DType::BFloat16));
    plan_.bf16->compute = in_bf16;
    return {};
  }

  Result<ModelSeconds> probe(const char* name, DType dtype, DType stored) {
    ARTESIAN_TRY(probed, probe_compute(*plan_.model, dtype, stored, plan_.config.micro_batch_size,
                                       plan_.length));
    sources_.push_back({name, probed.tflops / of_rank(), "TFLOP/s",
                        (probed.by_product ? "measured: one matrix product on all threads"
                                           : "measured: one block and the head on all threads") +
                            shared()});
    for (const auto part : {&ModelSeconds::block_forward, &ModelSeconds::block_backward,
                            &ModelSeconds::head_forward, &ModelSeconds::head_backward}) {
      probed.seconds.*part *= of_rank();
    }
    return probed.seconds;
  }

  /// A given rate applies to both dtypes.
  void assume_bf16() {
    plan_.bf16->compute = seconds_at(options_.tflops.value_or(assumed_gpu_tflops), DType::BFloat16);
    if (options_.tflops.has_value()) return;
    sources_.push_back({"compute_bf16", assumed_gpu_tflops, "TFLOP/s", "assumed; give --tflops"});
  }

  const PlanOptions& options_;
  PlanCase& plan_;
  std::vector<RateSource> sources_;
  std::vector<std::string> notes_;
};

}  // namespace

Result<ChosenRates> choose_rates(const PlanOptions& options, PlanCase& plan) {
  return Chooser(options, plan).run();
}

}  // namespace artesian::tools
