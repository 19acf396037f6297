/* What launches.c, modules.c, operations.c and graphs.c share. */
#ifndef VIRTUAL_GPU_LAUNCHES_H
#define VIRTUAL_GPU_LAUNCHES_H

#include "callbacks.h"
#include "driver.h"

typedef struct {
  CUfunction function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
} LaunchParameters;

/* Checks a launch on a device and makes the operation of it. */
CUresult launch_operation(Operation *operation, const LaunchParameters *launch, int device);
void set_launch_callback(LaunchCallback *callback);
uint64_t library_id(const Entry *entry);

#endif
