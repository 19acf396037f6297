/* NVML, as far as XLA asks it: whether there are devices, and which driver. */
#include <stdio.h>
#include <string.h>

#include "driver.h"

enum { NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NOT_FOUND = 6 };
typedef int NvmlReturn;

EXPORT NvmlReturn nvmlInit(void) { return NVML_SUCCESS; }
EXPORT NvmlReturn nvmlInit_v2(void) { return NVML_SUCCESS; }
EXPORT NvmlReturn nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return NVML_SUCCESS;
}
EXPORT NvmlReturn nvmlShutdown(void) { return NVML_SUCCESS; }
EXPORT const char *nvmlErrorString(NvmlReturn error) {
  return error ? "an error of the virtual NVML" : "success";
}

EXPORT NvmlReturn nvmlDeviceGetCount_v2(unsigned *count) {
  *count = (unsigned)device_count();
  return NVML_SUCCESS;
}

/* A handle is the device's ordinal and 1. */
EXPORT NvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  *handle = (void *)(uintptr_t)(index + 1);
  return index < (unsigned)device_count() ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

EXPORT NvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  CUdevice device;
  if (cuDeviceGetByPCIBusId(&device, id)) return NVML_ERROR_NOT_FOUND;
  return nvmlDeviceGetHandleByIndex_v2((unsigned)device, handle);
}

EXPORT NvmlReturn nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *generation) {
  (void)handle;
  *generation = 5;
  return NVML_SUCCESS;
}

EXPORT NvmlReturn nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *lanes) {
  (void)handle;
  *lanes = 16;
  return NVML_SUCCESS;
}

/* There is no NVLink, and no fabric of several machines. */
EXPORT NvmlReturn nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active) {
  (void)handle, (void)link;
  *active = 0;
  return NVML_SUCCESS;
}

EXPORT NvmlReturn nvmlDeviceGetGpuFabricInfoV(void *handle, void *information) {
  (void)handle, (void)information;
  return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT NvmlReturn nvmlSystemGetDriverVersion(char *version, unsigned size) {
  snprintf(version, size, "580.00");
  return NVML_SUCCESS;
}

EXPORT NvmlReturn nvmlSystemGetCudaDriverVersion(int *version) {
  return cuDriverGetVersion(version) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

EXPORT NvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version) {
  return nvmlSystemGetCudaDriverVersion(version);
}
