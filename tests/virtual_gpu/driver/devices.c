/* Devices and contexts: one primary context a device, and each thread's stack of them. */
#include <stdio.h>
#include <string.h>

#include "driver.h"

static Context *contexts[MAX_DEVICES];
static bool initialized;

enum { STACK = 64 };
static _Thread_local Context *stack[STACK];
static _Thread_local int depth;

int device_count(void) { return settings()->devices; }

CUresult device_check(CUdevice device) {
  if (!initialized) return fail(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called");
  if (device < 0 || device >= device_count())
    return fail(CUDA_ERROR_INVALID_DEVICE, "there is no device %d of %d", device, device_count());
  return CUDA_SUCCESS;
}

Context *context_of(int device) {
  if (!contexts[device]) {
    Context *context = contexts[device] = object_new(CONTEXT, sizeof *context, device);
    context->device = device;
    context->legacy = stream_new(context, CU_STREAM_DEFAULT, 0);
  }
  return contexts[device];
}

void enter_context(Context *context) {
  if (!depth) depth = 1;
  stack[depth - 1] = context;
}

CUresult current_context(Context **context) {
  if (!initialized) return fail(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called");
  *context = depth ? stack[depth - 1] : NULL;
  if (!*context) return fail(CUDA_ERROR_INVALID_CONTEXT, "this thread has no current context");
  if (!(*context)->references)
    return fail(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context of device %d has been released",
                (*context)->device);
  return context_status(*context);
}

CUresult context_status(Context *context) {
  if (!context->sticky) return CUDA_SUCCESS;
  return fail(context->sticky, "device %d has failed for good: %s", context->device,
              context->reason);
}

void context_fail(Context *context, CUresult code, const char *reason) {
  if (context->sticky) return;
  context->sticky = code;
  snprintf(context->reason, sizeof context->reason, "%s", reason);
  note("device %d fails for good with %d: %s", context->device, code, reason);
}

/* ---- devices ---- */

API cuInit(unsigned flags) {
  ENTER;
  if (flags) return fail(CUDA_ERROR_INVALID_VALUE, "flags are %u, and 0 is expected", flags);
  if (!device_count()) return fail(CUDA_ERROR_NO_DEVICE, "VIRTUAL_GPU_DEVICES is 0");
  initialized = true;
  return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *version) {
  ENTER;
  *version = settings()->cuda;
  return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count) {
  ENTER;
  if (!initialized) return fail(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called");
  *count = device_count();
  return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER;
  TRY(device_check(ordinal));
  *device = ordinal;
  return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  snprintf(name, size, "%s", model()->name);
  return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  memset(uuid, 0x5A, sizeof *uuid);
  uuid->bytes[15] = (char)device;
  return CUDA_SUCCESS;
}

API cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  *bytes = settings()->memory;
  return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  snprintf(id, size, "0000:%02X:00.0", 0x65 + device);
  return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
  ENTER;
  unsigned bus = 0;
  if (sscanf(id, "%*x:%x", &bus) != 1)
    return fail(CUDA_ERROR_INVALID_VALUE, "%s is no PCI bus id", id);
  TRY(device_check((int)bus - 0x65));
  *device = (int)bus - 0x65;
  return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  *value = model_attribute(attribute, device);
  note("  attribute %d is %d", attribute, *value);
  return CUDA_SUCCESS;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  *major = model()->major;
  *minor = model()->minor;
  return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  ENTER;
  TRY(device_check(device));
  TRY(device_check(peer));
  *can = device != peer;
  return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device,
                            CUdevice peer) {
  ENTER;
  TRY(device_check(device));
  TRY(device_check(peer));
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED && device != peer;
  return CUDA_SUCCESS;
}

/* ---- contexts ---- */

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  *context = context_of(device);
  (*context)->references++;
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease(CUdevice device) {
  ENTER;
  TRY(device_check(device));
  Context *context = context_of(device);
  if (!context->references)
    return fail(CUDA_ERROR_INVALID_CONTEXT, "the context of device %d is not retained", device);
  context->references--;
  return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  ENTER;
  (void)flags; /* how the host waits, which makes no difference here */
  return device_check(device);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  ENTER;
  TRY(device_check(device));
  *flags = 0;
  *active = context_of(device)->references > 0;
  return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context) {
  ENTER;
  *context = depth ? stack[depth - 1] : NULL;
  return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context) {
  ENTER;
  if (context) {
    TRY(object_check(context, CONTEXT));
    enter_context(context);
  } else if (depth) {
    depth--;
  }
  return CUDA_SUCCESS;
}

API cuCtxPushCurrent(CUcontext context) {
  ENTER;
  TRY(object_check(context, CONTEXT));
  if (depth == STACK) return fail(CUDA_ERROR_INVALID_VALUE, "%d contexts are pushed", depth);
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

API cuCtxPopCurrent(CUcontext *context) {
  ENTER;
  if (!depth) return fail(CUDA_ERROR_INVALID_CONTEXT, "this thread has no current context");
  Context *top = stack[--depth];
  if (context) *context = top;
  return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  *device = context->device;
  return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext context, unsigned *version) {
  ENTER;
  if (context) TRY(object_check(context, CONTEXT));
  *version = 3020;
  return CUDA_SUCCESS;
}

API cuCtxGetFlags(unsigned *flags) {
  ENTER;
  *flags = 0;
  return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER;
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

API cuCtxSetLimit(CUlimit limit, size_t value) {
  ENTER;
  (void)limit, (void)value; /* of stacks, printf and malloc in kernels: the emulator needs none */
  Context *context;
  return current_context(&context);
}

API cuCtxGetLimit(size_t *value, CUlimit limit) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  *value = limit == CU_LIMIT_STACK_SIZE ? 1024 : 0;
  return CUDA_SUCCESS;
}

API cuCtxSynchronize(void) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  TRY(capture_forbids());
  return device_wait(context);
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  TRY(object_check(peer, CONTEXT));
  if (flags) return fail(CUDA_ERROR_INVALID_VALUE, "flags are %u, and 0 is expected", flags);
  if (peer == context) return fail(CUDA_ERROR_INVALID_DEVICE, "the peer is the same device");
  if (context->peers & 1u << peer->device)
    return fail(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "device %d already uses memory of %d",
                context->device, peer->device);
  context->peers |= 1u << peer->device;
  return CUDA_SUCCESS;
}
