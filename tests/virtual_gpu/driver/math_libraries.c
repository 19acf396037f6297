/* cuBLAS and cuDNN: handles and versions, without which XLA compiles nothing. No arithmetic. */
#include <stdlib.h>

#include "driver.h"

enum { CUDNN_VERSION = 91200, ANY_HANDLE = 8 };
typedef int Status;

static Status create(void **handle) {
  *handle = calloc(1, ANY_HANDLE);
  return *handle ? 0 : 3; /* CUBLAS_STATUS_ALLOC_FAILED */
}

static Status destroy(void *handle) {
  free(handle);
  return 0;
}

/* ---- cuBLAS ---- */

EXPORT Status cublasCreate_v2(void **handle) { return create(handle); }
EXPORT Status cublasDestroy_v2(void *handle) { return destroy(handle); }
EXPORT Status cublasLtCreate(void **handle) { return create(handle); }
EXPORT Status cublasLtDestroy(void *handle) { return destroy(handle); }
EXPORT Status cublasSetStream_v2(void *handle, CUstream stream) {
  (void)handle, (void)stream;
  return 0;
}
EXPORT Status cublasSetWorkspace_v2(void *handle, void *memory, size_t size) {
  (void)handle, (void)memory, (void)size;
  return 0;
}
EXPORT Status cublasSetMathMode(void *handle, int mode) {
  (void)handle, (void)mode;
  return 0;
}
EXPORT Status cublasGetVersion_v2(void *handle, int *version) {
  (void)handle;
  *version = settings()->cuda * 10;
  return 0;
}
EXPORT size_t cublasLtGetVersion(void) { return (size_t)settings()->cuda * 10; }
EXPORT const char *cublasGetStatusName(Status status) {
  return status ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_SUCCESS";
}
EXPORT const char *cublasGetStatusString(Status status) {
  return status ? last_failure() : "success";
}
EXPORT const char *cublasLtGetStatusName(Status status) { return cublasGetStatusName(status); }
EXPORT const char *cublasLtGetStatusString(Status status) { return cublasGetStatusString(status); }

/* ---- cuDNN ---- */

EXPORT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
EXPORT size_t cudnnGetCudartVersion(void) { return (size_t)settings()->cuda; }
EXPORT Status cudnnGetProperty(int property, int *value) {
  const int parts[] = {CUDNN_VERSION / 10000, CUDNN_VERSION / 100 % 100, CUDNN_VERSION % 100};
  if (property < 0 || property > 2) return 2000; /* CUDNN_STATUS_BAD_PARAM */
  *value = parts[property];
  return 0;
}
EXPORT Status cudnnCreate(void **handle) { return create(handle); }
EXPORT Status cudnnDestroy(void *handle) { return destroy(handle); }
EXPORT Status cudnnSetStream(void *handle, CUstream stream) {
  (void)handle, (void)stream;
  return 0;
}
EXPORT const char *cudnnGetErrorString(Status status) {
  return status ? last_failure() : "success";
}
