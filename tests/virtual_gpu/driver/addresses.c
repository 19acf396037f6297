/* cuGetProcAddress: the driver's functions by name and version. */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "symbols.h"

/* The CUDA versions that brought the later ones of functions that have several since CUDA 11. */
static const struct { const char *name; int version; } since[] = {
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxGetDevice_v2", 13000},
    {"cuCtxSynchronize_v2", 13000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuEventElapsedTime_v2", 12080},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000},
    {"cuGraphGetEdges_v2", 12030},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphRemoveDependencies_v2", 12030},
    {"cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync_v2", 12020},
    {"cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
};

static void *address_of(const char *name, int version) {
  for (size_t i = 0; i < sizeof since / sizeof *since; ++i)
    if (!strcmp(since[i].name, name) && version < since[i].version) return NULL;
  for (const Symbol *symbol = symbols; symbol->name; ++symbol)
    if (!strcmp(symbol->name, name)) return symbol->address;
  return NULL;
}

API cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *result) {
  ENTER;
  static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
  *address = NULL;
  if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "%s: streams of a thread are not implemented", name);
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !*address; ++i) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
    *address = address_of(full, version);
  }
  if (result)
    *result = *address ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *address ? CUDA_SUCCESS : fail(CUDA_ERROR_NOT_FOUND, "there is no %s", name);
}

#undef cuGetProcAddress
API cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags);
API cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, address, version, flags, NULL);
}
