// A stand-in for NVIDIA's driver that answers by environment variables of the test: the functions
// of libcuda and libnvidia-ml that the doctor calls.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

int device_handles[64];

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = setting("FAKE_VERSION", 13000);
  return 0;
}

int cuInit(unsigned) {
  return setting("FAKE_INIT", 0);
}

int cuDeviceGetCount(int* count) {
  *count = setting("FAKE_GPUS", 1);
  return 0;
}

int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake H200", static_cast<std::size_t>(length));
  return 0;
}

int cuDeviceGetPCIBusId(char* address, int, int device) {
  std::strcpy(address, "0000:4A:00.0");
  address[6] = static_cast<char>('A' + device);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? setting("FAKE_CAPABILITY", 9) : 0;
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{141} << 30;
  return 0;
}

int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = setting("FAKE_PEERS", 1);
  return 0;
}

int nvmlInit_v2() {
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** handle) {
  if (std::strncmp(address, "0000:4", 6) != 0) return 2;
  *handle = &device_handles[0];
  return 0;
}

int nvmlDeviceGetNvLinkState(void*, unsigned link, int* active) {
  *active = static_cast<int>(link) < setting("FAKE_LINKS", 0) ? 1 : 0;
  return 0;
}

int nvmlShutdown() {
  return 0;
}

}  // extern "C"
