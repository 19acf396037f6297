/* One kernel launch as an XLA custom call: the handler, without Python on the hot path.
 *
 * A call says what is launched in the attribute `spec`, whose hash is the attribute `key`; both are
 * the same in every process. With the types and dimensions of its buffers and the device they find
 * a Launch in a table: what to call, with which grid and which arguments. On a miss the resolver, a
 * Python function, checks the call and fills in the Launch; that happens once in a process. From
 * then on a call is a lookup, which takes no lock, and one call of a function with cuLaunchKernel's
 * signature. A call that differs in anything from the one that was checked is not found.
 *
 * Needs XLA's c_api.h and libc. The FFI's State functions are not used: their structs differ
 * between versions of jaxlib, those used here do not.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#if XLA_FFI_API_MINOR < 4
typedef XLA_FFI_Extension_Base XLA_FFI_InternalExtension;
#endif

#define EXPORT __attribute__((visibility("default")))
#define MAX_ARGUMENTS 96 /* of a kernel, and buffers of a call */
#define MAX_ALIASES 8
#define MESSAGE_BYTES (64 * 1024)

/* ---- what the Python side shares: _handler.py declares the same structs ---- */

/* cuLaunchKernel, or what stands in for it. */
typedef int LaunchFunction(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned dynamic_shared, void *stream, void **parameters, void **extra);

/* cuMemcpyDtoDAsync. */
typedef int CopyFunction(uint64_t to, uint64_t from, size_t bytes, void *stream);

typedef struct {
  int64_t buffer; /* position among operands and results; -1: the argument is `value` */
  uint64_t value;
} Argument;

typedef struct {
  int64_t operand, result; /* positions among operands and results */
} Alias;

typedef struct {
  LaunchFunction *launch;
  CopyFunction *copy; /* NULL in host memory */
  void *function;
  uint64_t id; /* names the call to `describe` */
  uint32_t grid[3], block[3];
  uint32_t dynamic_shared;
  uint32_t in_python; /* whether `launch` is a Python function */
  uint64_t argument_count, alias_count, buffer_count;
  Argument arguments[MAX_ARGUMENTS];
  uint64_t bytes[MAX_ARGUMENTS]; /* of each operand and result, by what the kernel declares */
  Alias aliases[MAX_ALIASES]; /* results that hold an operand's values before the launch */
} Launch;

typedef struct {
  const char *spec;
  uint64_t spec_size;
  int64_t key, version;
  int64_t device; /* -1: host memory */
  uint64_t operand_count, buffer_count;
  const int64_t *buffers; /* of each its type, its rank, then its dimensions */
} Call;

/* Fills in `launch` and returns 0; or writes a message and returns anything else. */
typedef int Resolve(const Call *call, Launch *launch, char *message, uint64_t capacity);
/* Says what a launch that returned `status` has failed with. */
typedef void Describe(uint64_t id, int status, char *message, uint64_t capacity);
/* Python's PyErr_SetInterrupt: as if Ctrl-C had been pressed. */
typedef void Interrupt(void);

/* A launch in Python says how it went in an int that `extra` points to: one of these, or a status. It
 * returns nothing of use: what ctypes returns where an exception comes out, as a signal's does before
 * the function's first line, is arbitrary. */
enum {
  LAUNCHED,
  ESCAPED = -1, /* until it is written */
  FORGOTTEN = -2, /* the handler has to ask the resolver again; nothing ran */
};

static _Atomic(Resolve *) resolve;
static _Atomic(Describe *) describe;
static _Atomic(Interrupt *) interrupt;

/* Python built against other structs than these must not go on. */
EXPORT uint64_t oxijax_layout(void) { return sizeof(Launch) << 32 | sizeof(Call); }
EXPORT int oxijax_api_minor(void) { return XLA_FFI_API_MINOR; }

EXPORT void oxijax_set_callbacks(Resolve *resolver, Describe *describer) {
  atomic_store(&resolve, resolver);
  atomic_store(&describe, describer);
}

EXPORT void oxijax_set_interrupt(Interrupt *function) { atomic_store(&interrupt, function); }

