/* A host for handler.c: what the handler uses of XLA, and nothing else of it, so that the handler
 * can be tested without Python and under sanitizers.
 *
 * The handler is compiled in as part of the test: a case may set up what no sequence of calls
 * brings about for certain, such as a held lock or two calls with the same hash. A program is a
 * table of cases; it runs one of them, because the handler's state lives as long as the process.
 * Link with --wrap=malloc,calloc,realloc,free: the handler's memory is counted here.
 */
#define _GNU_SOURCE
#include "handler.c"

#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition);     \
      _exit(1);                                                                         \
    }                                                                                   \
  } while (0)

typedef struct {
  const char *name;
  void (*run)(void);
} Case;

/* ---- memory: what the handler holds, and allocations that fail ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void __real_free(void *pointer);

/* Relaxed throughout this file: a counter that ordered the threads would hide the handler's races
 * from ThreadSanitizer. */
static atomic_long blocks_held;
static _Thread_local long allocations_left = -1; /* -1: all succeed; 0: the next one fails */

static inline void *counted(void *pointer) {
  if (pointer) atomic_fetch_add_explicit(&blocks_held, 1, memory_order_relaxed);
  return pointer;
}

static inline bool allocation_fails(void) {
  return allocations_left >= 0 && allocations_left-- == 0;
}

void *__wrap_malloc(size_t size) {
  return allocation_fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
  return allocation_fails() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *pointer, size_t size) {
  if (allocation_fails()) return NULL;
  void *moved = __real_realloc(pointer, size);
  return pointer ? moved : counted(moved);
}

void __wrap_free(void *pointer) {
  if (pointer) atomic_fetch_sub_explicit(&blocks_held, 1, memory_order_relaxed);
  __real_free(pointer);
}

static inline long blocks(void) {
  return atomic_load_explicit(&blocks_held, memory_order_relaxed);
}

/* ---- the members of XLA_FFI_Api that the handler may call ---- */

struct XLA_FFI_Error {
  char *message;
};

static atomic_long errors_alive;

static XLA_FFI_Error *new_error(const char *message) {
  XLA_FFI_Error *created = __real_malloc(sizeof(XLA_FFI_Error));
  size_t size = strlen(message) + 1;
  created->message = memcpy(__real_malloc(size), message, size);
  atomic_fetch_add_explicit(&errors_alive, 1, memory_order_relaxed);
  return created;
}

static XLA_FFI_Error *create_error(XLA_FFI_Error_Create_Args *args) {
  CHECK(args->struct_size == XLA_FFI_Error_Create_Args_STRUCT_SIZE && !args->extension_start);
  CHECK(args->errc == XLA_FFI_Error_Code_INTERNAL);
  return new_error(args->message);
}

static void destroy_error(XLA_FFI_Error_Destroy_Args *args) {
  CHECK(args->struct_size == XLA_FFI_Error_Destroy_Args_STRUCT_SIZE && !args->extension_start);
  __real_free(args->error->message);
  __real_free(args->error);
  atomic_fetch_sub_explicit(&errors_alive, 1, memory_order_relaxed);
}

typedef struct {
  int32_t device;
  void *stream;
  const char *device_error, *stream_error; /* what asking for it fails with */
} Context;

static XLA_FFI_Error *get_device(XLA_FFI_DeviceOrdinal_Get_Args *args) {
  CHECK(args->struct_size == XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE && !args->extension_start);
  Context *context = (Context *)args->ctx;
  if (context->device_error) return new_error(context->device_error);
  args->device_ordinal = context->device;
  return NULL;
}

static XLA_FFI_Error *get_stream(XLA_FFI_Stream_Get_Args *args) {
  CHECK(args->struct_size == XLA_FFI_Stream_Get_Args_STRUCT_SIZE && !args->extension_start);
  Context *context = (Context *)args->ctx;
  if (context->stream_error) return new_error(context->stream_error);
  args->stream = context->stream;
  return NULL;
}

#define API_VERSION(minor) {sizeof(XLA_FFI_Api_Version), NULL, XLA_FFI_API_MAJOR, minor}

