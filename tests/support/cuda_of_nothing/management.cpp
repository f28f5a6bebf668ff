// libnvidia-ml.so.1: counts the machine's GPUs, including those that CUDA does not see. LibTorch's
// allocator also asks whether memory can be shared between machines: it cannot.
#include <cstdlib>

#define ARTESIAN_NVML_NAME extern "C" __attribute__((visibility("default")))

ARTESIAN_NVML_NAME int nvmlInit() {
  return 0;
}
ARTESIAN_NVML_NAME int nvmlInit_v2() {
  return 0;
}
ARTESIAN_NVML_NAME int nvmlShutdown() {
  return 0;
}
ARTESIAN_NVML_NAME int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* given = std::getenv("ARTESIAN_CUDA_OF_NOTHING");
  *count = given == nullptr ? 1u : static_cast<unsigned>(std::atoi(given));
  return 0;
}
ARTESIAN_NVML_NAME int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static char only = 0;
  *device = &only;
  return 0;
}

ARTESIAN_NVML_NAME int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;  // LibTorch asks when its memory runs out
  return 0;
}

#define ARTESIAN_NVML_REFUSAL(name)          \
  ARTESIAN_NVML_NAME int name() {            \
    return 3; /* NVML_ERROR_NOT_SUPPORTED */ \
  }

ARTESIAN_NVML_REFUSAL(nvmlDeviceGetGpuFabricInfoV)
ARTESIAN_NVML_REFUSAL(nvmlDeviceGetNvLinkRemoteDeviceType)
ARTESIAN_NVML_REFUSAL(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ARTESIAN_NVML_REFUSAL(nvmlSystemGetCudaDriverVersion_v2)
