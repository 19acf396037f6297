/* Entry points that allocate and free memory, and that tell what a pointer points to. */
#include <string.h>

#include "memory.h"

static CUresult allocate(void **address, size_t size, MemoryKind kind, int device) {
  Memory *memory;
  if (device >= 0) TRY(memory_charge(device, size));
  CUresult status = memory_new(&memory, size, kind, device);
  if (status) {
    if (device >= 0) memory_credit(device, size);
    return status;
  }
  *address = memory->address;
  note("  %zu bytes at %p", size, *address);
  return CUDA_SUCCESS;
}

/* The memory that starts at an address and is of this kind. */
static CUresult find(Memory **memory, const void *address, MemoryKind kind) {
  *memory = memory_at(address);
  bool found = *memory && (*memory)->address == address && (*memory)->kind == kind;
  if (found && !(*memory)->freeing && !(*memory)->mapped) return CUDA_SUCCESS;
  char where[256];
  memory_describe(address, where, sizeof where);
  return fail(CUDA_ERROR_INVALID_VALUE, "%p is no start of such an allocation: %s", address, where);
}

API cuMemAlloc(CUdeviceptr *address, size_t size) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  TRY(capture_forbids());
  return allocate((void **)address, size, DEVICE_MEMORY, context->device);
}

API cuMemFree(CUdeviceptr address) {
  ENTER;
  Context *context;
  Memory *memory;
  TRY(current_context(&context));
  TRY(capture_forbids());
  if (!address) return CUDA_SUCCESS;
  TRY(find(&memory, (void *)address, DEVICE_MEMORY));
  memory->freeing = true;
  CUresult status = device_wait(context_of(memory->device));
  memory_credit(memory->device, memory->size);
  memory_end(memory);
  return status;
}

/* ---- the host's memory ---- */

static CUresult allocate_host(void **address, size_t size) {
  Context *context;
  TRY(current_context(&context));
  TRY(capture_forbids());
  return allocate(address, size, PINNED_MEMORY, -1);
}

API cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  ENTER;
  (void)flags; /* all of it is portable and mapped */
  return allocate_host(address, size);
}

API cuMemAllocHost(void **address, size_t size) {
  ENTER;
  return allocate_host(address, size);
}

static CUresult end_host_memory(const void *address, MemoryKind kind) {
  Memory *memory;
  TRY(capture_forbids());
  TRY(find(&memory, address, kind));
  for (int device = 0; device < device_count(); ++device) TRY(device_wait(context_of(device)));
  memory_end(memory);
  return CUDA_SUCCESS;
}

API cuMemFreeHost(void *address) {
  ENTER;
  return address ? end_host_memory(address, PINNED_MEMORY) : CUDA_SUCCESS;
}

API cuMemHostRegister(void *address, size_t size, unsigned flags) {
  ENTER;
  (void)flags;
  Context *context;
  Memory *memory;
  TRY(current_context(&context));
  TRY(capture_forbids());
  return memory_adopt(&memory, address, size, REGISTERED_MEMORY, -1);
}

API cuMemHostUnregister(void *address) {
  ENTER;
  return end_host_memory(address, REGISTERED_MEMORY);
}

API cuMemHostGetDevicePointer(CUdeviceptr *device_address, void *address, unsigned flags) {
  ENTER;
  (void)flags;
  Memory *memory = memory_at(address);
  if (!memory || memory->device >= 0)
    return fail(CUDA_ERROR_INVALID_VALUE, "%p is no pinned or registered memory", address);
  *device_address = (CUdeviceptr)address;
  return CUDA_SUCCESS;
}

/* ---- pools: every allocation is one of its own, of exactly its size ---- */

typedef struct CUmemPoolHandle_st {
  Object object;
  unsigned access; /* bits of further devices that may use its memory */
  cuuint64_t attributes[16]; /* that were set */
} Pool;

static Pool *default_pools[MAX_DEVICES];
static Pool *current_pools[MAX_DEVICES];

static Pool *default_pool(int device) {
  if (!default_pools[device]) default_pools[device] = object_new(POOL, sizeof(Pool), device);
  return default_pools[device];
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  *pool = default_pool(device);
  return CUDA_SUCCESS;
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  ENTER;
  TRY(device_check(device));
  *pool = current_pools[device] ? current_pools[device] : default_pool(device);
  return CUDA_SUCCESS;
}

API cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  ENTER;
  TRY(device_check(device));
  TRY(object_check(pool, POOL));
  current_pools[device] = pool;
  return CUDA_SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  ENTER;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "only pools on devices are implemented, and not of "
                "location type %d", properties->location.type);
  TRY(device_check(properties->location.id));
  *pool = object_new(POOL, sizeof **pool, properties->location.id);
  return CUDA_SUCCESS;
}

