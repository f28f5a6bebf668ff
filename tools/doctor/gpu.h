// Doctor's lines about GPUs: driver, devices, links between them, and NCCL variables that disable
// paths. The driver is queried through its library, opened at run time, so that builds and machines
// without it work as well.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/report.h"

namespace artesian::tools {

struct Gpu {
  std::string name;
  std::string pci_address;  // "0000:41:00.0"
  int capability_major = 0;
  int capability_minor = 0;
  std::uint64_t memory = 0;  // bytes
  std::optional<std::uint32_t> numa_node = {};
  int nvlinks = 0;  // number of active links
};

struct DriverFacts {
  bool installed = false;  // NVIDIA's driver library exists
  int error = 0;           // the driver's answer to cuInit; 100: there is no device
  int version = 0;         // such as 13000 for CUDA 13.0
  std::vector<Gpu> gpus;
  std::size_t pairs_without_peer_access = 0;
};

/// `cuda` and `nvml`: file names of the driver's two libraries.
DriverFacts ask_driver(const std::string& cuda = "libcuda.so.1",
                       const std::string& nvml = "libnvidia-ml.so.1", const std::string& root = "");

/// `built_version`: version of the CUDA toolkit, 13000 for 13.0; 0 in a build without CUDA.
Findings examine_gpus(const DriverFacts& facts, int built_version);

/// NCCL's settings: from the environment, then from the file in NCCL_CONF_FILE, or else .nccl.conf
/// in the user's home, then from /etc/nccl.conf. The first value found is used.
class NcclSettings {
 public:
  using Variable = std::function<const char*(const char*)>;  // returns a variable's value, or null
  struct Setting {
    std::string value;
    std::string file;  // empty: from the environment
  };
  /// `home`: the user's home, "" if there is none. `root` is prepended to /etc.
  NcclSettings(Variable variable, const std::string& home, const std::string& root = "");
  std::optional<Setting> find(const std::string& name) const;

 private:
  void read(const std::string& file, const std::string& root);

  Variable variable_;
  std::map<std::string, Setting> of_files_;
};

/// One warning for each NCCL variable that disables a path; one ok line if there is none.
Findings examine_nccl(const NcclSettings& settings);

}  // namespace artesian::tools
