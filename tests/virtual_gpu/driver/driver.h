/* What the files of the virtual driver share.
 *
 * The driver is libcuda.so.1 without a GPU: device memory is host memory, a stream is a thread that
 * does operations in order, and kernels go to callbacks (callbacks.h), behind which is the emulator.
 *
 * One lock guards all state. An entry point takes it by ENTER, which names the call to whatever
 * fails in it and gives the lock back at the end of the function. Operations and callbacks run
 * without the lock: a callback may wait for Python, and Python for the lock.
 *
 * A handle is the address of an Object. Objects are never freed, so that a handle that is used after
 * its end is known for what it is, and no later handle has the same address.
 */
#ifndef VIRTUAL_GPU_DRIVER_H
#define VIRTUAL_GPU_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define API EXPORT CUresult CUDAAPI
#define UNUSED __attribute__((unused))
#define MAX_DEVICES 8

/* ---- state.c ---- */

void lock(void);
void unlock(void);
/* Waits, without the lock meanwhile, until some thread calls `tell_change`. */
void wait_for_change(void);
void tell_change(void);

typedef struct {
  int devices;
  size_t memory; /* bytes of each device */
  unsigned seed; /* of pauses and of the order of graphs' nodes; 0: there are none */
  int cuda;      /* version of the driver, for example 13000 */
} Settings;

/* What the environment said when it was first asked: later on other threads may change it. */
const Settings *settings(void);

/* ---- errors.c ---- */

#define TRY(call)                      \
  do {                                 \
    CUresult status_ = (call);         \
    if (status_) return status_;       \
  } while (0)

/* Takes the lock for the rest of the function, and names the call. */
#define ENTER                                                                   \
  __attribute__((cleanup(leave_call))) UNUSED int locked_ = enter_call(__func__)
int enter_call(const char *name);
void leave_call(int *locked);

/* Says why the current call fails, to the log and to cuGetErrorString. Returns `code`. */
__attribute__((format(printf, 2, 3))) CUresult fail(CUresult code, const char *format, ...);
/* Writes a line to the log, where there is one. */
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
/* The name of the entry point that this thread is in. */
const char *current_call(void);
/* Names what this thread does, where it is in no entry point or has been in another one. */
void name_call(const char *name);
/* What `fail` has said last in this thread. */
const char *last_failure(void);

/* ---- objects.c ---- */

typedef enum {
  CONTEXT, STREAM, EVENT, LIBRARY, KERNEL, POOL, PHYSICAL, GRAPH, NODE, EXECUTABLE, CAPTURE,
} ObjectKind;

typedef struct Object {
  ObjectKind kind;
  bool alive;
  int device; /* -1: of all devices */
  struct Object *next;
} Object;

/* A new object of `size` bytes, all zero but for the header. */
void *object_new(ObjectKind kind, size_t size, int device);
/* Ends a handle: whoever uses it from now on is told so. */
void object_end(void *object);
/* Fails where a handle is none of this kind, or has ended. */
CUresult object_check(const void *handle, ObjectKind kind);

/* ---- models.c: the GPUs that can be modelled ---- */

typedef struct {
  const char *key; /* for VIRTUAL_GPU_MODEL */
  const char *name; /* what cuDeviceGetName says */
  int major, minor;
  int multiprocessors;
  int clock_khz, memory_clock_khz, bus_width, l2_bytes;
  int shared_per_multiprocessor, shared_per_block; /* the latter with the attribute raised */
  int threads_per_multiprocessor, blocks_per_multiprocessor;
} Model;

const Model *model(void);
/* A device attribute of the model; 0 for what it does not have. */
int model_attribute(CUdevice_attribute attribute, int device);

/* ---- devices.c ---- */

typedef struct CUstream_st Stream;

typedef struct CUctx_st {
  Object object;
  int device;
  long references; /* of the primary context; 0: it is not active */
  unsigned peers; /* bits of the devices whose memory its kernels may use */
  Stream *legacy; /* the NULL stream */
  CUresult sticky; /* what it has failed with for good */
  char reason[1024];
} Context;