/* ---- Ctrl-C, the end of the interpreter, and forks ---- */

/* The thread whose call Ctrl-C has ended, as a number; 0: none. That is Python's main thread. */
static atomic_uintptr_t interrupted;

/* Python has caught a KeyboardInterrupt in this thread, which cannot pass through XLA. */
EXPORT void oxijax_interrupt(void) { atomic_store(&interrupted, (uintptr_t)pthread_self()); }

/* When a call has failed and is not in Python any more: its caller gets the KeyboardInterrupt. */
static void interrupt_again(void) {
  uintptr_t here = (uintptr_t)pthread_self();
  Interrupt *function = atomic_load(&interrupt);
  if (function && atomic_compare_exchange_strong(&interrupted, &here, 0)) function();
}

static atomic_bool shutting_down, forked;
static atomic_long calls_in_python;

/* From now on no call enters Python. Returns how many are still there. */
EXPORT long oxijax_shut_down(void) {
  atomic_store(&shutting_down, true);
  return atomic_load(&calls_in_python);
}

/* From now on calls fail. The threads that were in Python do not exist in a child. */
EXPORT void oxijax_after_fork(void) {
  atomic_store(&forked, true);
  atomic_store(&calls_in_python, 0);
}

/* XLA's threads flush subnormal numbers to zero, in Python code too: neither the emulator's kernels
 * nor the numbers of a spec mean that. Returns how the thread has treated them until now. */
static unsigned long keep_subnormals(void) {
#if defined(__x86_64__)
  unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before & ~0x8040u); /* flush to zero, and take them for zeros */
#elif defined(__aarch64__)
  unsigned long before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before & ~(1ul << 24)));
#else
  unsigned long before = 0;
#endif
  return before;
}

static void treat_subnormals_as(unsigned long before) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr((unsigned)before);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
  (void)before;
#endif
}

/* Counts first and looks second, so that oxijax_shut_down never misses a call. `subnormals`: for
 * leave_python. */
static bool enter_python(unsigned long *subnormals) {
  atomic_fetch_add(&calls_in_python, 1);
  if (!atomic_load(&shutting_down)) {
    *subnormals = keep_subnormals();
    return true;
  }
  atomic_fetch_sub(&calls_in_python, 1);
  return false;
}

static void leave_python(unsigned long subnormals) {
  treat_subnormals_as(subnormals);
  atomic_fetch_sub(&calls_in_python, 1);
}

/* ---- errors ---- */

static XLA_FFI_Error *error(XLA_FFI_CallFrame *frame, const char *message) {
  XLA_FFI_Error_Create_Args args = {
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
      .message = message,
      .errc = XLA_FFI_Error_Code_INTERNAL,
  };
  return frame->api->XLA_FFI_Error_Create(&args);
}

static const char out_of_memory[] = "oxijax: out of memory";

/* Fails with what Python has written. Where that is nothing, a signal's exception came between. */
static XLA_FFI_Error *error_in_python(XLA_FFI_CallFrame *frame, const char *message) {
  if (!*message) oxijax_interrupt();
  XLA_FFI_Error *failure = error(frame, *message ? message : "oxijax: KeyboardInterrupt");
  interrupt_again();
  return failure;
}

static bool fails_after_fork(XLA_FFI_CallFrame *frame, XLA_FFI_Error **failure) {
  if (!atomic_load_explicit(&forked, memory_order_relaxed)) return false;
  *failure = error(frame,
                   "oxijax: this process was forked after its parent had launched kernels, and "
                   "neither JAX nor CUDA works in such a child: start it with multiprocessing's "
                   "'spawn' or 'forkserver' method");
  return true;
}

/* ---- the table of launches: lookups take no lock, entries live as long as the process.
 *
 * Entries that are forgotten are kept too, some 2 KB each: to know that no thread uses one any more
 * would cost every call. ---- */

/* What a call says, but for its buffers. */
typedef struct {
  uint64_t hash; /* of all that is here but the spec, and of types and dimensions of the buffers */
  int64_t key, version, device;
  const char *spec;
  size_t spec_size;
} Identity;

