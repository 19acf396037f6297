/* Copies between host and devices, and fills. */
#include "transfers.h"

#include <stdlib.h>
#include <string.h>

static bool pageable(const Place *place) {
  return !memory_is_ours(place->address) && !memory_at(place->address);
}

/* As the driver does: the bytes of pageable memory are taken before the call returns, and it
 * returns only when they have arrived in pageable memory. `wait`: until a copy from or to the host
 * is done. */
static CUresult submit_copy(CUstream handle, Place to, Place from, size_t bytes, bool wait) {
  Stream *stream;
  TRY(stream_of(handle, &stream));
  if (wait) TRY(capture_forbids());
  to.pitch = from.pitch = bytes;
  Operation operation = {.kind = DO_COPY, .to = to, .from = from, .width = bytes, .rows = 1};
  if (!bytes) return CUDA_SUCCESS;
  TRY(operation_check(&operation, stream->context->device, false));
  if (!stream->capture && pageable(&from)) {
    operation.staged = malloc(bytes);
    if (!operation.staged) abort();
    memcpy(operation.staged, from.address, bytes);
  }
  bool arrives = !stream->capture && pageable(&to);
  TRY(stream_submit(stream, operation));
  return wait || arrives ? stream_wait(stream, stream->submitted) : CUDA_SUCCESS;
}

static Place host(const void *address) { return (Place){.address = (char *)address, OF_THE_HOST, 0}; }
static Place device(CUdeviceptr address) { return (Place){(char *)address, OF_A_DEVICE, 0}; }
static Place any(CUdeviceptr address) { return (Place){(char *)address, ANYONES, 0}; }

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTER;
  return submit_copy(NULL, any(to), any(from), bytes, true);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER;
  return submit_copy(stream, any(to), any(from), bytes, false);
}

API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
  ENTER;
  return submit_copy(NULL, device(to), host(from), bytes, true);
}

API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
  ENTER;
  return submit_copy(NULL, host(to), device(from), bytes, true);
}

API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTER;
  return submit_copy(NULL, device(to), device(from), bytes, false);
}

API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  ENTER;
  return submit_copy(stream, device(to), host(from), bytes, false);
}

API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER;
  return submit_copy(stream, host(to), device(from), bytes, false);
}

API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTER;
  return submit_copy(stream, device(to), device(from), bytes, false);
}

/* Fails where memory is not of the context that the caller says. */
static CUresult check_owner(CUdeviceptr address, CUcontext context) {
  TRY(object_check(context, CONTEXT));
  Memory *memory = memory_at((void *)address);
  if (memory && memory->device >= 0 && memory->device != context->device)
    return fail(CUDA_ERROR_INVALID_VALUE, "%p is memory of device %d, and not of device %d",
                (void *)address, memory->device, context->device);
  return CUDA_SUCCESS;
}

API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes, CUstream stream) {
  ENTER;
  TRY(check_owner(to, to_context));
  TRY(check_owner(from, from_context));
  return submit_copy(stream, device(to), device(from), bytes, false);
}

/* ---- copies as nodes ---- */

static CUresult place_of(Place *place, CUmemorytype type, const void *host_address,
                         CUdeviceptr device_address, size_t x, size_t y, size_t pitch) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: *place = host(host_address); break;
    case CU_MEMORYTYPE_DEVICE: *place = device(device_address); break;
    case CU_MEMORYTYPE_UNIFIED: *place = any(device_address); break;
    default: return fail(CUDA_ERROR_NOT_SUPPORTED, "copies of arrays are not implemented");
  }
  place->pitch = pitch;
  place->address += y * pitch + x;
  return CUDA_SUCCESS;
}

CUresult copy_operation(Operation *operation, const CUDA_MEMCPY3D *copy) {
  if (copy->Depth > 1 || copy->srcZ || copy->dstZ)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "copies of depth %zu are not implemented", copy->Depth);
  *operation = (Operation){.kind = DO_COPY,
                           .call = current_call(),
                           .width = copy->WidthInBytes,
                           .rows = copy->Height ? copy->Height : 1};
  TRY(place_of(&operation->to, copy->dstMemoryType, copy->dstHost, copy->dstDevice,
               copy->dstXInBytes, copy->dstY, copy->dstPitch));
  return place_of(&operation->from, copy->srcMemoryType, copy->srcHost, copy->srcDevice,
                  copy->srcXInBytes, copy->srcY, copy->srcPitch);
}

/* ---- fills ---- */

CUresult set_operation(Operation *operation, CUdeviceptr to, unsigned value, unsigned value_size,
                       size_t count, size_t rows, size_t pitch) {
  if (to % value_size)
    return fail(CUDA_ERROR_INVALID_VALUE, "%p is not a multiple of %u", (void *)to, value_size);
  size_t width = count * value_size;
  *operation = (Operation){.kind = DO_SET,
                           .call = current_call(),
                           .to = {(char *)to, OF_A_DEVICE, rows > 1 ? pitch : width},
                           .width = width,
                           .rows = rows,
                           .value = value,
                           .value_size = value_size};
  return CUDA_SUCCESS;
}

static CUresult submit_set(CUstream handle, CUdeviceptr to, unsigned value, unsigned value_size,
                           size_t count) {
  Stream *stream;
  Operation operation;
  TRY(stream_of(handle, &stream));
  if (!count) return CUDA_SUCCESS;
  TRY(set_operation(&operation, to, value, value_size, count, 1, 0));
  return stream_submit(stream, operation);
}

API cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  ENTER;
  return submit_set(NULL, to, value, 1, count);
}

API cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  ENTER;
  return submit_set(NULL, to, value, 2, count);
}

API cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  ENTER;
  return submit_set(NULL, to, value, 4, count);
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  ENTER;
  return submit_set(stream, to, value, 1, count);
}

API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  ENTER;
  return submit_set(stream, to, value, 2, count);
}

API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  ENTER;
  return submit_set(stream, to, value, 4, count);
}