int device_count(void);
CUresult device_check(CUdevice device);
Context *context_of(int device);
/* The context that this thread works in; fails where there is none, or where it has failed. */
CUresult current_context(Context **context);
/* Makes the calling thread work in a context. */
void enter_context(Context *context);
/* Makes an error stick to a context; the first one stays. */
void context_fail(Context *context, CUresult code, const char *reason);
/* The error that sticks to a context. */
CUresult context_status(Context *context);

/* ---- memory.c ---- */

typedef enum { DEVICE_MEMORY, PINNED_MEMORY, REGISTERED_MEMORY, RESERVED_ADDRESSES } MemoryKind;

typedef struct Memory {
  char *address;
  size_t size;
  MemoryKind kind;
  int device; /* -1: the host's */
  unsigned access; /* bits of further devices that may use it */
  bool freeing; /* its cuMemFreeAsync has been called, and will be done in its stream's order */
  bool pooled, mapped;
  struct { char *address; size_t size; } range; /* of the addresses that it takes */
} Memory;

/* Takes addresses, aligned; NULL where there are none. What is there is `fill`ed with garbage. */
CUresult memory_new(Memory **memory, size_t size, MemoryKind kind, int device);
/* Makes addresses that something else owns known. */
CUresult memory_adopt(Memory **memory, void *address, size_t size, MemoryKind kind, int device);
void memory_end(Memory *memory);
/* The memory that an address lies in; NULL where there is none. */
Memory *memory_at(const void *address);
/* Fails where a device may not use all of these bytes, or, for -1, no device may. What cuMemFreeAsync
 * has freed may be used by operations that are `running`: they come before, in a stream's order.
 * `what` names the bytes. */
CUresult memory_check(const void *address, size_t bytes, int device, bool running,
                      const char *what);
/* Says where an address lies, into `text`, for an error. */
void memory_describe(const void *address, char *text, size_t capacity);
/* Whether an address is one that this driver hands out, used now or not. */
bool memory_is_ours(const void *address);
CUresult memory_charge(int device, size_t bytes);
void memory_credit(int device, size_t bytes);

/* ---- modules.c ---- */

/* A kernel of a module's text. */
typedef struct Entry {
  struct Entry *next;
  struct Library *library;
  char *name;
  unsigned parameter_count;
  size_t *sizes, *offsets, parameter_bytes;
  unsigned static_shared;
  unsigned max_threads; /* that .maxntid or .reqntid allow */
  int registers;        /* of a thread; 0 where nobody knows */
  int dynamic_shared[MAX_DEVICES]; /* what a launch may ask for, where it was set; else 0 */
  int carve_out[MAX_DEVICES]; /* percent of an SM's shared memory; -1: no preference */
  struct CUfunc_st *kernel, *functions[MAX_DEVICES]; /* its handles, once asked for */
} Entry;

/* A CUkernel, which is of all devices, or a CUfunction, which is of one. */
typedef struct CUfunc_st {
  Object object;
  Entry *entry;
} Kernel;

/* Bytes of dynamic shared memory that a launch on a device may ask for. */
int dynamic_shared_limit(const Entry *entry, int device);
/* Whether a device has a kernel already. */
bool kernel_is_loaded(const Kernel *kernel, int device);
/* Loads a CUkernel into a device, as lazy loading does. */
void kernel_load(Kernel *kernel, int device);

/* ---- operations.c ---- */

typedef struct CUgraph_st Graph;

typedef enum {
  DO_NOTHING, DO_LAUNCH, DO_COPY, DO_SET, DO_HOST, DO_FREE, DO_WAIT, DO_RECORD, DO_GRAPH,
} OperationKind;

/* Whose memory one end of a copy has to be. */
typedef enum { ANYONES, OF_A_DEVICE, OF_THE_HOST } Owner;

typedef struct {
  char *address;
  Owner owner;
  size_t pitch; /* bytes from one row to the next */
} Place;

typedef struct {
  OperationKind kind;
  const char *call; /* the entry point that asked for it */

  Entry *entry; /* DO_LAUNCH */
  int device;   /* that the launch was made for */
  unsigned grid[3], block[3], shared;
  char *parameters; /* owned */

  Place to, from;     /* DO_COPY, and of DO_SET `to` */
  size_t width, rows; /* bytes of a row; rows */
  char *staged;       /* owned: the bytes of `from`, of pageable memory, until they are copied */
  unsigned value, value_size; /* DO_SET */

  CUhostFn function; /* DO_HOST */
  void *data;

  Memory *memory; /* DO_FREE */

  Stream *other; /* DO_WAIT: until it has done so many operations */
  uint64_t until;

  struct CUevent_st *event; /* DO_RECORD */

  Graph *graph; /* DO_GRAPH: a child, owned */
} Operation;