static const XLA_FFI_Api gpu_api = {
    .struct_size = XLA_FFI_Api_STRUCT_SIZE,
    .api_version = API_VERSION(XLA_FFI_API_MINOR),
    .XLA_FFI_Error_Create = create_error,
    .XLA_FFI_Error_Destroy = destroy_error,
    .XLA_FFI_Stream_Get = get_stream,
    .XLA_FFI_DeviceOrdinal_Get = get_device,
};

/* On the CPU there is no stream, and no device number either. */
static const XLA_FFI_Api cpu_api = {
    .struct_size = XLA_FFI_Api_STRUCT_SIZE,
    .api_version = API_VERSION(XLA_FFI_API_MINOR),
    .XLA_FFI_Error_Create = create_error,
    .XLA_FFI_Error_Destroy = destroy_error,
};

/* ---- a call of the handler, as XLA makes it ---- */

#define MAX_BUFFERS 6
#define MAX_RANK 4
#define MAX_ELEMENTS 16 /* of a result; operands are never read */
#define SHAPES(...) ((const int64_t[]){__VA_ARGS__}) /* of each buffer its rank and dimensions */

enum { KEY, LABEL, SPEC, VERSION, ATTRIBUTES }; /* sorted by name, as XLA gives them */

typedef struct {
  XLA_FFI_CallFrame frame;
  Context context;
  XLA_FFI_Buffer buffers[MAX_BUFFERS];
  int64_t dims[MAX_BUFFERS][MAX_RANK];
  uint64_t memory[MAX_BUFFERS][MAX_ELEMENTS]; /* what the buffers point to */
  void *operands[MAX_BUFFERS], *results[MAX_BUFFERS];
  int64_t key, version;
  char spec_text[64]; /* not terminated: its end is the span's */
  XLA_FFI_Scalar key_scalar, version_scalar;
  XLA_FFI_ByteSpan label, spec, names[ATTRIBUTES], *name_pointers[ATTRIBUTES];
  XLA_FFI_AttrType types[ATTRIBUTES];
  void *attributes[ATTRIBUTES];
} Request;

static inline XLA_FFI_ByteSpan span(const char *text) {
  return (XLA_FFI_ByteSpan){text, strlen(text)};
}

static uint64_t large_operands[MAX_BUFFERS][1 << 13]; /* only their addresses are of use */

/* Points into itself: a Request must not be moved. */
static void make_request(Request *request, int64_t key, int32_t device, int operands, int results,
                         const int64_t *shapes) {
  memset(request, 0, sizeof *request);
  request->context = (Context){.device = device, .stream = &request->context};
  for (int i = 0; i < operands + results; ++i) {
    XLA_FFI_Buffer *buffer = &request->buffers[i];
    *buffer = (XLA_FFI_Buffer){
        .struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
        .dtype = XLA_FFI_DataType_F64,
        .data = request->memory[i],
        .rank = *shapes++,
        .dims = request->dims[i],
    };
    CHECK(buffer->rank <= MAX_RANK);
    uint64_t elements = 1;
    for (int64_t d = 0; d < buffer->rank; ++d)
      elements *= (uint64_t)(request->dims[i][d] = *shapes++);
    if (i < operands && results && elements > MAX_ELEMENTS) buffer->data = large_operands[i];
    if (!buffer->rank) buffer->dims = NULL;
    *(i < operands ? &request->operands[i] : &request->results[i - operands]) = buffer;
  }
  request->key = key;
  request->version = 3;
  memset(request->spec_text, '#', sizeof request->spec_text);
  int size = snprintf(request->spec_text, sizeof request->spec_text, "spec %lld", (long long)key);
  request->spec_text[size] = '#';
  request->spec = (XLA_FFI_ByteSpan){request->spec_text, (size_t)size};
  request->label = span("another attribute");
  request->key_scalar = (XLA_FFI_Scalar){XLA_FFI_DataType_S64, &request->key};
  request->version_scalar = (XLA_FFI_Scalar){XLA_FFI_DataType_S64, &request->version};
  const char *const names[] = {"key", "label", "spec", "version"};
  void *const attributes[] = {&request->key_scalar, &request->label, &request->spec,
                              &request->version_scalar};
  for (int i = 0; i < ATTRIBUTES; ++i) {
    request->names[i] = span(names[i]);
    request->name_pointers[i] = &request->names[i];
    request->attributes[i] = attributes[i];
    request->types[i] =
        i == KEY || i == VERSION ? XLA_FFI_AttrType_SCALAR : XLA_FFI_AttrType_STRING;
  }
  request->frame = (XLA_FFI_CallFrame){
      .struct_size = XLA_FFI_CallFrame_STRUCT_SIZE,
      .stage = XLA_FFI_ExecutionStage_EXECUTE,
      .ctx = (void *)&request->context,
      .args = {XLA_FFI_Args_STRUCT_SIZE, NULL, operands, NULL, request->operands},
      .rets = {XLA_FFI_Rets_STRUCT_SIZE, NULL, results, NULL, request->results},
      .attrs = {XLA_FFI_Attrs_STRUCT_SIZE, NULL, ATTRIBUTES, request->types,
                request->name_pointers, request->attributes},
  };
}

