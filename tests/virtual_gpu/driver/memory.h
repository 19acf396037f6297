/* What the files that hand out memory share with memory.c. */
#ifndef VIRTUAL_GPU_MEMORY_H
#define VIRTUAL_GPU_MEMORY_H

#include "driver.h"

/* Takes addresses without memory. */
CUresult memory_reserve(Memory **memory, size_t size, size_t alignment);
/* The reservation that an address lies in; NULL where there is none. */
Memory *memory_reserved(const void *address);
/* Fills new memory, so that what reads it before it is written gets no zeros. */
void memory_fill_garbage(Memory *memory);
/* The bytes of a device that are in use. */
size_t memory_charged(int device);

#endif
