// libcuda.so.1: the names that LibTorch's libcaffe2_nvrtc.so must find when it is loaded. The
// allocator gets the functions that it calls from the runtime (memory.cpp). The others are never
// called where kernels do nothing.
#define ARTESIAN_DRIVER_NAME(name)                               \
  extern "C" __attribute__((visibility("default"))) int name() { \
    return 0;                                                    \
  }

ARTESIAN_DRIVER_NAME(cuInit)
ARTESIAN_DRIVER_NAME(cuCtxGetCurrent)
ARTESIAN_DRIVER_NAME(cuCtxSetCurrent)
ARTESIAN_DRIVER_NAME(cuDeviceGet)
ARTESIAN_DRIVER_NAME(cuDeviceGetAttribute)
ARTESIAN_DRIVER_NAME(cuDevicePrimaryCtxRetain)
ARTESIAN_DRIVER_NAME(cuFuncGetAttribute)
ARTESIAN_DRIVER_NAME(cuFuncSetAttribute)
ARTESIAN_DRIVER_NAME(cuFuncSetCacheConfig)
ARTESIAN_DRIVER_NAME(cuLaunchCooperativeKernel)
ARTESIAN_DRIVER_NAME(cuLaunchKernel)
ARTESIAN_DRIVER_NAME(cuLinkAddData_v2)
ARTESIAN_DRIVER_NAME(cuLinkComplete)
ARTESIAN_DRIVER_NAME(cuLinkCreate_v2)
ARTESIAN_DRIVER_NAME(cuModuleGetFunction)
ARTESIAN_DRIVER_NAME(cuModuleLoad)
ARTESIAN_DRIVER_NAME(cuModuleLoadData)
ARTESIAN_DRIVER_NAME(cuModuleLoadDataEx)
ARTESIAN_DRIVER_NAME(cuModuleUnload)
ARTESIAN_DRIVER_NAME(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ARTESIAN_DRIVER_NAME(cuPointerGetAttribute)
ARTESIAN_DRIVER_NAME(cuTensorMapEncodeTiled)

extern "C" __attribute__((visibility("default"))) int cuDevicePrimaryCtxGetState(int,
                                                                                 unsigned* flags,
                                                                                 int* active) {
  if (flags != nullptr) *flags = 0;
  *active = 1;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int cuGetErrorString(int, const char** text) {
  *text = "error of nothing";
  return 0;
}
