/* Where kernels go: the half of the virtual GPU that understands PTX registers itself here.
 *
 * python/virtual_driver/driver.py declares the same functions for ctypes.
 */
#ifndef VIRTUAL_GPU_CALLBACKS_H
#define VIRTUAL_GPU_CALLBACKS_H

#include <stdint.h>

#include "cuda.h"

/* Reads a module's text, for a device or, for -1, for all, and says by virtual_gpu_add_* what is in
 * it. Returns CUDA_SUCCESS, or another CUresult with a message. */
typedef int LoadCallback(uint64_t library, int32_t device, const char *text, uint64_t size,
                         char *message, uint64_t capacity);

typedef struct {
  uint64_t library;
  const char *kernel;
  int32_t device;
  uint32_t grid[3], block[3], shared, parameter_count;
  void **parameters; /* for each the address of its value */
} LaunchRequest;

/* Runs a kernel to its end. Returns CUDA_SUCCESS, or another CUresult with a message. */
typedef int LaunchCallback(const LaunchRequest *request, char *message, uint64_t capacity);

typedef struct {
  uint64_t address, size;
  uint32_t usable; /* whether the device may use it */
} MemoryRecord;

void virtual_gpu_set_callbacks(LoadCallback *load, LaunchCallback *launch);
int virtual_gpu_add_kernel(uint64_t library, const char *name, const uint64_t *sizes,
                           const uint64_t *alignments, uint32_t count, uint32_t static_shared,
                           uint32_t max_threads, int32_t registers);
/* A variable's memory becomes memory of the device, and stays where it is as long as the process. */
int virtual_gpu_add_variable(uint64_t library, const char *name, int device, void *address,
                             uint64_t size);
/* The live memory that an address lies in; 0 where there is none. */
int virtual_gpu_memory_at(uint64_t address, int device, MemoryRecord *record);
/* All live memory, by address; returns how much there is, and writes at most `capacity` records. */
uint64_t virtual_gpu_memories(int device, MemoryRecord *records, uint64_t capacity);
void virtual_gpu_describe_address(uint64_t address, char *text, uint64_t capacity);
/* Waits for all that has been submitted; then kernels are refused. */
void virtual_gpu_stop(void);
const char *virtual_gpu_last_failure(void);

#endif