typedef struct {
  Identity identity; /* its spec lies behind the buffers */
  Launch launch;
  int64_t operand_count;
  size_t word_count;
  int64_t buffers[]; /* as in Call */
} Entry;

typedef struct Table {
  size_t capacity, used; /* capacity is a power of two, more than twice `used` */
  struct Table *outgrown; /* the one before: another thread may still be reading it */
  _Atomic(Entry *) slots[];
} Table;

static _Atomic(Table *) table;
static Table *forgotten; /* tables whose entries are found no more */
static atomic_ulong times_forgotten;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static XLA_FFI_Buffer *buffer_of(const XLA_FFI_CallFrame *frame, int64_t index) {
  int64_t operands = frame->args.size;
  return index < operands ? frame->args.args[index] : frame->rets.rets[index - operands];
}

static int64_t buffers_of(const XLA_FFI_CallFrame *frame) {
  return frame->args.size + frame->rets.size;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

/* Of a call on a device, whose hash is still to be calculated. */
static void hash_call(const XLA_FFI_CallFrame *frame, Identity *identity) {
  uint64_t hash = mix((uint64_t)identity->key, (uint64_t)identity->device);
  for (int64_t i = 0; i < buffers_of(frame); ++i) {
    const XLA_FFI_Buffer *buffer = buffer_of(frame, i);
    hash = mix(hash, (uint64_t)buffer->dtype << 32 | (uint64_t)buffer->rank);
    for (int64_t d = 0; d < buffer->rank; ++d) hash = mix(hash, (uint64_t)buffer->dims[d]);
  }
  identity->hash = hash;
}

static bool is_of(const Entry *entry, const Identity *identity, const XLA_FFI_CallFrame *frame) {
  const Identity *known = &entry->identity;
  if (known->hash != identity->hash || known->key != identity->key ||
      known->version != identity->version || known->device != identity->device ||
      known->spec_size != identity->spec_size || entry->operand_count != frame->args.size ||
      memcmp(known->spec, identity->spec, identity->spec_size))
    return false;
  size_t at = 0;
  for (int64_t i = 0; i < buffers_of(frame); ++i) {
    const XLA_FFI_Buffer *buffer = buffer_of(frame, i);
    size_t rank = (size_t)buffer->rank;
    if (at + 2 + rank > entry->word_count || entry->buffers[at] != (int64_t)buffer->dtype ||
        entry->buffers[at + 1] != buffer->rank)
      return false;
    if (rank && memcmp(&entry->buffers[at + 2], buffer->dims, rank * sizeof(int64_t))) return false;
    at += 2 + rank;
  }
  return at == entry->word_count;
}

static const Launch *lookup(const Identity *identity, const XLA_FFI_CallFrame *frame) {
  Table *now = atomic_load_explicit(&table, memory_order_acquire);
  if (!now) return NULL;
  for (size_t i = identity->hash;; ++i) {
    Entry *entry = atomic_load_explicit(&now->slots[i & (now->capacity - 1)], memory_order_acquire);
    if (!entry) return NULL;
    if (is_of(entry, identity, frame)) return &entry->launch;
  }
}

static void place(Table *into, Entry *entry) {
  size_t i = entry->identity.hash;
  while (atomic_load_explicit(&into->slots[i & (into->capacity - 1)], memory_order_relaxed)) ++i;
  atomic_store_explicit(&into->slots[i & (into->capacity - 1)], entry, memory_order_release);
  ++into->used;
}

/* The table with room for one more entry; NULL without memory. Tables are never freed: those that
 * were outgrown are together smaller than the last. */
static Table *roomy_table(void) {
  Table *now = atomic_load_explicit(&table, memory_order_relaxed);
  if (now && 2 * (now->used + 1) < now->capacity) return now;
  size_t capacity = now ? 2 * now->capacity : 256;
  Table *next = calloc(1, sizeof(Table) + capacity * sizeof(_Atomic(Entry *)));
  if (!next) return NULL;
  next->capacity = capacity;
  next->outgrown = now;
  for (size_t i = 0; now && i < now->capacity; ++i) {
    Entry *entry = atomic_load_explicit(&now->slots[i], memory_order_relaxed);
    if (entry) place(next, entry);
  }
  atomic_store_explicit(&table, next, memory_order_release);
  return next;
}

/* From now on the resolver is asked for every call anew, once. */
EXPORT void oxijax_forget(void) {
  if (atomic_load(&forked)) return; /* the lock may be held by a thread that does not exist */
  pthread_mutex_lock(&table_lock);
  Table *now = atomic_load_explicit(&table, memory_order_relaxed);
  if (now) {
    Table *first = now;
    while (first->outgrown) first = first->outgrown;
    first->outgrown = forgotten;
    forgotten = now;
    atomic_store_explicit(&table, NULL, memory_order_release);
  }
  atomic_fetch_add(&times_forgotten, 1);
  pthread_mutex_unlock(&table_lock);
}

/* Takes the entry over; the launch that is in the table afterwards, NULL without memory, and where
 * all has been forgotten since the resolver was asked: `outdated`. */
static const Launch *insert(Entry *entry, const Identity *identity, const XLA_FFI_CallFrame *frame,
                            unsigned long asked, bool *outdated) {
  pthread_mutex_lock(&table_lock);
  *outdated = asked != atomic_load(&times_forgotten);
  /* Another thread may have been faster. */
  const Launch *launch = *outdated ? NULL : lookup(identity, frame);
  Table *into = launch || *outdated ? NULL : roomy_table();
  if (into) {
    place(into, entry);
    launch = &entry->launch;
    entry = NULL;
  }
  pthread_mutex_unlock(&table_lock);
  free(entry);
  return launch;
}

/* ---- a miss: ask Python ---- */

/* Of a call in host memory that comes when the interpreter ends. */
static const Launch abandoned;
static const char too_late[] = "oxijax: the interpreter is shutting down; nothing was launched";

static const void *attribute(const XLA_FFI_CallFrame *frame, const char *name,
                             XLA_FFI_AttrType type) {
  size_t size = strlen(name);
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan *here = frame->attrs.names[i];
    if (here->len == size && !memcmp(here->ptr, name, size))
      return frame->attrs.types[i] == type ? frame->attrs.attrs[i] : NULL;
  }
  return NULL;
}

