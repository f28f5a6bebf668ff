#include "tools/doctor/gpu.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <utility>

#include "base/units.h"
#include "pinned/nodes.h"

namespace artesian::tools {
namespace {

// The used part of the driver's interface; its values have not changed since CUDA 4 and 8.
constexpr int no_device = 100;
constexpr int attribute_capability_major = 75;
constexpr int attribute_capability_minor = 76;
constexpr int nvlinks_max = 18;

/// A shared library, closed at the end; missing functions are null.
class Library {
 public:
  explicit Library(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW)) {}
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool loaded() const { return handle_ != nullptr; }

  /// Calls the C function with these arguments; -1 if it is missing.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function = reinterpret_cast<Function>(handle_ ? dlsym(handle_, name) : nullptr);
    return function == nullptr ? -1 : function(arguments...);
  }

 private:
  void* handle_;
};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Gpu ask_gpu(const Library& driver, int device, const std::string& root) {
  Gpu gpu;
  std::array<char, 256> text{};
  if (driver.call("cuDeviceGetName", text.data(), 255, device) == 0) gpu.name = text.data();
  text.fill(0);
  if (driver.call("cuDeviceGetPCIBusId", text.data(), 255, device) == 0) {
    gpu.pci_address = text.data();
  }
  std::transform(gpu.pci_address.begin(), gpu.pci_address.end(), gpu.pci_address.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  driver.call("cuDeviceGetAttribute", &gpu.capability_major, attribute_capability_major, device);
  driver.call("cuDeviceGetAttribute", &gpu.capability_minor, attribute_capability_minor, device);
  std::size_t memory = 0;
  if (driver.call("cuDeviceTotalMem_v2", &memory, device) == 0) gpu.memory = memory;
  gpu.numa_node = pinned::node_of_pci_device(gpu.pci_address, root);
  return gpu;
}

void count_nvlinks(const std::string& nvml_name, std::vector<Gpu>& gpus) {
  const Library nvml(nvml_name);
  if (!nvml.loaded() || nvml.call("nvmlInit_v2") != 0) return;
  for (Gpu& gpu : gpus) {
    void* handle = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByPciBusId_v2", gpu.pci_address.c_str(), &handle) != 0)
      continue;
    for (unsigned link = 0; link < nvlinks_max; ++link) {
      int active = 0;
      if (nvml.call("nvmlDeviceGetNvLinkState", handle, link, &active) == 0) gpu.nvlinks += active;
    }
  }
  nvml.call("nvmlShutdown");
}

Finding examine_driver(const DriverFacts& facts, int built_version) {
  Finding finding{.name = "cuda_driver"};
  const std::string build =
      built_version == 0 ? "built without CUDA" : "built with CUDA " + version_text(built_version);
  if (!facts.installed) {
    finding.value = "none; " + build;
    finding.meaning = "the CPU computes";
    return finding;
  }
  finding.value = fmt::format("{}, {}{}{}", version_text(facts.version), facts.gpus.size(),
                              facts.gpus.size() == 1 ? " GPU; " : " GPUs; ", build);
  if (facts.error == no_device || (facts.error == 0 && facts.gpus.empty())) {
    finding.level = Level::Warn;
    finding.meaning = "there is a driver, but it shows no GPU";
    finding.fix = "look at CUDA_VISIBLE_DEVICES and nvidia-smi; in a container, --gpus all";
  } else if (facts.error != 0) {
    finding.level = Level::Warn;
    finding.value = fmt::format("cuInit: error {}; {}", facts.error, build);
    finding.meaning = "the driver does not work: no GPU can be used";
    finding.fix =
        "nvidia-smi says more; often the kernel's module and the library differ until "
        "the next restart";
  } else if (built_version > 0 && facts.version / 1000 < built_version / 1000) {
    finding.level = Level::Warn;
    finding.meaning = "older than the toolkit of this build: its kernels cannot run";
    finding.fix = "a driver for CUDA " + version_text(built_version) + " or newer";
  } else if (built_version == 0) {
    finding.level = Level::Warn;
    finding.meaning = "this build cannot use the GPUs";
    finding.fix = "install the CUDA toolkit and build again";
  } else {
    finding.meaning = "can run this build's kernels";
  }
  return finding;
}

Finding examine_gpu(const Gpu& gpu, std::size_t index) {
  Finding finding{.name = "gpu", .subject = fmt::format("cuda:{}", index)};
  finding.value = fmt::format("{}, {}, compute capability {}.{}", gpu.name, format_size(gpu.memory),
                              gpu.capability_major, gpu.capability_minor);
  if (gpu.numa_node.has_value()) finding.value += fmt::format(", NUMA node {}", *gpu.numa_node);
  if (gpu.nvlinks > 0) finding.value += fmt::format(", {} NVLinks", gpu.nvlinks);
  if (gpu.capability_major >= 8) {
    finding.meaning = "computes in bf16";
    return finding;
  }
  finding.level = Level::Warn;
  finding.meaning = "no bf16 arithmetic, and this project's kernels are built for 8.0 and newer";
  finding.fix = "an A100 or newer";
  return finding;
}

Finding examine_peers(const DriverFacts& facts) {
  const bool linked = std::all_of(facts.gpus.begin(), facts.gpus.end(),
                                  [](const Gpu& gpu) { return gpu.nvlinks > 0; });
  Finding finding{.name = "gpu_links"};
  finding.value = linked ? "NVLink" : "no NVLink between all of them";
  if (facts.pairs_without_peer_access == 0) {
    finding.meaning = "GPUs copy to each other directly";
    return finding;
  }
  finding.level = Level::Warn;
  finding.value += fmt::format(", {} pairs without peer access", facts.pairs_without_peer_access);
  finding.meaning = "what these send each other goes through host memory";
  finding.fix =
      "switch PCIe ACS off (BIOS, or pci=noacs), or place ranks on GPUs that are peers: "
      "nvidia-smi topo -m";
  return finding;
}

struct NcclVariable {
  const char* name;
  const char* values;  // values that disable the path, separated by blanks; "*" means any
  const char* meaning;
};

constexpr NcclVariable nccl_variables[] = {
    {"NCCL_P2P_DISABLE", " 1 ", "GPUs of one machine do not copy to each other directly"},
    {"NCCL_P2P_LEVEL", " LOC 0 ", "GPUs of one machine do not copy to each other directly"},
    {"NCCL_SHM_DISABLE", " 1 ", "ranks of one machine talk over the network instead of memory"},
    {"NCCL_IB_DISABLE", " 1 ", "InfiniBand and RoCE are not used: TCP is slower by far"},
    {"NCCL_NET", " Socket socket ", "ranks of several machines talk over TCP: slower by far"},
    {"NCCL_PXN_DISABLE", " 1 ", "a GPU does not use another's network card over NVLink"},
    {"NCCL_DMABUF_ENABLE", " 0 ", "the network card may not reach GPU memory directly"},
    {"NCCL_NET_GDR_LEVEL", " LOC 0 ", "the network card does not read GPU memory directly"},
    {"NCCL_NET_GDR_READ", " 0 ", "the network card does not read GPU memory directly"},
    {"NCCL_NVLS_ENABLE", " 0 ", "NVLink's own reductions are not used"},
    {"NCCL_CUMEM_ENABLE", " 0 ",
     "buffers of cuMem, and with them NVLink's own reductions, are off"},
    {"NCCL_ALGO", "*", "NCCL may not choose its algorithm"},
    {"NCCL_PROTO", "*", "NCCL may not choose its protocol"},
    {"NCCL_MAX_NCHANNELS", " 1 2 ", "few channels: little of the links' bandwidth"},
};

}  // namespace

