/* Kernel launches: the modelled GPU's limits, and the parameters' values. */
#include "launches.h"

#include <stdlib.h>
#include <string.h>

static CUresult check_shape(const Entry *entry, const LaunchParameters *launch, int device) {
  static const CUdevice_attribute grid_limits[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                                                   CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                                   CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  static const CUdevice_attribute block_limits[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                                                    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                                    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    unsigned grid = launch->grid[i], block = launch->block[i];
    unsigned most_blocks = (unsigned)model_attribute(grid_limits[i], device);
    unsigned most_threads = (unsigned)model_attribute(block_limits[i], device);
    if (!grid || grid > most_blocks)
      return fail(CUDA_ERROR_INVALID_VALUE, "%s: grid dimension %c is %u, and 1 to %u are possible",
                  entry->name, "xyz"[i], grid, most_blocks);
    if (!block || block > most_threads)
      return fail(CUDA_ERROR_INVALID_VALUE,
                  "%s: block dimension %c is %u, and 1 to %u are possible", entry->name, "xyz"[i],
                  block, most_threads);
    threads *= block;
  }
  if (threads > entry->max_threads)
    return fail(CUDA_ERROR_INVALID_VALUE, "%s: %llu threads a block, and at most %u are possible",
                entry->name, (unsigned long long)threads, entry->max_threads);
  enum { WARP = 32, UNIT = 256 }; /* a warp's registers come in such units */
  uint64_t warps = (threads + WARP - 1) / WARP;
  uint64_t of_warp = ((uint64_t)entry->registers * WARP + UNIT - 1) / UNIT * UNIT;
  uint64_t most = (uint64_t)model_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
  if (warps * of_warp > most)
    return fail(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                "%s: %llu threads of %d registers, and a block has %llu", entry->name,
                (unsigned long long)threads, entry->registers, (unsigned long long)most);
  if (launch->shared > (unsigned)dynamic_shared_limit(entry, device))
    return fail(CUDA_ERROR_INVALID_VALUE,
                "%s: %u bytes of dynamic shared memory, and it may have %d on device %d",
                entry->name, launch->shared, dynamic_shared_limit(entry, device), device);
  return CUDA_SUCCESS;
}

static CUresult copy_parameters(const Entry *entry, const LaunchParameters *launch, char *to) {
  if (launch->extra) {
    for (void **extra = launch->extra; *extra != CU_LAUNCH_PARAM_END; extra += 2)
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) memcpy(to, extra[1], entry->parameter_bytes);
    return CUDA_SUCCESS;
  }
  if (entry->parameter_count && !launch->parameters)
    return fail(CUDA_ERROR_INVALID_VALUE, "%s has %u parameters, and none is given", entry->name,
                entry->parameter_count);
  for (unsigned i = 0; i < entry->parameter_count; ++i) {
    if (!launch->parameters[i])
      return fail(CUDA_ERROR_INVALID_VALUE, "%s: parameter %u of %u is missing", entry->name, i,
                  entry->parameter_count);
    memcpy(to + entry->offsets[i], launch->parameters[i], entry->sizes[i]);
  }
  return CUDA_SUCCESS;
}

CUresult launch_operation(Operation *operation, const LaunchParameters *launch, int device) {
  TRY(object_check(launch->function, KERNEL));
  Kernel *kernel = launch->function;
  Entry *entry = kernel->entry;
  if (kernel->object.device >= 0 && kernel->object.device != device)
    return fail(CUDA_ERROR_INVALID_HANDLE, "%s is loaded on device %d, and launched on device %d",
                entry->name, kernel->object.device, device);
  kernel_load(kernel, device);
  TRY(check_shape(entry, launch, device));
  char *parameters = malloc(entry->parameter_bytes + 1);
  if (!parameters) abort();
  CUresult status = copy_parameters(entry, launch, parameters);
  if (status) {
    free(parameters);
    return status;
  }
  *operation = (Operation){.kind = DO_LAUNCH,
                           .call = current_call(),
                           .entry = entry,
                           .device = device,
                           .parameters = parameters,
                           .shared = launch->shared};
  memcpy(operation->grid, launch->grid, sizeof operation->grid);
  memcpy(operation->block, launch->block, sizeof operation->block);
  return CUDA_SUCCESS;
}

