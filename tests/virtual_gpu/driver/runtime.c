/* The CUDA runtime, as far as XLA uses it: devices, and the registration of its own kernels.
 *
 * Those are machine code, so they are not there: a launch of one says that it is missing.
 */
#include "driver.h"

#define RUNTIME_API EXPORT int

RUNTIME_API cudaRuntimeGetVersion(int *version) {
  return cuDriverGetVersion(version);
}
RUNTIME_API cudaDriverGetVersion(int *version) { return cuDriverGetVersion(version); }
RUNTIME_API cudaGetDeviceCount(int *count) { return cuDeviceGetCount(count); }
RUNTIME_API cudaDeviceGetAttribute(int *value, int attribute, int device) {
  return cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device);
}
RUNTIME_API cudaGetLastError(void) { return CUDA_SUCCESS; }
RUNTIME_API cudaPeekAtLastError(void) { return CUDA_SUCCESS; }
RUNTIME_API cudaDeviceSynchronize(void) { return cuCtxSynchronize(); }
RUNTIME_API cudaFree(void *address) { return cuMemFree((CUdeviceptr)address); }

RUNTIME_API cudaSetDevice(int device) {
  CUcontext context;
  TRY(cuDevicePrimaryCtxRetain(&context, device));
  return cuCtxSetCurrent(context);
}

RUNTIME_API cudaGetDevice(int *device) {
  CUcontext context;
  TRY(cuCtxGetCurrent(&context));
  *device = 0; /* what a thread has that has not chosen */
  return context ? cuCtxGetDevice(device) : CUDA_SUCCESS;
}

EXPORT const char *cudaGetErrorName(int error) {
  const char *name;
  return cuGetErrorName((CUresult)error, &name) ? "cudaErrorUnknown" : name;
}

EXPORT const char *cudaGetErrorString(int error) {
  const char *words;
  return cuGetErrorString((CUresult)error, &words) ? "unknown error" : words;
}

/* ---- what compiled kernels call when they are loaded ---- */

EXPORT void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  (void)binary;
  return &handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
EXPORT void __cudaRegisterFunction(void) {}
EXPORT void __cudaRegisterVar(void) {}

EXPORT char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}
