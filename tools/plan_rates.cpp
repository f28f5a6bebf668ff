#include "tools/plan_rates.h"

#include <cmath>
#include <filesystem>

#include "base/log.h"
#include "models/flops.h"
#include "tiering/machine_profile.h"
#include "tools/plan_probe.h"

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

  Result<std::vector<RateSource>> run() {
    choose_disk();
    choose_memory();
    if (plan_.gpu) choose_links();
    ARTESIAN_TRY_VOID(choose_compute());
    return std::move(sources_);
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

  /// The folder of the swap files, or the one in which it will be made.
  std::string disk_folder() const {
    const zero3::ZeroConfig& zero = plan_.config.zero;
    std::filesystem::path path = zero.offload_optimizer.device == zero3::Offload::Nvme
                                     ? zero.offload_optimizer.nvme_path
                                     : zero.offload_param.nvme_path;
    std::error_code ignored;
    path = std::filesystem::absolute(path, ignored);
    if (!std::filesystem::exists(path, ignored)) path = path.parent_path();
    return path.string();
  }

  std::optional<tiering::MachineProfile> profile() const {
    const auto path = tiering::machine_profile_path(disk_folder());
    if (!path.has_value()) return std::nullopt;
    auto loaded = tiering::load_machine_profile(*path);
    if (!loaded.has_value()) return std::nullopt;
    return std::move(loaded).value();
  }

  /// Of reads alone or writes alone, at the block size nearest to the config's.
  double rate_of(const tiering::MachineProfile& profile, double read_share) const {
    const auto wanted = static_cast<double>(plan_.config.aio.block_size);
    double rate = 0.0;
    double nearest = 1e30;
    for (const auto& each : profile.rates) {
      if (each.read_share != read_share || each.block_size == 0) continue;
      const double distance = std::abs(std::log(static_cast<double>(each.block_size) / wanted));
      if (distance >= nearest) continue;
      nearest = distance;
      rate = each.gb_per_s * giga;
    }
    return rate;
  }

  void choose_disk() {
    zero3::Rates& rates = plan_.rates;
    double read = assumed_read;
    double write = assumed_write;
    std::string source = "assumed; measure with aio_bench tune, or give --nvme-read, --nvme-write";
    const auto measured = plan_.gpu ? std::nullopt : profile();
    if (measured.has_value() && rate_of(*measured, 1) > 0 && rate_of(*measured, 0) > 0) {
      read = rate_of(*measured, 1);
      write = rate_of(*measured, 0);
      rates.disk = measured->duplex ? tiering::Disk::Duplex : tiering::Disk::Shared;
      source = "measured by aio_bench tune, " + measured->measured_at;
    }
    rates.disk_read = given_or("nvme_read", options_.nvme_read, read, source);
    rates.disk_write = given_or("nvme_write", options_.nvme_write, write, source);
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
      say("checksums", rates.checksum, measures ? "measured on all threads" : "as cpu_kernels");
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
    ARTESIAN_TRY(probed, probe_compute(*plan_.model, plan_.compute_dtype,
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
};

}  // namespace

Result<std::vector<RateSource>> choose_rates(const PlanOptions& options, PlanCase& plan) {
  return Chooser(options, plan).run();
}

}  // namespace artesian::tools