/* NULL, or the message of the error, which is valid until the thread's next call. */
static const char *call(XLA_FFI_Handler *handler, Request *request) {
  static _Thread_local char message[2 * MESSAGE_BYTES];
  request->frame.api = handler == oxijax_host_execute ? &cpu_api : &gpu_api;
  XLA_FFI_Error *failure = handler(&request->frame);
  if (!failure) return NULL;
  CHECK(strlen(failure->message) < sizeof message);
  strcpy(message, failure->message);
  XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, NULL, failure};
  destroy_error(&args);
  return message;
}

/* What a kernel declares whose buffers are of float32 where the call's are, and else of float64. */
static inline void declare_bytes(const Call *call, Launch *launch) {
  const int64_t *word = call->buffers;
  launch->buffer_count = call->buffer_count;
  for (uint64_t i = 0; i < call->buffer_count; ++i) {
    int64_t rank = word[1];
    launch->bytes[i] = word[0] == XLA_FFI_DataType_F32 ? sizeof(float) : sizeof(double);
    for (int64_t d = 0; d < rank; ++d) launch->bytes[i] *= (uint64_t)word[2 + d];
    word += 2 + rank;
  }
}

static inline bool says(const char *message, const char *part) {
  return message && strstr(message, part);
}

/* ---- cases that must fail: they show that the checks and the sanitizers are awake ---- */

static int canary_number;

static inline void *canary_thread(void *unused) {
  ++canary_number;
  return unused;
}

static inline void canary_race(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) CHECK(!pthread_create(&threads[i], NULL, canary_thread, NULL));
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
}

static inline void canary_leak(void) {
  char *volatile block = __real_malloc(11);
  block[0] = 1;
  block = NULL;
}

static inline void canary_overflow(void) {
  char *volatile block = __real_malloc(11);
  volatile int index = 11;
  block[index] = 1;
  __real_free(block);
}

static inline void canary_undefined(void) {
  volatile int most = INT32_MAX;
  most = most + 1;
}

static inline void canary_check(void) { CHECK(canary_number == 1); }

static const Case canaries[] = {
    {"canary_race", canary_race},           {"canary_leak", canary_leak},
    {"canary_overflow", canary_overflow},   {"canary_undefined", canary_undefined},
    {"canary_check", canary_check},
};

/* ---- main: without an argument it lists the cases, with one it runs that case ---- */

static int run_case(int argc, char **argv, const Case *cases, size_t count) {
  alarm(30); /* a case that hangs fails */
  for (size_t i = 0; argc == 1 && i < count; ++i) puts(cases[i].name);
  if (argc == 1) return 0;
  size_t canary_count = sizeof canaries / sizeof *canaries;
  for (size_t i = 0; i < count + canary_count; ++i) {
    const Case *here = i < count ? &cases[i] : &canaries[i - count];
    if (strcmp(here->name, argv[1])) continue;
    here->run();
    CHECK(atomic_load(&errors_alive) == 0); /* every error is the host's to destroy, once */
    CHECK(atomic_load(&calls_in_python) == 0);
    return 0;
  }
  fprintf(stderr, "no case is called %s\n", argv[1]);
  return 2;
}