/* A CUkernel is loaded into a device when its function is asked for there, or else at its first
 * launch there, which may have to wait for the device. So a launch that is captured loads nothing,
 * whatever the mode of the capture. */
static CUresult check_loaded(const Kernel *kernel, Stream *stream) {
  TRY(object_check(kernel, KERNEL));
  if (!stream->capture || kernel_is_loaded(kernel, stream->context->device)) return CUDA_SUCCESS;
  return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                       "the kernel is not loaded into this device yet");
}

static CUresult submit(const LaunchParameters *launch, CUstream handle) {
  Stream *stream;
  Operation operation;
  TRY(stream_of(handle, &stream));
  TRY(context_status(stream->context));
  TRY(check_loaded(launch->function, stream));
  TRY(launch_operation(&operation, launch, stream->context->device));
  note("  %s <<<%u %u %u, %u %u %u, %u>>>", operation.entry->name, launch->grid[0],
       launch->grid[1], launch->grid[2], launch->block[0], launch->block[1], launch->block[2],
       launch->shared);
  return stream_submit(stream, operation);
}

API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   CUstream stream, void **parameters, void **extra) {
  ENTER;
  LaunchParameters launch = {function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                             shared, parameters, extra};
  return submit(&launch, stream);
}

API cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y,
                              unsigned block_z, unsigned shared, CUstream stream,
                              void **parameters) {
  ENTER;
  LaunchParameters launch = {function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                             shared, parameters, NULL};
  return submit(&launch, stream);
}

static CUresult check_attribute(const CUlaunchAttribute *attribute) {
  switch (attribute->id) {
    /* What only makes a launch earlier, later or faster. */
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      if (attribute->value.clusterDim.x * attribute->value.clusterDim.y *
              attribute->value.clusterDim.z == 1)
        return CUDA_SUCCESS;
      return fail(CUDA_ERROR_NOT_SUPPORTED, "clusters of blocks are not implemented");
    default:
      return fail(CUDA_ERROR_NOT_SUPPORTED, "launch attribute %d is not implemented",
                  attribute->id);
  }
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                     void **extra) {
  ENTER;
  for (unsigned i = 0; i < config->numAttrs; ++i) TRY(check_attribute(&config->attrs[i]));
  LaunchParameters launch = {
      function,
      {config->gridDimX, config->gridDimY, config->gridDimZ},
      {config->blockDimX, config->blockDimY, config->blockDimZ},
      config->sharedMemBytes,
      parameters,
      extra,
  };
  return submit(&launch, config->hStream);
}

/* ---- occupancy ---- */

static int smaller(int a, int b) { return a < b ? a : b; }

/* The blocks that shared memory leaves room for: as much of it as the kernel prefers, but enough for
 * one block. A GPU takes the next larger of a few sizes, which is never less. */
static int blocks_by_shared(const Entry *entry, size_t shared, int device) {
  if (shared > (size_t)dynamic_shared_limit(entry, device)) return 0;
  size_t reserved = model_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
  size_t of_block = entry->static_shared + shared + reserved;
  size_t all = model()->shared_per_multiprocessor;
  int percent = entry->carve_out[device];
  int most = (int)(all / of_block);
  if (percent == CU_SHAREDMEM_CARVEOUT_DEFAULT) return most;
  int preferred = (int)(all * percent / 100 / of_block);
  return preferred ? preferred : smaller(most, 1);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                         int threads, size_t shared,
                                                         unsigned flags) {
  ENTER;
  (void)flags;
  Context *context;
  TRY(current_context(&context));
  TRY(object_check(function, KERNEL));
  if (threads <= 0) return fail(CUDA_ERROR_INVALID_VALUE, "%d threads a block", threads);
  const Model *gpu = model();
  Entry *entry = function->entry;
  int warps = (threads + 31) / 32;
  *blocks = smaller(gpu->blocks_per_multiprocessor, gpu->threads_per_multiprocessor / (32 * warps));
  /* For a CUkernel, which has no device, the current context counts. */
  *blocks = smaller(*blocks, blocks_by_shared(entry, shared, context->device));
  int of_warp = (entry->registers * 32 + 255) / 256 * 256;
  if (of_warp) *blocks = smaller(*blocks, 65536 / of_warp / warps);
  return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                              0);
}