static const int64_t *integer_attribute(const XLA_FFI_CallFrame *frame, const char *name) {
  const XLA_FFI_Scalar *scalar = attribute(frame, name, XLA_FFI_AttrType_SCALAR);
  return scalar && scalar->dtype == XLA_FFI_DataType_S64 ? scalar->value : NULL;
}

static Entry *new_entry(const XLA_FFI_CallFrame *frame, const Identity *identity) {
  size_t count = 0;
  for (int64_t i = 0; i < buffers_of(frame); ++i) count += 2 + (size_t)buffer_of(frame, i)->rank;
  Entry *entry = calloc(1, sizeof(Entry) + count * sizeof(int64_t) + identity->spec_size);
  if (!entry) return NULL;
  int64_t *word = entry->buffers;
  for (int64_t i = 0; i < buffers_of(frame); ++i) {
    const XLA_FFI_Buffer *buffer = buffer_of(frame, i);
    *word++ = (int64_t)buffer->dtype;
    *word++ = buffer->rank;
    for (int64_t d = 0; d < buffer->rank; ++d) *word++ = buffer->dims[d];
  }
  entry->identity = *identity;
  entry->identity.spec = memcpy(word, identity->spec, identity->spec_size);
  entry->operand_count = frame->args.size;
  entry->word_count = count;
  return entry;
}

static size_t bytes_of(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
      return 1;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
      return 2;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_F32:
      return 4;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64:
      return 8;
    default:
      return 0;
  }
}

static size_t size_of(const XLA_FFI_Buffer *buffer) {
  size_t bytes = bytes_of(buffer->dtype);
  for (int64_t d = 0; d < buffer->rank; ++d) bytes *= (size_t)buffer->dims[d];
  return bytes;
}

