/* Copies and fills as operations: transfers.c makes them for streams, graphs.c for nodes. */
#ifndef VIRTUAL_GPU_TRANSFERS_H
#define VIRTUAL_GPU_TRANSFERS_H

#include "driver.h"

CUresult copy_operation(Operation *operation, const CUDA_MEMCPY3D *copy);
CUresult set_operation(Operation *operation, CUdeviceptr to, unsigned value, unsigned value_size,
                       size_t count, size_t rows, size_t pitch);

#endif
