// Doctor's lines about GPUs: driver, devices, links between them, and NCCL variables that switch
// paths off. The driver is asked through its library, opened at run time: builds and machines
// without it work the same.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor_report.h"

namespace artesian::tools {

struct Gpu {
  std::string name;
  std::string pci_address;  // "0000:41:00.0"
  int capability_major = 0;
  int capability_minor = 0;
  std::uint64_t memory = 0;  // bytes
  std::optional<std::uint32_t> numa_node = {};
  int nvlinks = 0;  // active
};

struct DriverFacts {
  bool installed = false;  // the library is there
  int error = 0;           // the driver's answer to cuInit; 100: there is no device
  int version = 0;         // 13000 for CUDA 13.0
  std::vector<Gpu> gpus;
  std::size_t pairs_without_peer_access = 0;
};

/// `cuda` and `nvml`: file names of the driver's two libraries.
DriverFacts ask_driver(const std::string& cuda = "libcuda.so.1",
                       const std::string& nvml = "libnvidia-ml.so.1", const std::string& root = "");

/// `built_version`: that of the toolkit, 13000 for 13.0; 0 in a build without CUDA.
Findings examine_gpus(const DriverFacts& facts, int built_version);

/// One warning for each NCCL variable that switches a path off; one ok line if there is none.
/// `variable`: its value, or null.
Findings examine_nccl(const std::function<const char*(const char*)>& variable);

}  // namespace artesian::tools