/* Whether a launch fits a call, in particular the sizes of the memory that it will read and write.
 * They follow from the kernel's declaration on one side and from XLA's types on the other. */
static bool is_sound(const Launch *launch, const XLA_FFI_CallFrame *frame) {
  int64_t operands = frame->args.size, buffers = buffers_of(frame);
  if (launch->argument_count > MAX_ARGUMENTS) return false;
  if (launch->buffer_count > MAX_ARGUMENTS || launch->buffer_count != (uint64_t)buffers) return false;
  for (int64_t i = 0; i < buffers; ++i)
    if (launch->bytes[i] != size_of(buffer_of(frame, i))) return false;
  for (uint64_t i = 0; i < launch->argument_count; ++i)
    if (launch->arguments[i].buffer < -1 || launch->arguments[i].buffer >= buffers) return false;
  if (launch->alias_count > MAX_ALIASES) return false;
  for (uint64_t i = 0; i < launch->alias_count; ++i) {
    const Alias *alias = &launch->aliases[i];
    if (alias->operand < 0 || alias->operand >= operands) return false;
    if (alias->result < operands || alias->result >= buffers) return false;
    if (size_of(buffer_of(frame, alias->operand)) != size_of(buffer_of(frame, alias->result)))
      return false;
  }
  return launch->launch != NULL;
}

/* NULL, and `failure`, where there is none; or `outdated`, as in `insert`. */
static const Launch *resolve_call(XLA_FFI_CallFrame *frame, const Identity *identity,
                                  bool *outdated, XLA_FFI_Error **failure) {
  unsigned long asked = atomic_load(&times_forgotten);
  Resolve *resolver = atomic_load(&resolve);
  Entry *entry = new_entry(frame, identity);
  char *message = calloc(1, MESSAGE_BYTES);
  const Launch *launch = NULL;
  unsigned long subnormals;
  if (!resolver) {
    *failure = error(frame, "oxijax: the handler has no resolver");
  } else if (!entry || !message) {
    *failure = error(frame, out_of_memory);
  } else if (!enter_python(&subnormals)) {
    if (identity->device < 0) launch = &abandoned;
    else *failure = error(frame, too_late);
  } else {
    Call call = {
        .spec = identity->spec,
        .spec_size = identity->spec_size,
        .key = identity->key,
        .version = identity->version,
        .device = identity->device,
        .operand_count = (uint64_t)frame->args.size,
        .buffer_count = (uint64_t)buffers_of(frame),
        .buffers = entry->buffers,
    };
    int status = resolver(&call, &entry->launch, message, MESSAGE_BYTES);
    leave_python(subnormals);
    if (status) {
      *failure = error_in_python(frame, message);
    } else if (!is_sound(&entry->launch, frame)) {
      *failure = error(frame, "oxijax: the resolver returned a launch that does not fit the call");
    } else {
      launch = insert(entry, identity, frame, asked, outdated);
      entry = NULL;
      if (!launch && !*outdated) *failure = error(frame, out_of_memory);
    }
  }
  free(message);
  free(entry);
  return launch;
}

/* NULL, and `failure`, where there is none. */
static const Launch *find(XLA_FFI_CallFrame *frame, int64_t device, XLA_FFI_Error **failure) {
  const int64_t *key = integer_attribute(frame, "key");
  const int64_t *version = integer_attribute(frame, "version");
  const XLA_FFI_ByteSpan *spec = attribute(frame, "spec", XLA_FFI_AttrType_STRING);
  if (!key || !version || !spec || !spec->len) {
    *failure = error(frame, "oxijax: the call needs the attributes spec, key and version");
    return NULL;
  }
  Identity identity = {
      .key = *key,
      .version = *version,
      .device = device,
      .spec = spec->ptr,
      .spec_size = spec->len,
  };
  hash_call(frame, &identity);
  const Launch *launch;
  bool outdated;
  do {
    outdated = false;
    launch = lookup(&identity, frame);
    if (!launch) launch = resolve_call(frame, &identity, &outdated, failure);
  } while (outdated);
  return launch;
}

