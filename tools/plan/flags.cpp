#include "models/llama_of_size.h"
#include "tools/plan/plan.h"
#include "tools/shell/flag_reader.h"
#include "tools/shell/output_file.h"

namespace artesian::tools {
namespace {

constexpr double per_giga = 1e9;

std::optional<double> bandwidth(FlagReader& reader, const char* flag, const char* example) {
  const auto value = reader.number(flag, 0.0, 1e6, example);
  return value.has_value() ? std::optional(*value * per_giga) : std::nullopt;
}

void read_model(FlagReader& reader, PlanOptions& options) {
  const bool by_folder = reader.given("--model");
  if (by_folder == reader.given("--params")) {
    reader.refuse("--model", by_folder ? "both --model and --params" : "nothing",
                  "a folder with config.json, or --params N; write one of them");
    return;
  }
  options.model = reader.path("--model");
  options.parameters =
      reader.number("--params", models::llama_size_min - 1, models::llama_size_max, "70e9");
}

/// Refuses flags that only apply to several or separate devices.
void refuse_without_gpus(FlagReader& reader) {
  const bool gpus = reader.given("--gpus");
  for (const char* flag :
       {"--disks", "--device-bandwidth", "--link", "--attention-tflops", "--launch"}) {
    if (!reader.given(flag) || gpus) continue;
    reader.refuse(flag, "\"" + reader.text(flag) + "\" without --gpus",
                  "it with --gpus N alone; add --gpus, or drop it");
  }
  for (const char* flag : {"--nodes", "--bus"}) {
    if (!reader.given(flag) || gpus || reader.given("--ranks")) continue;
    reader.refuse(flag, "\"" + reader.text(flag) + "\" without --gpus or --ranks",
                  "it with one of them; add --gpus N, or drop it");
  }
  if (gpus && reader.given("--ranks")) {
    reader.refuse("--ranks", "both --gpus and --ranks",
                  "--gpus for GPUs, --ranks for CPUs; drop one");
  }
}

}  // namespace

void add_plan_flags(CLI::App& plan) {
  const auto value = [&](const char* flag, const char* type, const std::string& description) {
    plan.add_option(flag, description)
        ->type_name(type)
        // Repeated values are counted when they are read.
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  value("--model", "DIR", "Hugging Face directory: its config.json alone is read");
  value("--params", "N", "Instead: a Llama shape of about N parameters, such as 70e9");
  value("--config", "FILE", "DeepSpeed JSON config");
  value("--seq-len", "L", "Tokens of a sample (default: the model's positions, at most 1024)");
  value("--micro-batch", "N", "Samples of one forward, where the config says none");
  value("--accumulation", "N", "Micro-batches of one step, where the config says none");
  value("--gpus", "N", "GPUs of a node, one rank each (default: plan for this machine's CPU)");
  value("--ranks", "N", "Instead: processes of a node on CPUs like this machine's (default: 1)");
  value("--nodes", "N", "Nodes (default: 1)");
  value("--disks", "N", "Disks of a node, shared by its GPUs (default: one a folder of nvme_path)");
  value("--device-memory", "SIZE",
        "Of one GPU, activations included; without --gpus as artesian.device_memory");
  value("--host-memory", "SIZE", "Budget of one rank, as artesian.host_memory");
  value(
      "--nvme-read", "GB/s",
      "A node's disks together, or with --disks each (default: what aio_bench tune has measured)");
  value("--nvme-write", "GB/s", "The same for writes");
  value("--memory-bandwidth", "GB/s", "Of the CPU's kernels, of one rank (default: measured here)");
  value("--device-bandwidth", "GB/s", "Of a GPU's memory (default: 2000)");
  value("--link", "GB/s", "Between host and GPU, each way (default: 25)");
  value("--bus", "GB/s",
        "Between ranks, of one rank (default: 200 in a node, 25 between nodes; CPUs: 0.7)");
  value("--tflops", "X", "What one rank computes, sustained (default: measured here; GPUs: 400)");
  value("--attention-tflops", "X",
        "A GPU's attention in forward, half of it in backward (default: half of --tflops)");
  value("--launch", "US", "Microseconds to launch a kernel on a GPU (default: 5)");
  value("--plot", "FILE", "Memory and one step as an SVG picture");
  value("--json", "-", "- prints one JSON object instead");
  plan.add_flag("--measure")->description("Run the three fastest that fit for some steps, here");
}

Result<PlanOptions> read_plan_flags(const CLI::App& plan) {
  FlagReader reader(plan);
  PlanOptions options;
  reader.expect_single_values();
  read_model(reader, options);
  options.config = reader.required_path("--config", "name a DeepSpeed JSON file");
  options.length = reader.count("--seq-len");
  options.micro_batch = reader.count("--micro-batch");
  options.accumulation = reader.count("--accumulation");
  refuse_without_gpus(reader);
  options.gpus = reader.count("--gpus");
  options.processes = reader.count("--ranks").value_or(1);
  options.nodes = reader.count("--nodes").value_or(1);
  options.disks = reader.count("--disks");
  options.device_memory = reader.size("--device-memory");
  options.host_memory = reader.size("--host-memory");
  options.nvme_read = bandwidth(reader, "--nvme-read", "3.2");
  options.nvme_write = bandwidth(reader, "--nvme-write", "2.5");
  options.memory = bandwidth(reader, "--memory-bandwidth", "20");
  options.device_bandwidth = bandwidth(reader, "--device-bandwidth", "2000");
  options.link = bandwidth(reader, "--link", "25");
  options.bus = bandwidth(reader, "--bus", "200");
  options.tflops = reader.number("--tflops", 0.0, 1e6, "400");
  options.attention_tflops = reader.number("--attention-tflops", 0.0, 1e6, "200");
  options.launch = reader.number("--launch", 0.0, 1e6, "5");
  if (options.launch.has_value()) *options.launch *= 1e-6;
  options.measure = reader.given("--measure");
  options.plot = reader.path("--plot");
  if (!options.plot.empty() && !options.plot.ends_with(".svg")) {
    reader.refuse_text("--plot", "a name that ends in .svg; rename it");
  } else if (!options.plot.empty() && !may_write_file(options.plot)) {
    reader.refuse_text("--plot", "a file in a folder that is there and writable; name another");
  }
  options.json = reader.given("--json");
  if (options.json && reader.text("--json") != "-") {
    reader.refuse_text("--json", "-; redirect stdout into a file");
  }
  if (reader.has_faults()) return reader.error();
  return options;
}

}  // namespace artesian::tools
