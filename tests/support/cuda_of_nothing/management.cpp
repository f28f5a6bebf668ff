// libnvidia-ml.so.1: counts the machine's GPUs, including those that CUDA does not see.
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