/* ---- the call ---- */

/* At the end of the interpreter a call in host memory succeeds, with NaN for results: an error
 * would leave other devices waiting for this one in a collective, and the process with them. */
static XLA_FFI_Error *abandon(XLA_FFI_CallFrame *frame) {
  for (int64_t i = 0; i < frame->rets.size; ++i) {
    const XLA_FFI_Buffer *result = frame->rets.rets[i];
    size_t bytes = size_of(result);
    if (bytes) memset(result->data, 0xFF, bytes);
  }
  return NULL;
}

static XLA_FFI_Error *report_failure(XLA_FFI_CallFrame *frame, const Launch *launch, int status) {
  Describe *describer = atomic_load(&describe);
  char *message = calloc(1, MESSAGE_BYTES);
  XLA_FFI_Error *failure;
  unsigned long subnormals;
  if (!describer || !message) {
    failure = error(frame, "oxijax: a launch failed, and there is no memory to say why");
  } else if (!enter_python(&subnormals)) {
    failure = launch->in_python ? abandon(frame) : error(frame, too_late);
  } else {
    describer(launch->id, status, message, MESSAGE_BYTES);
    leave_python(subnormals);
    failure = error_in_python(frame, message);
  }
  free(message);
  return failure;
}

/* XLA lets a result have its operand's memory, but not where it has split the call over devices. */
static int copy_operands(XLA_FFI_CallFrame *frame, const Launch *launch, void *stream) {
  int status = 0;
  for (uint64_t i = 0; i < launch->alias_count && !status; ++i) {
    const XLA_FFI_Buffer *from = buffer_of(frame, launch->aliases[i].operand);
    const XLA_FFI_Buffer *to = buffer_of(frame, launch->aliases[i].result);
    size_t bytes = size_of(to);
    if (from->data == to->data || !bytes) continue;
    if (launch->copy) status = launch->copy((uint64_t)to->data, (uint64_t)from->data, bytes, stream);
    else memcpy(to->data, from->data, bytes);
  }
  return status;
}

/* Whether no result shares memory with another buffer, but for an operand whose values it holds. */
static bool results_are_apart(const XLA_FFI_CallFrame *frame, const Launch *launch) {
  for (int64_t r = frame->args.size; r < buffers_of(frame); ++r) {
    uintptr_t result = (uintptr_t)buffer_of(frame, r)->data, end = result + launch->bytes[r];
    for (int64_t b = 0; b < r; ++b) {
      uintptr_t other = (uintptr_t)buffer_of(frame, b)->data;
      bool overlaps = result < other + launch->bytes[b] && other < end;
      if (!overlaps || !launch->bytes[r] || !launch->bytes[b]) continue;
      bool declared = false;
      for (uint64_t i = 0; i < launch->alias_count; ++i)
        declared |= launch->aliases[i].operand == b && launch->aliases[i].result == r;
      if (!declared || result != other) return false;
    }
  }
  return true;
}

/* `again`: the launch is forgotten, and has to be found anew. */
static XLA_FFI_Error *launch_on(XLA_FFI_CallFrame *frame, const Launch *launch, void *stream,
                                bool *again) {
  if (launch == &abandoned) return abandon(frame);
  if (!results_are_apart(frame, launch))
    return error(frame, "oxijax: a call in which results share memory that its kernel keeps apart");
  int status = copy_operands(frame, launch, stream);
  if (status) return report_failure(frame, launch, status);
  if (!launch->grid[0] || !launch->grid[1] || !launch->grid[2]) return NULL;
  void *parameters[MAX_ARGUMENTS];
  for (uint64_t i = 0; i < launch->argument_count; ++i) {
    const Argument *argument = &launch->arguments[i];
    parameters[i] = argument->buffer < 0 ? (void *)&argument->value
                                         : (void *)&buffer_of(frame, argument->buffer)->data;
  }
  unsigned long subnormals = 0;
  if (launch->in_python && !enter_python(&subnormals)) return abandon(frame);
  int outcome = ESCAPED;
  status = launch->launch(launch->function, launch->grid[0], launch->grid[1], launch->grid[2],
                          launch->block[0], launch->block[1], launch->block[2],
                          launch->dynamic_shared, stream, parameters,
                          launch->in_python ? (void **)&outcome : NULL);
  if (launch->in_python) {
    leave_python(subnormals);
    *again = outcome == FORGOTTEN;
    if (outcome == ESCAPED) oxijax_interrupt();
    status = *again ? 0 : outcome;
  }
  return status ? report_failure(frame, launch, status) : NULL;
}

