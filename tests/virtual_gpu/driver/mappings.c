/* Virtual memory management: addresses are reserved, and handles of memory are mapped to them.
 *
 * The bytes lie where a handle is mapped, so it can be mapped once only.
 */
#include <stdlib.h>

#include "memory.h"

typedef struct {
  Object object;
  size_t size;
  CUmemAllocationProp properties;
  Memory *mapping;
} Physical;

API cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                  CUmemAllocationGranularity_flags option) {
  ENTER;
  (void)properties, (void)option;
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                const CUmemAllocationProp *properties, unsigned long long flags) {
  ENTER;
  (void)flags;
  TRY(capture_forbids());
  bool host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  int device = host ? -1 : properties->location.id;
  if (size % (2 << 20))
    return fail(CUDA_ERROR_INVALID_VALUE, "%zu bytes are not a multiple of the granularity", size);
  if (!host) {
    TRY(device_check(device));
    TRY(memory_charge(device, size));
  }
  Physical *physical = object_new(PHYSICAL, sizeof *physical, device);
  physical->size = size;
  physical->properties = *properties;
  *handle = (CUmemGenericAllocationHandle)physical;
  return CUDA_SUCCESS;
}

/* The memory goes back once it is mapped no more. */
static void credit(Physical *physical) {
  if (physical->object.alive || physical->mapping || physical->object.device < 0) return;
  memory_credit(physical->object.device, physical->size);
}

API cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER;
  Physical *physical = (Physical *)handle;
  TRY(object_check(physical, PHYSICAL));
  object_end(physical);
  credit(physical);
  return CUDA_SUCCESS;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                           CUmemGenericAllocationHandle handle) {
  ENTER;
  Physical *physical = (Physical *)handle;
  TRY(object_check(physical, PHYSICAL));
  *properties = physical->properties;
  return CUDA_SUCCESS;
}

API cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags) {
  ENTER;
  (void)wanted, (void)flags; /* a wish, which the driver need not fulfil */
  Memory *memory;
  TRY(memory_reserve(&memory, size, alignment < (2 << 20) ? 2 << 20 : alignment));
  *address = (CUdeviceptr)memory->address;
  return CUDA_SUCCESS;
}

API cuMemAddressFree(CUdeviceptr address, size_t size) {
  ENTER;
  Memory *memory = memory_reserved((void *)address);
  if (!memory || memory->address != (char *)address || memory->size != size)
    return fail(CUDA_ERROR_INVALID_VALUE, "%zu bytes at %p are no reservation", size,
                (void *)address);
  memory_end(memory);
  return CUDA_SUCCESS;
}

/* The mappings, so that an unmapping finds the handles. */
static struct Mapping { struct Mapping *next; Physical *physical; Memory *memory; } *mappings;

API cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  ENTER;
  (void)flags;
  Physical *physical = (Physical *)handle;
  TRY(object_check(physical, PHYSICAL));
  if (physical->mapping || offset || size != physical->size)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "only one mapping of a whole handle is implemented");
  Memory *reserved = memory_reserved((void *)address);
  if (!reserved || (char *)address + size > reserved->address + reserved->size)
    return fail(CUDA_ERROR_INVALID_VALUE, "%zu bytes at %p are not reserved", size,
                (void *)address);
  int device = physical->object.device;
  TRY(memory_adopt(&physical->mapping, (void *)address, size, DEVICE_MEMORY, device));
  memory_fill_garbage(physical->mapping);
  physical->mapping->mapped = true;
  struct Mapping *mapping = malloc(sizeof *mapping);
  if (!mapping) abort();
  *mapping = (struct Mapping){mappings, physical, physical->mapping};
  mappings = mapping;
  return CUDA_SUCCESS;
}

API cuMemUnmap(CUdeviceptr address, size_t size) {
  ENTER;
  for (int device = 0; device < device_count(); ++device) TRY(device_wait(context_of(device)));
  size_t unmapped = 0;
  for (struct Mapping **place = &mappings; *place;) {
    struct Mapping *mapping = *place;
    char *start = mapping->memory->address;
    if (start < (char *)address || start >= (char *)address + size) {
      place = &mapping->next;
      continue;
    }
    unmapped += mapping->memory->size;
    memory_end(mapping->memory);
    mapping->physical->mapping = NULL;
    credit(mapping->physical);
    *place = mapping->next;
    free(mapping);
  }
  if (unmapped != size)
    return fail(CUDA_ERROR_INVALID_VALUE, "%zu of the %zu bytes at %p are mapped", unmapped, size,
                (void *)address);
  return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
  ENTER;
  for (struct Mapping *mapping = mappings; mapping; mapping = mapping->next) {
    char *start = mapping->memory->address;
    if (start < (char *)address || start >= (char *)address + size) continue;
    for (size_t i = 0; i < count; ++i) {
      if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) continue;
      TRY(device_check(access[i].location.id));
      unsigned bit = 1u << access[i].location.id;
      if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) mapping->memory->access &= ~bit;
      else mapping->memory->access |= bit;
    }
  }
  return CUDA_SUCCESS;
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
  ENTER;
  Memory *memory = memory_at((void *)address);
  if (!memory) return fail(CUDA_ERROR_INVALID_VALUE, "%p is not mapped", (void *)address);
  bool may = memory->device == location->id || memory->access & 1u << location->id;
  *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}
