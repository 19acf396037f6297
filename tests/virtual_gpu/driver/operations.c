/* What a stream can be asked to do. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launches.h"

static _Atomic(LaunchCallback *) launch_callback;

void set_launch_callback(LaunchCallback *callback) { atomic_store(&launch_callback, callback); }

static void *duplicate(const void *bytes, size_t size) {
  if (!bytes) return NULL;
  void *copy = malloc(size ? size : 1);
  if (!copy) abort();
  return memcpy(copy, bytes, size);
}

Operation operation_copy(const Operation *operation) {
  Operation copy = *operation;
  if (copy.entry) copy.parameters = duplicate(copy.parameters, copy.entry->parameter_bytes);
  copy.staged = duplicate(copy.staged, copy.width * copy.rows);
  if (copy.graph) copy.graph = graph_copy(copy.graph);
  return copy;
}

void operation_free(Operation *operation) {
  free(operation->parameters);
  free(operation->staged);
  if (operation->graph) graph_end(operation->graph);
}

/* ---- checks ---- */

static CUresult check_place(const Place *place, const Operation *operation, int device,
                            bool running, const char *what) {
  size_t rows = operation->rows;
  if (!rows || !operation->width) return CUDA_SUCCESS;
  size_t bytes = (rows - 1) * place->pitch + operation->width;
  Memory *memory = memory_at(place->address);
  bool pageable = !memory && !memory_is_ours(place->address);
  if (pageable && place->owner != OF_A_DEVICE) return CUDA_SUCCESS;
  if (place->owner == OF_THE_HOST && memory && memory->device >= 0)
    return fail(CUDA_ERROR_INVALID_VALUE, "%s, %p, is memory of device %d, and not of the host",
                what, (void *)place->address, memory->device);
  if (place->owner == OF_A_DEVICE && pageable)
    return fail(CUDA_ERROR_INVALID_VALUE, "%s, %p, is no memory of a device", what,
                (void *)place->address);
  return memory_check(place->address, bytes, device, running, what);
}

CUresult operation_check(const Operation *operation, int device, bool running) {
  if (operation->kind == DO_COPY) {
    /* The driver copies between devices even where their kernels have no access. */
    TRY(check_place(&operation->to, operation, -1, running, "the destination"));
    if (!operation->staged) TRY(check_place(&operation->from, operation, -1, running, "the source"));
  }
  if (operation->kind == DO_LAUNCH && operation->device != device)
    return fail(CUDA_ERROR_INVALID_HANDLE, "%s is to be launched on device %d, and the stream is "
                "of device %d", operation->entry->name, operation->device, device);
  if (operation->kind == DO_SET)
    TRY(check_place(&operation->to, operation, device, running, "the destination"));
  return CUDA_SUCCESS;
}

/* ---- doing it ---- */

static CUresult run_kernel(const Operation *operation, int device) {
  Entry *entry = operation->entry;
  LaunchCallback *callback = atomic_load(&launch_callback);
  if (!callback) return fail(CUDA_ERROR_NOT_SUPPORTED, "nothing is there that runs kernels");
  void **parameters = malloc((entry->parameter_count + 1) * sizeof *parameters);
  if (!parameters) abort();
  for (unsigned i = 0; i < entry->parameter_count; ++i)
    parameters[i] = operation->parameters + entry->offsets[i];
  LaunchRequest request = {
      .library = library_id(entry),
      .kernel = entry->name,
      .device = device,
      .shared = operation->shared,
      .parameter_count = entry->parameter_count,
      .parameters = parameters,
  };
  memcpy(request.grid, operation->grid, sizeof request.grid);
  memcpy(request.block, operation->block, sizeof request.block);
  char message[768] = "";
  note("  runs %s", entry->name);
  CUresult status = callback(&request, message, sizeof message);
  free(parameters);
  name_call(operation->call); /* the callback may have called the driver */
  return status ? fail(status, "kernel %s: %s", entry->name, message) : CUDA_SUCCESS;
}

static void copy(const Operation *operation) {
  const Place *to = &operation->to, *from = &operation->from;
  const char *source = operation->staged ? operation->staged : from->address;
  size_t pitch = operation->staged ? operation->width : from->pitch;
  for (size_t row = 0; row < operation->rows; ++row)
    memmove(to->address + row * to->pitch, source + row * pitch, operation->width);
}

static void set(const Operation *operation) {
  unsigned size = operation->value_size;
  for (size_t row = 0; row < operation->rows; ++row) {
    char *start = operation->to.address + row * operation->to.pitch;
    for (size_t i = 0; i + size <= operation->width; i += size)
      memcpy(start + i, &operation->value, size);
  }
}

static CUresult check_again(const Operation *operation, int device) {
  lock();
  CUresult status = operation_check(operation, device, true);
  unlock();
  return status ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult operation_run(const Operation *operation, int device) {
  switch (operation->kind) {
    case DO_LAUNCH:
      return run_kernel(operation, device);
    case DO_COPY:
      TRY(check_again(operation, device));
      copy(operation);
      return CUDA_SUCCESS;
    case DO_SET:
      TRY(check_again(operation, device));
      set(operation);
      return CUDA_SUCCESS;
    case DO_HOST:
      operation->function(operation->data);
      return CUDA_SUCCESS;
    default: /* what the stream does itself, or has taken apart */
      return CUDA_SUCCESS;
  }
}