DriverFacts ask_driver(const std::string& cuda, const std::string& nvml, const std::string& root) {
  DriverFacts facts;
  const Library driver(cuda);
  facts.installed = driver.loaded();
  if (!facts.installed) return facts;
  driver.call("cuDriverGetVersion", &facts.version);
  facts.error = driver.call("cuInit", 0u);
  if (facts.error != 0) return facts;
  int count = 0;
  facts.error = driver.call("cuDeviceGetCount", &count);
  for (int device = 0; device < count; ++device) {
    facts.gpus.push_back(ask_gpu(driver, device, root));
    for (int other = 0; other < device; ++other) {
      int forth = 0, back = 0;
      driver.call("cuDeviceCanAccessPeer", &forth, device, other);
      driver.call("cuDeviceCanAccessPeer", &back, other, device);
      facts.pairs_without_peer_access += forth == 0 || back == 0;
    }
  }
  count_nvlinks(nvml, facts.gpus);
  return facts;
}

Findings examine_gpus(const DriverFacts& facts, int built_version) {
  Findings findings{examine_driver(facts, built_version)};
  for (std::size_t index = 0; index < facts.gpus.size(); ++index) {
    findings.push_back(examine_gpu(facts.gpus[index], index));
  }
  if (facts.gpus.size() > 1) findings.push_back(examine_peers(facts));
  return findings;
}

NcclSettings::NcclSettings(Variable variable, const std::string& home, const std::string& root)
    : variable_(std::move(variable)) {
  const char* named = variable_("NCCL_CONF_FILE");
  if (named != nullptr && *named != '\0') {
    read(named, "");
  } else if (!home.empty()) {
    read(home + "/.nccl.conf", "");
  }
  read("/etc/nccl.conf", root);
}

/// As NCCL reads it: no blanks around '=', and values are not trimmed.
void NcclSettings::read(const std::string& file, const std::string& root) {
  std::ifstream lines(root + file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    of_files_.try_emplace(line.substr(0, equals), Setting{line.substr(equals + 1), file});
  }
}

std::optional<NcclSettings::Setting> NcclSettings::find(const std::string& name) const {
  const char* value = variable_(name.c_str());
  if (value != nullptr) return Setting{value, ""};
  const auto found = of_files_.find(name);
  return found == of_files_.end() ? std::nullopt : std::optional(found->second);
}

Findings examine_nccl(const NcclSettings& settings) {
  Findings findings;
  for (const NcclVariable& known : nccl_variables) {
    const auto set = settings.find(known.name);
    if (!set || set->value.empty()) continue;
    const std::string off = known.values;
    if (off != "*" && off.find(" " + set->value + " ") == std::string::npos) continue;
    const std::string name = known.name;
    findings.push_back(
        {.name = "nccl",
         .level = Level::Warn,
         .value = name + "=" + set->value + (set->file.empty() ? "" : ", in " + set->file),
         .meaning = known.meaning,
         .fix = (set->file.empty() ? "unset " + name : "take the line out of " + set->file) +
                ", unless it is set for a reason that still holds"});
  }
  if (findings.empty()) {
    findings.push_back({.name = "nccl",
                        .value = "no variable switches a path off",
                        .meaning = "NCCL chooses between all links that there are"});
  }
  return findings;
}

}  // namespace artesian::tools