Operation operation_copy(const Operation *operation);
void operation_free(Operation *operation);
/* Fails for memory that the device cannot use; `running` as for `memory_check`. */
CUresult operation_check(const Operation *operation, int device, bool running);
/* Does it, in a stream's thread and without the lock. */
CUresult operation_run(const Operation *operation, int device);

/* ---- streams.c ---- */

typedef struct Capture Capture;

typedef struct Item {
  struct Item *next;
  Operation operation;
} Item;

typedef struct CUstream_st {
  Object object;
  struct CUstream_st *next;
  Context *context;
  unsigned flags;
  int priority;
  uint64_t submitted, completed; /* operations */
  Item *first, **last;
  bool started;
  unsigned seed;
  Capture *capture; /* what keeps its operations, instead of their being done */
  struct CUgraphNode_st **frontier; /* owned: the nodes that its next one in the capture follows */
  size_t frontier_count;
} Stream;

typedef struct CUevent_st {
  Object object;
  unsigned flags;
  Stream *stream; /* of the last record; NULL: never recorded */
  uint64_t until;
  double milliseconds; /* when the last record was reached */
  Capture *capture; /* where the last record was captured, and what came before it */
  struct CUgraphNode_st **frontier;
  size_t frontier_count;
} Event;

Stream *stream_new(Context *context, unsigned flags, int priority);
/* The stream of a handle, for an operation in the current context. */
CUresult stream_of(CUstream handle, Stream **stream);
/* The stream of a handle, of whatever context. */
CUresult stream_anywhere(CUstream handle, Stream **stream);
/* Has a stream do an operation, or its capture keep it. Takes over what the operation owns. */
CUresult stream_submit(Stream *stream, Operation operation);
/* Waits until a stream has done so many operations; fails if its context has failed. */
CUresult stream_wait(Stream *stream, uint64_t until);
/* Waits for all streams of a device. */
CUresult device_wait(Context *context);
/* All streams, the last one first. */
Stream *first_stream(void);
/* A number below `bound`; 0 where VIRTUAL_GPU_ASYNC gives no seed. */
unsigned random_below(unsigned *seed, unsigned bound);

/* ---- graphs.c ---- */

typedef struct CUgraphNode_st {
  Object object;
  Graph *graph;
  size_t index; /* in its graph */
  Operation operation;
  struct CUgraphNode_st **before; /* the nodes that it follows */
  size_t before_count;
  const struct CUgraphNode_st *origin; /* what it is a copy of */
} Node;

struct CUgraph_st {
  Object object;
  Node **nodes;
  size_t count;
};

Graph *graph_new(void);
/* A new node. Takes over what the operation owns. */
Node *graph_add(Graph *graph, Operation operation, Node *const *before, size_t count);
Graph *graph_copy(const Graph *graph);
/* Checks the nodes that something new is to follow. */
CUresult graph_check_nodes(const Graph *graph, Node *const *nodes, size_t count);
void graph_end(Graph *graph);

/* ---- captures.c ---- */

struct Capture { /* no handle, but an object, since events point to it as long as they live */
  Object object;
  Graph *graph;
  Stream *origin;
  pthread_t thread;
  CUstreamCaptureMode mode;
  uint64_t id;
  bool invalid;
  char reason[512];
};

/* Keeps an operation in the graph of a stream's capture; owns it only where it succeeds. */
CUresult capture_keep(Stream *stream, Operation operation);
/* Fails where a capture forbids a call that is no operation of a stream. */
CUresult capture_forbids(void);
/* Fails and spoils the capture of a stream, if it has one. */
CUresult capture_spoil(Stream *stream, CUresult code, const char *reason);
/* Keeps in an event what the stream's capture has come to. */
CUresult capture_record(Stream *stream, Event *event);
/* Has a stream's next node follow an event that was captured. */
CUresult capture_wait(Stream *stream, Event *event);

#endif
