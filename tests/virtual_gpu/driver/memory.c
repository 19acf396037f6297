/* Memory: which addresses there are, whose they are, and who may use them.
 *
 * All addresses that the driver hands out come from one range that it reserves. The search for free
 * ones goes on where the last one ended, so an address that has been freed comes back only after
 * the whole range has been used once: meanwhile whoever uses it is told that it has been freed.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "callbacks.h"

enum { PAGE = 4096, ALIGNMENT = 512, FREED = 4096 };
static const size_t ARENA = (size_t)256 << 30;

static char *arena, *cursor;
static Memory **live; /* by address */
static size_t live_count, live_capacity;
static Memory **taken; /* whatever has a range of the arena, by address */
static size_t taken_count, taken_capacity;
static struct { char *address; size_t size; } freed[FREED]; /* the last ones, in a ring */
static size_t freed_count;
static size_t charged[MAX_DEVICES];

/* ---- tables that are sorted by address ---- */

static char *start_of(const Memory *memory, bool range) {
  return range ? memory->range.address : memory->address;
}

/* The number of entries that start at or before an address. */
static size_t table_count(Memory **table, size_t count, const void *address, bool range) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (start_of(table[middle], range) <= (const char *)address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void table_insert(Memory ***table, size_t *count, size_t *capacity, Memory *memory,
                         bool range) {
  if (*count == *capacity) {
    *capacity = *capacity ? 2 * *capacity : 256;
    *table = realloc(*table, *capacity * sizeof **table);
    if (!*table) abort();
  }
  size_t at = table_count(*table, *count, start_of(memory, range), range);
  memmove(*table + at + 1, *table + at, (*count - at) * sizeof **table);
  (*table)[at] = memory;
  ++*count;
}

static void table_remove(Memory **table, size_t *count, const Memory *memory) {
  for (size_t i = 0; i < *count; ++i)
    if (table[i] == memory) {
      memmove(table + i, table + i + 1, (*count - i - 1) * sizeof *table);
      --*count;
      return;
    }
}

/* ---- addresses ---- */

static bool open_arena(void) {
  if (arena) return true;
  void *address = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return false;
  arena = cursor = address;
  return true;
}

static size_t rounded(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/* Free addresses from `from` on, up to `end`; NULL where there are not enough. */
static char *search(char *from, const char *end, size_t size, size_t alignment) {
  for (;;) {
    from = (char *)rounded((uintptr_t)from, alignment);
    if (from > end || (size_t)(end - from) < size) return NULL;
    size_t after = table_count(taken, taken_count, from, true);
    if (after) {
      Memory *before = taken[after - 1];
      char *free_from = before->range.address + before->range.size;
      if (free_from > from) {
        from = free_from;
        continue;
      }
    }
    if (after == taken_count || taken[after]->range.address >= from + size) return from;
    from = taken[after]->range.address + taken[after]->range.size;
  }
}

static char *take(size_t size, size_t alignment) {
  if (!open_arena()) return NULL;
  char *found = search(cursor, arena + ARENA, size, alignment);
  if (!found) found = search(arena, arena + ARENA, size, alignment);
  if (found) cursor = found + size;
  return found;
}

static Memory *record(void *address, size_t size, MemoryKind kind, int device) {
  Memory *memory = calloc(1, sizeof *memory);
  if (!memory) abort();
  memory->address = address;
  memory->size = size;
  memory->kind = kind;
  memory->device = device;
  return memory;
}

CUresult memory_new(Memory **memory, size_t size, MemoryKind kind, int device) {
  if (!size) return fail(CUDA_ERROR_INVALID_VALUE, "0 bytes are asked for");
  /* Bytes before, so that it is aligned as on a GPU and no better; a page behind, of nobody. */
  size_t range = rounded(ALIGNMENT + size, PAGE) + PAGE;
  char *address = take(range, PAGE);
  if (!address) return fail(CUDA_ERROR_OUT_OF_MEMORY, "there are no addresses for %zu bytes", size);
  *memory = record(address + ALIGNMENT, size, kind, device);
  (*memory)->range.address = address;
  (*memory)->range.size = range;
  memory_fill_garbage(*memory);
  table_insert(&taken, &taken_count, &taken_capacity, *memory, true);
  table_insert(&live, &live_count, &live_capacity, *memory, false);
  return CUDA_SUCCESS;
}

void memory_fill_garbage(Memory *memory) { memset(memory->address, 0xCB, memory->size); }

CUresult memory_reserve(Memory **memory, size_t size, size_t alignment) {
  char *address = take(rounded(size, PAGE) + PAGE, alignment < PAGE ? PAGE : alignment);
  if (!address) return fail(CUDA_ERROR_OUT_OF_MEMORY, "there are no addresses for %zu bytes", size);
  *memory = record(address, size, RESERVED_ADDRESSES, -1);
  (*memory)->range.address = address;
  (*memory)->range.size = rounded(size, PAGE) + PAGE;
  table_insert(&taken, &taken_count, &taken_capacity, *memory, true);
  return CUDA_SUCCESS;
}

Memory *memory_reserved(const void *address) {
  size_t count = table_count(taken, taken_count, address, true);
  Memory *memory = count ? taken[count - 1] : NULL;
  if (!memory || memory->kind != RESERVED_ADDRESSES) return NULL;
  return (const char *)address < memory->address + memory->size ? memory : NULL;
}

CUresult memory_adopt(Memory **memory, void *address, size_t size, MemoryKind kind, int device) {
  if (!size) return fail(CUDA_ERROR_INVALID_VALUE, "0 bytes at %p", address);
  size_t count = table_count(live, live_count, (char *)address + size - 1, false);
  if (count && live[count - 1]->address + live[count - 1]->size > (char *)address)
    return fail(CUDA_ERROR_INVALID_VALUE, "%zu bytes at %p overlap others that are known", size,
                address);
  *memory = record(address, size, kind, device);
  table_insert(&live, &live_count, &live_capacity, *memory, false);
  return CUDA_SUCCESS;
}

void memory_end(Memory *memory) {
  freed[freed_count % FREED].address = memory->address;
  freed[freed_count++ % FREED].size = memory->size;
  table_remove(live, &live_count, memory);
  if (memory->range.size) {
    table_remove(taken, &taken_count, memory);
    madvise(memory->range.address, memory->range.size, MADV_DONTNEED);
  }
  free(memory);
}

Memory *memory_at(const void *address) {
  size_t count = table_count(live, live_count, address, false);
  Memory *memory = count ? live[count - 1] : NULL;
  return memory && (const char *)address < memory->address + memory->size ? memory : NULL;
}

bool memory_is_ours(const void *address) {
  return arena && (const char *)address >= arena && (const char *)address < arena + ARENA;
}

/* ---- checks ---- */

void memory_describe(const void *address, char *text, size_t capacity) {
  Memory *memory = memory_at(address);
  if (memory) {
    snprintf(text, capacity, "byte %td of the %zu at %p, %s%d%s",
             (const char *)address - memory->address, memory->size, (void *)memory->address,
             memory->device < 0 ? "on the host " : "on device ", memory->device,
             memory->freeing ? ", which cuMemFreeAsync has freed" : "");
    return;
  }
  size_t kept = freed_count < FREED ? freed_count : FREED;
  for (size_t i = 1; i <= kept; ++i) {
    size_t k = (freed_count - i) % FREED;
    if ((const char *)address < freed[k].address ||
        (const char *)address >= freed[k].address + freed[k].size)
      continue;
    snprintf(text, capacity, "byte %td of %zu at %p that have been freed",
             (const char *)address - freed[k].address, freed[k].size, (void *)freed[k].address);
    return;
  }
  size_t before = table_count(live, live_count, address, false);
  if (before && memory_is_ours(address)) {
    Memory *nearest = live[before - 1];
    snprintf(text, capacity, "%td bytes behind the end of the %zu at %p",
             (const char *)address - nearest->address - (ptrdiff_t)nearest->size, nearest->size,
             (void *)nearest->address);
    return;
  }
  snprintf(text, capacity, "%s",
           memory_is_ours(address) ? "no memory that is allocated" : "no memory of the driver's");
}

static bool usable(const Memory *memory, int device) {
  if (device < 0 || memory->device < 0 || memory->device == device) return true;
  if (memory->access & 1u << device) return true;
  bool own_rules = memory->pooled || memory->mapped; /* their access is set for each, not by peers */
  return !own_rules && context_of(device)->peers & 1u << memory->device;
}

CUresult memory_check(const void *address, size_t bytes, int device, bool running,
                      const char *what) {
  if (!bytes) return CUDA_SUCCESS;
  char where[256];
  Memory *memory = memory_at(address);
  if (!memory || (memory->freeing && !running)) {
    memory_describe(address, where, sizeof where);
    return fail(CUDA_ERROR_INVALID_VALUE, "%s, %zu bytes at %p: %s", what, bytes, address, where);
  }
  size_t offset = (const char *)address - memory->address;
  if (bytes > memory->size - offset)
    return fail(CUDA_ERROR_INVALID_VALUE, "%s, %zu bytes at %p: from byte %zu of %zu on, %zu too many",
                what, bytes, address, offset, memory->size, bytes - (memory->size - offset));
  if (!usable(memory, device))
    return fail(CUDA_ERROR_INVALID_VALUE,
                "%s, %zu bytes at %p: memory of device %d, to which device %d has no access", what,
                bytes, address, memory->device, device);
  return CUDA_SUCCESS;
}

CUresult memory_charge(int device, size_t bytes) {
  if (bytes > settings()->memory - charged[device])
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes, and device %d has %zu of %zu in use", bytes,
                device, charged[device], settings()->memory);
  charged[device] += bytes;
  return CUDA_SUCCESS;
}

void memory_credit(int device, size_t bytes) { charged[device] -= bytes; }

size_t memory_charged(int device) { return charged[device]; }

/* ---- for the callbacks ---- */

static MemoryRecord record_of(const Memory *memory, int device) {
  return (MemoryRecord){(uint64_t)memory->address, memory->size, usable(memory, device)};
}

EXPORT int virtual_gpu_memory_at(uint64_t address, int device, MemoryRecord *found) {
  lock();
  Memory *memory = memory_at((void *)address);
  if (memory) *found = record_of(memory, device);
  unlock();
  return memory != NULL;
}

EXPORT uint64_t virtual_gpu_memories(int device, MemoryRecord *records, uint64_t capacity) {
  lock();
  uint64_t count = live_count;
  for (uint64_t i = 0; i < count && i < capacity; ++i) records[i] = record_of(live[i], device);
  unlock();
  return count;
}

EXPORT void virtual_gpu_describe_address(uint64_t address, char *text, uint64_t capacity) {
  lock();
  memory_describe((void *)address, text, capacity);
  unlock();
}
