/* Handles: a table of all objects there have ever been. */
#include <stdlib.h>

#include "driver.h"

enum { BUCKETS = 4096 };
static Object *buckets[BUCKETS];

static const char *const kind_names[] = {
    [CONTEXT] = "context", [STREAM] = "stream",     [EVENT] = "event", [LIBRARY] = "module",
    [KERNEL] = "kernel",   [POOL] = "memory pool",  [PHYSICAL] = "memory handle",
    [GRAPH] = "graph",     [NODE] = "graph node",   [EXECUTABLE] = "executable graph",
    [CAPTURE] = "capture",
};

static Object **bucket(const void *handle) {
  return &buckets[((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15u >> 52];
}

void *object_new(ObjectKind kind, size_t size, int device) {
  Object *object = calloc(1, size);
  if (!object) abort();
  Object **first = bucket(object);
  *object = (Object){.kind = kind, .alive = true, .device = device, .next = *first};
  *first = object;
  return object;
}

void object_end(void *object) { ((Object *)object)->alive = false; }

CUresult object_check(const void *handle, ObjectKind kind) {
  const char *name = kind_names[kind];
  for (Object *object = *bucket(handle); object; object = object->next) {
    if (object != handle) continue;
    if (object->kind != kind)
      return fail(CUDA_ERROR_INVALID_HANDLE, "%p is a %s, and a %s is wanted", handle,
                  kind_names[object->kind], name);
    if (!object->alive)
      return fail(CUDA_ERROR_INVALID_HANDLE, "%p is a %s that has been destroyed", handle, name);
    return CUDA_SUCCESS;
  }
  return fail(CUDA_ERROR_INVALID_HANDLE, "%p is no %s", handle, name);
}
