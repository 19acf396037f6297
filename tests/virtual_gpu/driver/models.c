/* The GPUs that can be modelled, with what the driver says of them.
 *
 * Sources: NVIDIA's architecture whitepapers of A100, H100, Ada and Blackwell (SMs, memory, caches);
 * CUDA C++ programming guide, tables of compute capabilities (shared memory, threads, blocks).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static const Model models[] = {
    {.key = "h100", .name = "NVIDIA H100 80GB HBM3", .major = 9, .minor = 0,
     .multiprocessors = 132, .clock_khz = 1980000, .memory_clock_khz = 2619000,
     .bus_width = 5120, .l2_bytes = 50 << 20,
     .shared_per_multiprocessor = 228 << 10, .shared_per_block = 227 << 10,
     .threads_per_multiprocessor = 2048, .blocks_per_multiprocessor = 32},
    {.key = "a100", .name = "NVIDIA A100-SXM4-80GB", .major = 8, .minor = 0,
     .multiprocessors = 108, .clock_khz = 1410000, .memory_clock_khz = 1593000,
     .bus_width = 5120, .l2_bytes = 40 << 20,
     .shared_per_multiprocessor = 164 << 10, .shared_per_block = 163 << 10,
     .threads_per_multiprocessor = 2048, .blocks_per_multiprocessor = 32},
    {.key = "rtx4090", .name = "NVIDIA GeForce RTX 4090", .major = 8, .minor = 9,
     .multiprocessors = 128, .clock_khz = 2520000, .memory_clock_khz = 10501000,
     .bus_width = 384, .l2_bytes = 72 << 20,
     .shared_per_multiprocessor = 100 << 10, .shared_per_block = 99 << 10,
     .threads_per_multiprocessor = 1536, .blocks_per_multiprocessor = 24},
    /* Its name is in no table of data sheets, so that what is asked for is its attributes. */
    {.key = "l4", .name = "NVIDIA L4", .major = 8, .minor = 9,
     .multiprocessors = 58, .clock_khz = 2040000, .memory_clock_khz = 6251000,
     .bus_width = 192, .l2_bytes = 48 << 20,
     .shared_per_multiprocessor = 100 << 10, .shared_per_block = 99 << 10,
     .threads_per_multiprocessor = 1536, .blocks_per_multiprocessor = 24},
    {.key = "b200", .name = "NVIDIA B200", .major = 10, .minor = 0,
     .multiprocessors = 148, .clock_khz = 1965000, .memory_clock_khz = 3996000,
     .bus_width = 8192, .l2_bytes = 126 << 20,
     .shared_per_multiprocessor = 228 << 10, .shared_per_block = 227 << 10,
     .threads_per_multiprocessor = 2048, .blocks_per_multiprocessor = 32},
};

static const Model *chosen;

static void choose(void) {
  const char *key = getenv("VIRTUAL_GPU_MODEL");
  if (!key || !*key) key = models[0].key;
  for (size_t i = 0; i < sizeof models / sizeof *models; ++i)
    if (!strcmp(models[i].key, key)) chosen = &models[i];
  if (chosen) return;
  fprintf(stderr, "virtual GPU: there is no model VIRTUAL_GPU_MODEL=%s\n", key);
  abort();
}

const Model *model(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, choose);
  return chosen;
}

int model_attribute(CUdevice_attribute attribute, int device) {
  const Model *gpu = model();
  switch ((int)attribute) {
#define IS(name, value) case CU_DEVICE_ATTRIBUTE_##name: return value
    /* of the model */
    IS(COMPUTE_CAPABILITY_MAJOR, gpu->major);
    IS(COMPUTE_CAPABILITY_MINOR, gpu->minor);
    IS(MULTIPROCESSOR_COUNT, gpu->multiprocessors);
    IS(CLOCK_RATE, gpu->clock_khz);
    IS(MEMORY_CLOCK_RATE, gpu->memory_clock_khz);
    IS(GLOBAL_MEMORY_BUS_WIDTH, gpu->bus_width);
    IS(L2_CACHE_SIZE, gpu->l2_bytes);
    IS(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, gpu->shared_per_multiprocessor);
    IS(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, gpu->shared_per_block);
    IS(MAX_THREADS_PER_MULTIPROCESSOR, gpu->threads_per_multiprocessor);
    IS(MAX_BLOCKS_PER_MULTIPROCESSOR, gpu->blocks_per_multiprocessor);
    /* the same in all models */
    IS(MAX_THREADS_PER_BLOCK, 1024);
    IS(MAX_BLOCK_DIM_X, 1024);
    IS(MAX_BLOCK_DIM_Y, 1024);
    IS(MAX_BLOCK_DIM_Z, 64);
    IS(MAX_GRID_DIM_X, 2147483647);
    IS(MAX_GRID_DIM_Y, 65535);
    IS(MAX_GRID_DIM_Z, 65535);
    IS(MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10);
    IS(RESERVED_SHARED_MEMORY_PER_BLOCK, 1 << 10);
    IS(MAX_REGISTERS_PER_BLOCK, 65536);
    IS(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536);
    IS(TOTAL_CONSTANT_MEMORY, 65536);
    IS(WARP_SIZE, 32);
    IS(MAX_PITCH, 2147483647);
    IS(TEXTURE_ALIGNMENT, 512);
    IS(ASYNC_ENGINE_COUNT, 3);
    IS(GPU_OVERLAP, 1);
    IS(CONCURRENT_KERNELS, 1);
    IS(COOPERATIVE_LAUNCH, 1);
    IS(STREAM_PRIORITIES_SUPPORTED, 1);
    IS(COMPUTE_PREEMPTION_SUPPORTED, 1);
    IS(CAN_MAP_HOST_MEMORY, 1);
    IS(HOST_REGISTER_SUPPORTED, 1);
    IS(UNIFIED_ADDRESSING, 1);
    IS(MEMORY_POOLS_SUPPORTED, 1);
    IS(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1);
    IS(GLOBAL_L1_CACHE_SUPPORTED, 1);
    IS(LOCAL_L1_CACHE_SUPPORTED, 1);
    IS(ECC_ENABLED, 1);
    IS(PCI_BUS_ID, 0x65 + device);
    default: return 0; /* a feature that it does not have */
#undef IS
  }
}