API cuMemPoolDestroy(CUmemoryPool pool) {
  ENTER;
  TRY(object_check(pool, POOL));
  if (pool == default_pool(pool->object.device))
    return fail(CUDA_ERROR_INVALID_VALUE, "the default pool cannot be destroyed");
  object_end(pool);
  return CUDA_SUCCESS;
}

API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  ENTER;
  TRY(object_check(pool, POOL));
  if ((unsigned)attribute >= 16)
    return fail(CUDA_ERROR_INVALID_VALUE, "attribute %d is unknown", attribute);
  bool reuse = attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  pool->attributes[attribute] = reuse ? (cuuint64_t)*(int *)value : *(cuuint64_t *)value;
  return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  ENTER;
  TRY(object_check(pool, POOL));
  if ((unsigned)attribute >= 16)
    return fail(CUDA_ERROR_INVALID_VALUE, "attribute %d is unknown", attribute);
  if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
    *(int *)value = (int)pool->attributes[attribute];
  else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    *(cuuint64_t *)value = pool->attributes[attribute];
  else
    *(cuuint64_t *)value = memory_charged(pool->object.device);
  return CUDA_SUCCESS;
}

API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  ENTER;
  TRY(object_check(pool, POOL));
  for (size_t i = 0; i < count; ++i) {
    TRY(device_check(map[i].location.id));
    unsigned bit = 1u << map[i].location.id;
    if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) pool->access &= ~bit;
    else pool->access |= bit;
  }
  return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  ENTER;
  (void)keep; /* what is free goes back at once */
  return object_check(pool, POOL);
}

static CUresult allocate_from(CUdeviceptr *address, size_t size, Pool *pool, CUstream handle) {
  Stream *stream;
  TRY(stream_of(handle, &stream));
  TRY(object_check(pool, POOL));
  if (stream->capture)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "allocations in a graph are not implemented");
  TRY(allocate((void **)address, size, DEVICE_MEMORY, pool->object.device));
  Memory *memory = memory_at((void *)*address);
  memory->pooled = true;
  memory->access = pool->access;
  return CUDA_SUCCESS;
}

API cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                            CUstream stream) {
  ENTER;
  return allocate_from(address, size, pool, stream);
}

API cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  Pool *pool = current_pools[context->device];
  return allocate_from(address, size, pool ? pool : default_pool(context->device), stream);
}

API cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  ENTER;
  Stream *stream;
  Memory *memory;
  TRY(stream_anywhere(handle, &stream)); /* as the driver does: a handle is enough */
  if (!address) return CUDA_SUCCESS;
  TRY(find(&memory, (void *)address, DEVICE_MEMORY));
  if (stream->capture)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "frees in a graph are not implemented");
  memory->freeing = true;
  return stream_submit(stream, (Operation){.kind = DO_FREE, .memory = memory});
}

/* ---- questions ---- */

API cuMemGetInfo(size_t *available, size_t *total) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  *total = settings()->memory;
  *available = *total - memory_charged(context->device);
  return CUDA_SUCCESS;
}

API cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ENTER;
  Memory *memory = memory_at((void *)address);
  if (!memory) return fail(CUDA_ERROR_NOT_FOUND, "%p is no memory", (void *)address);
  if (base) *base = (CUdeviceptr)memory->address;
  if (size) *size = memory->size;
  return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *value, CUpointer_attribute attribute, const void *address) {
  Memory *memory = memory_at(address);
  if (!memory) return fail(CUDA_ERROR_INVALID_VALUE, "%p is no memory of the driver's", address);
  bool host = memory->device < 0;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *(CUcontext *)value = host ? NULL : context_of(memory->device);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)value = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *(CUdeviceptr *)value = (CUdeviceptr)address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host) return fail(CUDA_ERROR_INVALID_VALUE, "%p is memory of a device", address);
      *(const void **)value = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *(unsigned *)value = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *(int *)value = host ? CU_DEVICE_CPU : memory->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *(CUdeviceptr *)value = (CUdeviceptr)memory->address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *(size_t *)value = memory->size;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *(unsigned long long *)value = (unsigned long long)memory->address;
      return CUDA_SUCCESS;
    default:
      return fail(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not implemented", attribute);
  }
}

API cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  ENTER;
  return pointer_attribute(value, attribute, (void *)address);
}

API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                           CUdeviceptr address) {
  ENTER;
  for (unsigned i = 0; i < count; ++i)
    TRY(pointer_attribute(values[i], attributes[i], (void *)address));
  return CUDA_SUCCESS;
}
