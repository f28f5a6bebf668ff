#include "tools/plan_rates.h"

#include <algorithm>

#include "base/log.h"
#include "models/flops.h"
#include "tools/plan_probe.h"
#include "zero3/path_io.h"

namespace artesian::tools {
namespace {

constexpr double giga = 1e9;
// Assumed where nothing is known, and said so: a PCIe 4 SSD shared by nobody; a 16-bit matrix rate
// that H100-class GPUs sustain, and an eighth of it in fp32; memory and links of such machines.
constexpr double assumed_read = 3.0 * giga;
constexpr double assumed_write = 2.0 * giga;
constexpr double assumed_gpu_tflops = 400.0;
constexpr double assumed_host_memory = 25.0 * giga;  // of one rank of a node
constexpr double assumed_device_memory = 2000.0 * giga;
constexpr double assumed_link = 25.0 * giga;
constexpr double assumed_bus = 200.0 * giga;
constexpr double assumed_bus_between = 25.0 * giga;

class Chooser {
 public:
  Chooser(const PlanOptions& options, PlanCase& plan) : options_(options), plan_(plan) {}

  Result<ChosenRates> run() {
    choose_disk();
    choose_memory();
    if (plan_.gpu) choose_links();
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

  /// The folders of the swap files.
  const std::vector<std::string>& disk_folders() const {
    const zero3::ZeroConfig& zero = plan_.config.zero;
    const bool optimizer = zero.offload_optimizer.device == zero3::Offload::Nvme;
    return optimizer ? zero.offload_optimizer.nvme_paths : zero.offload_param.nvme_paths;
  }

  struct Disks {
    std::vector<tiering::PathDisk> paths;
    bool duplex = true;
    std::string measured_at;  // the first; empty: assumed
  };

  /// As `aio_bench tune` measured them; unless it measured all, as assumed.
  Disks disks() {
    Disks disks;
    const std::vector<std::string>& folders = disk_folders();
    // A GPU is one of another machine, where nothing is known, and each folder is a disk.
    std::vector<zero3::SavedProfile> saved(folders.size());
    if (!plan_.gpu) saved = zero3::saved_profiles(folders);
    zero3::PathIoChoice io = zero3::choose_path_io(plan_.config, folders, saved);
    notes_ = std::move(io.notes);
    std::vector<std::string> names;  // one for each file system
    std::size_t measured = 0;
    for (std::size_t path = 0; path < folders.size(); ++path) {
      const std::string& name = saved[path].file.empty() ? folders[path] : saved[path].file;
      const auto known = std::find(names.begin(), names.end(), name);
      const auto device = static_cast<std::uint64_t>(known - names.begin());
      if (known == names.end()) names.push_back(name);
      disks.paths.push_back({.speed = {assumed_read, assumed_write}, .device = device});
      const auto& profile = saved[path].profile;
      if (!profile.has_value()) continue;
      const tiering::DiskSpeed speed = profile->speed(io.paths[path].options.block_size);
      if (speed.read_bytes_per_s <= 0 || speed.write_bytes_per_s <= 0) continue;
      disks.paths.back().speed = speed;
      disks.duplex = disks.duplex && profile->duplex;
      if (++measured == 1) disks.measured_at = profile->measured_at;
    }
    if (measured == disks.paths.size()) return disks;
    for (auto& path : disks.paths) path.speed = {assumed_read, assumed_write};
    disks.measured_at.clear();
    return disks;
  }

  void choose_disk() {
    zero3::Rates& rates = plan_.rates;
    const Disks found = disks();
    tiering::DiskSpeed speed{assumed_read, assumed_write};
    if (!found.paths.empty()) {
      speed = tiering::striped_speed(found.paths, tiering::stripe_weights(found.paths));
    }
    std::string source = "assumed; measure with aio_bench tune, or give --nvme-read, --nvme-write";
    if (!found.measured_at.empty()) {
      rates.disk = found.duplex ? tiering::Disk::Duplex : tiering::Disk::Shared;
      source = "measured by aio_bench tune, " + found.measured_at;
    }
    if (found.paths.size() > 1) {
      source += "; " + std::to_string(found.paths.size()) + " paths together";
    }
    rates.disk_read = given_or("nvme_read", options_.nvme_read, speed.read_bytes_per_s, source);
    rates.disk_write = given_or("nvme_write", options_.nvme_write, speed.write_bytes_per_s, source);
  }

  void choose_memory() {
    zero3::Rates& rates = plan_.rates;
    const bool measures = !plan_.gpu && !options_.memory.has_value();
    const ProbedMemory probed = measures ? probe_memory() : ProbedMemory{};
    rates.memory =
        given_or("cpu_kernels", options_.memory, measures ? probed.kernels : assumed_host_memory,
                 measures ? "measured: Adam on all threads" : "assumed");
    rates.checksum = measures ? probed.checksum : rates.memory;
    if (plan_.config.artesian.verify == zero3::VerifyMode::Off) {
      rates.checksum = 0.0;
    } else {
      say("checksums", rates.checksum, measures ? "measured: beside Adam" : "as cpu_kernels");
    }
  }

  void choose_links() {
    zero3::Rates& rates = plan_.rates;
    rates.to_device = rates.to_host = given_or("link", options_.link, assumed_link, "assumed");
    rates.device_memory = assumed_device_memory;
    say("device_memory", rates.device_memory, "assumed");
    if (plan_.ranks == 1) return;
    const bool one_node = options_.nodes == 1;
    rates.bus = given_or("bus", options_.bus, one_node ? assumed_bus : assumed_bus_between,
                         one_node ? "assumed: within a node" : "assumed: between nodes");
  }

  void take_tflops(double tflops) {
    const auto flops = models::forward_flops_per_token(*plan_.model, plan_.length);
    plan_.compute = token_seconds(flops, tflops * 1e12);
  }

  Result<void> choose_compute() {
    if (options_.tflops.has_value() || plan_.gpu) {
      const bool narrow = plan_.config.param_dtype != DType::Float32;
      const double assumed = narrow ? assumed_gpu_tflops : assumed_gpu_tflops / 8;
      const double tflops = options_.tflops.value_or(assumed);
      take_tflops(tflops);
      sources_.push_back({"compute", tflops, "TFLOP/s",
                          options_.tflops.has_value() ? "given" : "assumed; give --tflops"});
      return {};
    }
    log(LogLevel::Info, "measuring one block and the head on this CPU; --tflops X spares that");
    ARTESIAN_TRY(probed, probe_compute(*plan_.model, plan_.compute_dtype, plan_.config.param_dtype,
                                       plan_.config.micro_batch_size, plan_.length));
    plan_.compute = probed.seconds;
    sources_.push_back({"compute", probed.tflops, "TFLOP/s",
                        probed.by_product ? "measured: one matrix product on all threads"
                                          : "measured: one block and the head on all threads"});
    return {};
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