static XLA_FFI_Error *find_and_launch(XLA_FFI_CallFrame *frame, int64_t device, void *stream) {
  XLA_FFI_Error *failure = NULL;
  bool again;
  unsigned long known;
  do {
    again = false;
    known = atomic_load(&times_forgotten);
    const Launch *launch = find(frame, device, &failure);
    if (launch) failure = launch_on(frame, launch, stream, &again);
  } while (again && known != atomic_load(&times_forgotten));
  /* Found again it would be the same launch. */
  return again ? error(frame, "oxijax: the kernel of a launch is not loaded") : failure;
}

/* XLA asks once, when the handler is registered, which version it speaks. Extensions of other
 * kinds come with ordinary calls. */
static bool answer_metadata(XLA_FFI_CallFrame *frame) {
  XLA_FFI_InternalExtension *extension = frame->extension_start;
  while (extension && extension->type != XLA_FFI_Extension_Metadata) extension = extension->next;
  if (!extension) return false;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  /* The host's own: what is used here is the same in all of them. */
  metadata->api_version.minor_version =
      frame->api ? frame->api->api_version.minor_version : XLA_FFI_API_MINOR;
  metadata->traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  return true;
}

static XLA_FFI_Error *device_of(XLA_FFI_CallFrame *frame, int64_t *device) {
  XLA_FFI_DeviceOrdinal_Get_Args args = {
      .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE,
      .ctx = frame->ctx,
  };
  XLA_FFI_Error *failure = frame->api->XLA_FFI_DeviceOrdinal_Get(&args);
  *device = args.device_ordinal;
  return failure;
}

/* On a GPU: `initialize` runs before anything is captured into a CUDA graph, so that `execute`
 * finds the kernel loaded. */
EXPORT XLA_FFI_Error *oxijax_cuda_initialize(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Error *failure = NULL;
  if (answer_metadata(frame) || fails_after_fork(frame, &failure)) return failure;
  int64_t device = 0;
  failure = device_of(frame, &device);
  if (!failure) find(frame, device, &failure);
  return failure;
}

EXPORT XLA_FFI_Error *oxijax_cuda_execute(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Error *failure = NULL;
  if (answer_metadata(frame) || fails_after_fork(frame, &failure)) return failure;
  int64_t device = 0;
  failure = device_of(frame, &device);
  if (failure) return failure;
  XLA_FFI_Stream_Get_Args stream = {
      .struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
      .ctx = frame->ctx,
  };
  failure = frame->api->XLA_FFI_Stream_Get(&stream);
  return failure ? failure : find_and_launch(frame, device, stream.stream);
}

/* In host memory: there is no stream, and all devices are one. */
EXPORT XLA_FFI_Error *oxijax_host_execute(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Error *failure = NULL;
  if (answer_metadata(frame) || fails_after_fork(frame, &failure)) return failure;
  return find_and_launch(frame, -1, NULL);
}

/* ---- for benchmarks: what XLA charges for any handler, and a kernel that does nothing ---- */

EXPORT XLA_FFI_Error *oxijax_empty_execute(XLA_FFI_CallFrame *frame) {
  answer_metadata(frame);
  return NULL;
}

EXPORT int oxijax_launch_nothing(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned dynamic_shared, void *stream, void **parameters,
                                 void **extra) {
  (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
  (void)block_z, (void)dynamic_shared, (void)stream, (void)parameters, (void)extra;
  return 0;
}
