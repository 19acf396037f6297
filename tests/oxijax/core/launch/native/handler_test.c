/* The handler, one call after another: what it asks, what it launches, what it reports. */
#include "host.h"

/* ---- a resolver, a describer and a kernel that record what they are given ---- */

static struct {
  int count;
  char spec[64];
  int64_t key, version, device, buffers[64];
  uint64_t operand_count, buffer_count;
} asked;

static struct {
  int status; /* what the kernel returns */
  int count;
  void *function, *stream, **extra;
  unsigned grid[3], block[3], dynamic_shared;
  uint64_t parameters[MAX_ARGUMENTS];
} launched;

static struct {
  int count, status;
  uint64_t id;
} described;

static Launch answer;         /* what the resolver fills in */
static const char *complaint; /* what it says instead, where it fails */

static int kernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared,
                  void *stream, void **parameters, void **extra) {
  ++launched.count;
  CHECK(atomic_load(&calls_in_python) == answer.in_python);
  launched.function = function, launched.stream = stream, launched.extra = extra;
  memcpy(launched.grid, (unsigned[]){grid_x, grid_y, grid_z}, sizeof launched.grid);
  memcpy(launched.block, (unsigned[]){block_x, block_y, block_z}, sizeof launched.block);
  launched.dynamic_shared = dynamic_shared;
  for (uint64_t i = 0; i < answer.argument_count; ++i)
    memcpy(&launched.parameters[i], parameters[i], sizeof(uint64_t));
  if (answer.in_python) *(int *)extra = launched.status ? launched.status : LAUNCHED;
  return launched.status;
}

static int record_call(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  ++asked.count;
  CHECK(atomic_load(&calls_in_python) == 1);
  CHECK(call->spec_size < sizeof asked.spec);
  memcpy(asked.spec, call->spec, call->spec_size);
  asked.spec[call->spec_size] = 0;
  asked.key = call->key;
  asked.version = call->version;
  asked.device = call->device;
  asked.operand_count = call->operand_count;
  asked.buffer_count = call->buffer_count;
  const int64_t *from = call->buffers;
  for (uint64_t i = 0; i < call->buffer_count; ++i) from += 2 + from[1];
  CHECK((size_t)(from - call->buffers) <= sizeof asked.buffers / sizeof *asked.buffers);
  memcpy(asked.buffers, call->buffers, (size_t)((char *)from - (char *)call->buffers));
  if (complaint) {
    CHECK(strlen(complaint) < capacity);
    strcpy(message, complaint);
    return 1;
  }
  Launch empty = {0};
  CHECK(!memcmp(launch, &empty, sizeof empty));
  *launch = answer;
  if (!answer.buffer_count) declare_bytes(call, launch);
  launch->id = (uint64_t)asked.count;
  return 0;
}

static void record_status(uint64_t id, int status, char *message, uint64_t capacity) {
  ++described.count;
  CHECK(atomic_load(&calls_in_python) == 1);
  described.id = id, described.status = status;
  snprintf(message, capacity, "launch %d: status %d", (int)id, status);
}

static void start(void) {
  answer = (Launch){.launch = kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}};
  oxijax_set_callbacks(record_call, record_status);
}

/* [2,3], [4] -> [5] */
static void make_plain(Request *request) {
  make_request(request, 7, 0, 2, 1, SHAPES(2, 2, 3, 1, 4, 1, 5));
}

/* ---- cases ---- */

static XLA_FFI_Handler *const all_handlers[] = {
    oxijax_cuda_initialize, oxijax_cuda_execute, oxijax_host_execute, oxijax_empty_execute};

static void metadata(void) {
  start();
  for (int minor = 0; minor <= 5; ++minor) /* 0: a host that passes no API */
    for (int ahead = 0; ahead <= 2; ++ahead)
      for (int behind = 0; behind <= 1; ++behind)
        for (size_t h = 0; h < sizeof all_handlers / sizeof *all_handlers; ++h) {
          XLA_FFI_Api api = {.struct_size = sizeof api, .api_version = API_VERSION(minor)};
          XLA_FFI_Metadata metadata = {.struct_size = sizeof metadata, .state_type_id = {-5}};
          XLA_FFI_InternalExtension last = {sizeof last, 17, NULL};
          XLA_FFI_Metadata_Extension wanted = {
              {sizeof wanted, XLA_FFI_Extension_Metadata, behind ? &last : NULL}, &metadata};
          XLA_FFI_InternalExtension second = {sizeof second, 9, &wanted.extension_base};
          XLA_FFI_InternalExtension first = {sizeof first, 2, &second};
          XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE,
                                     .api = minor ? &api : NULL};
          frame.extension_start = ahead == 0   ? &wanted.extension_base
                                  : ahead == 1 ? &second
                                               : &first;
          CHECK(!all_handlers[h](&frame));
          CHECK(metadata.api_version.major_version == XLA_FFI_API_MAJOR);
          CHECK(metadata.api_version.minor_version == (minor ? minor : oxijax_api_minor()));
          CHECK(metadata.traits == XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
          CHECK(metadata.state_type_id.type_id == -5 && metadata.struct_size == sizeof metadata);
        }
  CHECK(!asked.count && !launched.count && !blocks());
}

static void other_extensions(void) {
  start();
  Request request;
  make_plain(&request);
  XLA_FFI_InternalExtension second = {sizeof second, 9, NULL}, first = {sizeof first, 2, &second};
  request.frame.extension_start = &first;
  CHECK(!call(oxijax_cuda_execute, &request));
  CHECK(asked.count == 1 && launched.count == 1);
}

static void resolves_once(void) {
  start();
  answer.in_python = 1;
  Request request;
  make_plain(&request);
  for (int i = 1; i <= 3; ++i) {
    CHECK(!call(oxijax_cuda_execute, &request));
    CHECK(asked.count == 1 && launched.count == i);
  }
  CHECK(!strcmp(asked.spec, "spec 7") && asked.key == 7 && asked.version == 3);
  CHECK(asked.device == 0 && asked.operand_count == 2 && asked.buffer_count == 3);
  enum { F64 = XLA_FFI_DataType_F64 };
  const int64_t buffers[] = {F64, 2, 2, 3, F64, 1, 4, F64, 1, 5};
  CHECK(!memcmp(asked.buffers, buffers, sizeof buffers));
  Request other; /* the same call at other addresses */
  make_plain(&other);
  CHECK(!call(oxijax_cuda_execute, &other) && asked.count == 1);
}

/* At `initialize` the kernel is loaded and nothing runs; `execute` finds it loaded. */
static void initialize(void) {
  start();
  Request request;
  make_plain(&request);
  request.context.stream_error = "there is no stream yet";
  CHECK(!call(oxijax_cuda_initialize, &request));
  CHECK(asked.count == 1 && launched.count == 0);
  oxijax_set_callbacks(NULL, NULL);
  request.context.stream_error = NULL;
  CHECK(!call(oxijax_cuda_initialize, &request));
  CHECK(!call(oxijax_cuda_execute, &request));
  CHECK(launched.count == 1);
}

static void identities(void) {
  start();
  static Request requests[18];
  int n = 0;
  make_plain(&requests[n++]);
  make_request(&requests[n++], 8, 0, 2, 1, SHAPES(2, 2, 3, 1, 4, 1, 5)); /* key */
  make_request(&requests[n++], 7, 1, 2, 1, SHAPES(2, 2, 3, 1, 4, 1, 5)); /* device */
  make_request(&requests[n++], 7, 0, 2, 1, SHAPES(1, 2, 2, 3, 4, 1, 5)); /* ranks */
  make_request(&requests[n++], 7, 0, 2, 1, SHAPES(2, 3, 2, 1, 4, 1, 5)); /* order */
  make_request(&requests[n++], 7, 0, 2, 1, SHAPES(2, 2, 3, 1, 4, 1, 6)); /* a result's size */
  make_request(&requests[n++], 7, 0, 1, 1, SHAPES(2, 2, 3, 1, 4));       /* fewer buffers */
  make_request(&requests[n++], 7, 0, 2, 2, SHAPES(2, 2, 3, 1, 4, 1, 5, 0));
  make_request(&requests[n++], 7, 0, 2, 2, SHAPES(2, 2, 3, 1, 4, 1, 5, 1, 0));
  make_request(&requests[n++], 7, 0, 0, 1, SHAPES(0)); /* a scalar */
  make_request(&requests[n++], 7, 0, 0, 0, SHAPES(0)); /* nothing */
  make_request(&requests[n++], 7, 0, 1, 2, SHAPES(2, 2, 3, 1, 4, 1, 5)); /* an operand fewer */
  make_plain(&requests[n]);
  requests[n++].buffers[1].dtype = XLA_FFI_DataType_F32;
  make_plain(&requests[n]);
  requests[n++].version = 4;
  make_plain(&requests[n]);
  requests[n++].spec_text[5] = '8'; /* another text under the same key */
  make_plain(&requests[n]);
  requests[n++].spec.len += 1;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < n; ++i) {
      answer.function = &requests[i];
      CHECK(!call(oxijax_cuda_execute, &requests[i]));
      CHECK(launched.function == &requests[i]);
      CHECK(asked.count == (round ? n : i + 1));
    }
  CHECK(!call(oxijax_host_execute, &requests[0])); /* host memory is a device of its own */
  CHECK(asked.count == n + 1 && asked.device == -1 && !launched.stream);
  requests[0].context.device = 5;
  CHECK(!call(oxijax_host_execute, &requests[0]));
  CHECK(asked.count == n + 1);
}

static Identity identity_of(const Request *request) {
  Identity identity = {
      .key = request->key,
      .version = request->version,
      .device = request->context.device,
      .spec = request->spec.ptr,
      .spec_size = request->spec.len,
  };
  hash_call(&request->frame, &identity);
  return identity;
}

/* Calls with the same hash. The hash takes a dimension in by exclusive or, so that for any other
 * first dimension there is a second one that leads to the same hash. */
static void collisions(void) {
  start();
  enum { SAME = 20 };
  static Request requests[SAME];
  int64_t shape[] = {2, 1, 1000};
  uint64_t kind = (uint64_t)XLA_FFI_DataType_F64 << 32 | 2; /* of the buffer: type and rank */
  uint64_t before = mix(mix(11, 0), kind), hash = mix(before, 1) ^ 1000;
  for (int i = 0; i < SAME; ++i) {
    shape[1] = i + 1;
    shape[2] = (int64_t)(hash ^ mix(before, (uint64_t)shape[1])); /* 1000 for the first */
    make_request(&requests[i], 11, 0, 1, 0, shape);
    CHECK(identity_of(&requests[i]).hash == identity_of(&requests[0]).hash);
  }
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < SAME; ++i) {
      answer.function = &requests[i];
      CHECK(!call(oxijax_cuda_execute, &requests[i]));
      CHECK(launched.function == &requests[i] && asked.count == (round ? SAME : i + 1));
    }
  /* Whatever else differs, under the hash of the first: what the call says, and its buffers. */
  const Identity first = identity_of(&requests[0]);
  CHECK(lookup(&first, &requests[0].frame));
  Identity changed[5] = {first, first, first, first, first};
  changed[0].key = 12;
  changed[1].version = 4;
  changed[2].device = 3;
  changed[3].spec = "spec 12";
  changed[4].spec_size -= 1;
  for (int i = 0; i < 5; ++i) CHECK(!lookup(&changed[i], &requests[0].frame));
  static Request others[6];
  make_request(&others[0], 11, 0, 0, 0, SHAPES(0));
  make_request(&others[1], 11, 0, 1, 0, SHAPES(1, 1));
  make_request(&others[2], 11, 0, 1, 0, SHAPES(3, 1, 1000, 1));
  make_request(&others[3], 11, 0, 1, 1, SHAPES(2, 1, 1000, 0));
  make_request(&others[4], 11, 0, 0, 1, SHAPES(2, 1, 1000));
  make_request(&others[5], 11, 0, 1, 0, SHAPES(2, 1, 1000));
  CHECK(lookup(&first, &others[5].frame));
  others[5].buffers[0].dtype = XLA_FFI_DataType_S64;
  for (int i = 0; i < 6; ++i) CHECK(!lookup(&first, &others[i].frame));
}

static void parameters(void) {
  start();
  answer = (Launch){
      .launch = kernel,
      .function = &asked,
      .grid = {11, 12, 13},
      .block = {14, 15, 16},
      .dynamic_shared = 17,
      .argument_count = 5,
      .arguments = {{2, 0}, {-1, 0x0123456789ABCDEF}, {0, 0}, {1, 0}, {-1, 99}},
  };
  Request request, other;
  make_plain(&request);
  make_plain(&other);
  for (int i = 0; i < 4; ++i) {
    Request *now = i % 2 ? &other : &request; /* addresses are those of the call */
    answer.in_python = (uint32_t)(i / 2);
    now->key = i / 2;
    CHECK(!call(oxijax_cuda_execute, now));
    const uint64_t expected[] = {(uint64_t)now->memory[2], 0x0123456789ABCDEF,
                                 (uint64_t)now->memory[0], (uint64_t)now->memory[1], 99};
    CHECK(!memcmp(launched.parameters, expected, sizeof expected));
    CHECK(!memcmp(launched.grid, answer.grid, sizeof launched.grid));
    CHECK(!memcmp(launched.block, answer.block, sizeof launched.block));
    CHECK(launched.dynamic_shared == 17 && launched.function == &asked);
    CHECK(!launched.extra == !answer.in_python);
    CHECK(launched.stream == &now->context && launched.count == i + 1);
  }
  answer.argument_count = MAX_ARGUMENTS; /* as many as there can be */
  for (int i = 0; i < MAX_ARGUMENTS; ++i) answer.arguments[i] = (Argument){-1, (uint64_t)i};
  request.key = 2;
  answer.in_python = 0;
  CHECK(!call(oxijax_cuda_execute, &request));
  for (uint64_t i = 0; i < MAX_ARGUMENTS; ++i) CHECK(launched.parameters[i] == i);
}

static struct {
  uint64_t to, from;
  size_t bytes;
  void *stream;
  int count, status;
} copied;

static int record_copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  CHECK(!launched.count || copied.count < 2); /* before the launch */
  copied.to = to, copied.from = from, copied.bytes = bytes, copied.stream = stream;
  ++copied.count;
  return copied.status;
}

/* A result that has its operand's memory is left alone; one that has not gets a copy. */
static void aliases(void) {
  start();
  Request request;
  make_request(&request, 7, 0, 2, 1, SHAPES(1, 5, 1, 4, 1, 5));
  const XLA_FFI_Buffer *from = request.frame.args.args[0], *to = request.frame.rets.rets[0];
  size_t bytes = size_of(to);
  CHECK(bytes && size_of(from) == bytes);
  int64_t result = request.frame.args.size;
  answer.alias_count = 1;
  answer.aliases[0] = (Alias){0, result};

  for (size_t i = 0; i < bytes; ++i) ((char *)from->data)[i] = (char)(i + 1);
  CHECK(!call(oxijax_host_execute, &request) && launched.count == 1);
  CHECK(!memcmp(to->data, from->data, bytes));

  answer.copy = record_copy;
  answer.grid[1] = 0; /* with nothing to launch, too */
  request.key = 1;
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 1 && copied.count == 1);
  CHECK(copied.to == (uint64_t)to->data && copied.from == (uint64_t)from->data);
  CHECK(copied.bytes == bytes && copied.stream == &request.context);

  copied.status = 719;
  const char *message = call(oxijax_cuda_execute, &request);
  CHECK(message && copied.count == 2 && launched.count == 1);
  copied.status = 0;

  void *memory = to->data;
  ((XLA_FFI_Buffer *)to)->data = from->data;
  CHECK(!call(oxijax_cuda_execute, &request) && copied.count == 2);
  ((XLA_FFI_Buffer *)to)->data = memory;

  const Alias unsound[] = {
      {-1, result},   {0, result + 1},  {result + 1, 0}, {0, -1},
      {0, 1},         {result, result}, /* an operand is overwritten, a result is copied */
      {1, result}, /* of another size */
  };
  for (int i = 0; i < 7; ++i) {
    answer.aliases[0] = unsound[i];
    request.key = 2 + i;
    CHECK(call(oxijax_cuda_execute, &request) && copied.count == 2);
  }
  answer.alias_count = MAX_ALIASES + 1;
  request.key = 10;
  CHECK(call(oxijax_cuda_execute, &request) && copied.count == 2);
}

static void empty_grid(void) {
  start();
  Request request;
  make_plain(&request);
  for (int axis = 0; axis < 3; ++axis) {
    for (int i = 0; i < 3; ++i) answer.grid[i] = i != axis;
    request.key = axis;
    CHECK(!call(oxijax_cuda_execute, &request) && !call(oxijax_host_execute, &request));
    CHECK(asked.count == 2 * (axis + 1) && !launched.count);
  }
}

static void resolver_fails(void) {
  start();
  Request request;
  make_plain(&request);
  long before = blocks();
  static char longest[MESSAGE_BYTES];
  memset(longest, 'm', sizeof longest - 1);
  const char *const messages[] = {"no such kernel", longest, "?"};
  for (int i = 0; i < 3; ++i) {
    complaint = messages[i];
    const char *message = call(oxijax_cuda_execute, &request);
    CHECK(message && !strcmp(message, complaint));
    CHECK(asked.count == 2 * i + 1 && !launched.count && blocks() == before);
    message = call(oxijax_cuda_initialize, &request);
    CHECK(message && !strcmp(message, complaint) && asked.count == 2 * i + 2);
  }
  complaint = NULL;
  CHECK(!call(oxijax_cuda_execute, &request) && asked.count == 7 && launched.count == 1);
  CHECK(!call(oxijax_cuda_execute, &request) && asked.count == 7 && launched.count == 2);
}

static void unsound_launch(void) {
  start();
  const Launch sound = answer;
  Launch unsound[9] = {sound, sound, sound, sound, sound, sound, sound, sound, sound};
  unsound[0].launch = NULL;
  unsound[1].argument_count = MAX_ARGUMENTS + 1;
  unsound[2].argument_count = UINT64_MAX;
  unsound[3].argument_count = 2, unsound[3].arguments[1].buffer = 3;
  unsound[4].argument_count = 2, unsound[4].arguments[1].buffer = -2;
  const uint64_t bytes[] = {48, 32, 40};
  for (int i = 5; i < 9; ++i) {
    unsound[i].buffer_count = 3;
    memcpy(unsound[i].bytes, bytes, sizeof bytes);
  }
  unsound[5].bytes[0] = 47; /* an operand of other types than the kernel's, a result, too few, too many */
  unsound[6].bytes[2] = 80;
  unsound[7].buffer_count = 2;
  unsound[8].buffer_count = MAX_ARGUMENTS + 1;
  Request request;
  make_plain(&request);
  for (int i = 0; i < 9; ++i) {
    answer = unsound[i];
    CHECK(says(call(oxijax_cuda_execute, &request), "does not fit the call"));
    CHECK(asked.count == i + 1 && !launched.count && !blocks());
  }
  answer = sound;
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 1);
}

/* A type of no known size fits no declaration, whatever the resolver says. */
static void unknown_types(void) {
  start();
  for (int type = 0; type < 64; ++type)
    for (int buffer = 0; buffer < 3; ++buffer) {
      Request request;
      make_plain(&request);
      request.key = 3 * type + buffer;
      request.buffers[buffer].dtype = (XLA_FFI_DataType)type;
      bool as_wide = type == XLA_FFI_DataType_F64 || type == XLA_FFI_DataType_S64 ||
                     type == XLA_FFI_DataType_U64 || type == XLA_FFI_DataType_F32;
      const char *message = call(oxijax_cuda_execute, &request);
      CHECK(as_wide ? !message : says(message, "does not fit the call"));
    }
}

/* No result begins, ends or lies in another buffer, unless it holds an operand's values. */
static void shared_memory(void) {
  start();
  Request request;
  make_request(&request, 7, 0, 2, 2, SHAPES(1, 5, 1, 4, 1, 5, 1, 0));
  uint64_t *operand = request.memory[0], *other = request.memory[1], *free = request.memory[2];
  struct {
    uint64_t *result, *empty;
    bool apart, apart_if_aliased;
  } places[] = {
      {free + 1, free, true, true},
      {operand, free, false, true},
      {operand + 1, free, false, false},
      {operand + 4, free, false, false},
      {operand - 4, free, false, false},
      {other - 4, operand, false, false}, /* it ends in the second operand */
      {other, free, false, false},
      {other + 4, operand + 2, true, true}, /* what is empty shares nothing */
  };
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i)
    for (int aliased = 0; aliased < 2; ++aliased) {
      request.key = (int64_t)(2 * i) + aliased;
      answer.alias_count = (uint64_t)aliased;
      answer.aliases[0] = (Alias){0, 2};
      request.buffers[2].data = places[i].result;
      request.buffers[3].data = places[i].empty;
      int before = launched.count;
      const char *message = call(oxijax_host_execute, &request);
      bool apart = aliased ? places[i].apart_if_aliased : places[i].apart;
      CHECK(apart ? !message : says(message, "results share memory"));
      CHECK(launched.count == before + apart);
    }
}

static void bad_attributes(void) {
  start();
  const char *const expected[] = {"key", NULL, "spec", "version"};
  for (int which = 0; which < ATTRIBUTES; ++which)
    for (int fault = 0; fault < 6; ++fault) {
      Request request;
      make_plain(&request);
      if (fault == 0) request.names[which] = span("spek");   /* missing; a name as long as spec */
      if (fault == 1) request.names[which].len -= 1;         /* a prefix of its name */
      if (fault == 2) request.types[which] = XLA_FFI_AttrType_ARRAY;
      if (fault == 3) request.types[which] = XLA_FFI_AttrType_DICTIONARY;
      if (fault == 4 && which == KEY) request.key_scalar.dtype = XLA_FFI_DataType_S32;
      if (fault == 4 && which == VERSION) request.version_scalar.dtype = XLA_FFI_DataType_U64;
      if (fault == 4 && which == SPEC) request.frame.attrs.size = 0; /* none: key is first */
      if (fault == 5) request.spec.len = 0;
      if (which == LABEL) continue;
      const char *message = call(oxijax_cuda_execute, &request);
      CHECK(says(message, fault == 4 && which == SPEC ? "key" : expected[which]));
      CHECK(!asked.count && !launched.count && !blocks());
    }
  Request request;
  make_plain(&request);
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 1);
}

static void context_fails(void) {
  start();
  Request request;
  make_plain(&request);
  request.context.device_error = "no device today";
  CHECK(says(call(oxijax_cuda_execute, &request), "no device today"));
  CHECK(says(call(oxijax_cuda_initialize, &request), "no device today"));
  CHECK(!asked.count && !launched.count && !blocks());
  request.context.device_error = NULL;
  request.context.stream_error = "no stream today";
  CHECK(says(call(oxijax_cuda_execute, &request), "no stream today"));
  CHECK(!launched.count);
  request.context.stream_error = NULL;
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 1 && asked.count == 1);
}

static void launch_fails(void) {
  start();
  Request request;
  make_plain(&request);
  for (int in_python = 0; in_python < 2; ++in_python) {
    answer.in_python = (uint32_t)in_python;
    request.key = in_python;
    launched.status = 719;
    char expected[32];
    snprintf(expected, sizeof expected, "launch %d: status 719", in_python + 1);
    long before = 0;
    for (int i = 0; i < 3; ++i) {
      const char *message = call(oxijax_cuda_execute, &request);
      CHECK(message && !strcmp(message, expected));
      CHECK(described.count == 3 * in_python + i + 1 && described.status == 719);
      CHECK(i == 0 || blocks() == before);
      before = blocks();
    }
    launched.status = 0;
    CHECK(!call(oxijax_cuda_execute, &request) && described.count == 3 * in_python + 3);
  }
  launched.status = 1;
  allocations_left = 0;
  CHECK(says(call(oxijax_cuda_execute, &request), "no memory to say why"));
  oxijax_set_callbacks(record_call, NULL);
  CHECK(says(call(oxijax_cuda_execute, &request), "a launch failed"));
}

static void without_resolver(void) {
  Request request;
  make_plain(&request);
  CHECK(says(call(oxijax_cuda_execute, &request), "no resolver") && !blocks());
  start();
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 1);
}

/* Fails each allocation in turn, over so many entries that the table grows more than once. */
static void allocations(void) {
  start();
  int failed_at[8] = {0};
  for (int64_t i = 0; i < 400; ++i) {
    Request request;
    make_request(&request, 7, 0, 1, 0, SHAPES(1, i));
    answer.function = &failed_at[i % 8];
    long before = blocks();
    for (int left = 0;; ++left) {
      CHECK(left < 8);
      allocations_left = left;
      const char *message = call(oxijax_cuda_execute, &request);
      bool failed = allocations_left < 0;
      allocations_left = -1;
      if (!failed) {
        CHECK(!message && launched.function == &failed_at[i % 8]);
        break;
      }
      CHECK(says(message, "out of memory") && launched.count == i && blocks() == before);
      ++failed_at[left];
    }
    CHECK(launched.count == i + 1 && blocks() > before);
  }
  CHECK(failed_at[0] == 400 && failed_at[1] == 400); /* the entry and the message */
  CHECK(failed_at[2] >= 3);                          /* the table: the first, and each larger one */
}

/* Whether of a request's memory the results are all ones, which is NaN, and the rest is 0. */
static bool is_abandoned(const Request *request) {
  for (int64_t i = 0; i < buffers_of(&request->frame); ++i) {
    const XLA_FFI_Buffer *buffer = buffer_of(&request->frame, i);
    size_t bytes = i < request->frame.args.size ? 0 : bytes_of(buffer->dtype);
    for (int64_t d = 0; d < buffer->rank; ++d) bytes *= (size_t)buffer->dims[d];
    const unsigned char *memory = (const unsigned char *)request->memory[i];
    for (size_t at = 0; at < sizeof request->memory[i]; ++at)
      if (memory[at] != (at < bytes ? 0xFF : 0)) return false;
  }
  return true;
}

static void shut_down(void) {
  start();
  Request native, python, unknown;
  make_plain(&native);
  CHECK(!call(oxijax_cuda_execute, &native) && !call(oxijax_host_execute, &native));
  answer.in_python = 1;
  make_plain(&python);
  python.key = 1000;
  CHECK(!call(oxijax_host_execute, &python));
  make_plain(&unknown);
  unknown.key = 2000;
  long before = blocks();
  for (int i = 0; i < 2; ++i) {
    CHECK(oxijax_shut_down() == 0);
    CHECK(says(call(oxijax_cuda_initialize, &unknown), "interpreter is shutting down"));
    CHECK(says(call(oxijax_cuda_execute, &unknown), "interpreter is shutting down"));
    CHECK(!unknown.memory[2][0]);
    CHECK(!call(oxijax_host_execute, &unknown) && is_abandoned(&unknown));
    CHECK(!call(oxijax_host_execute, &python) && is_abandoned(&python));
    memset(unknown.memory, 0, sizeof unknown.memory);
    memset(python.memory, 0, sizeof python.memory);
    CHECK(asked.count == 3 && launched.count == 3 + 2 * i && blocks() == before);
    answer.in_python = 0; /* what needs no interpreter goes on */
    CHECK(!call(oxijax_cuda_initialize, &native) && !call(oxijax_cuda_execute, &native));
    CHECK(!call(oxijax_host_execute, &native) && launched.count == 5 + 2 * i);
    CHECK(!native.memory[2][0]);
  }
  oxijax_after_fork(); /* a child of a process that shuts down hears of the fork */
  CHECK(oxijax_shut_down() == 0);
  for (int h = 0; h < 3; ++h) {
    CHECK(says(call(all_handlers[h], &native), "forked after its parent"));
    CHECK(says(call(all_handlers[h], &python), "forked after its parent"));
    CHECK(says(call(all_handlers[h], &unknown), "forked after its parent"));
  }
  CHECK(asked.count == 3 && launched.count == 7);
}

/* The results of a call in host memory that comes too late, by type and shape. */
static void abandoned_results(void) {
  start();
  static const struct {
    XLA_FFI_DataType dtype;
    size_t bytes;
  } types[] = {
      {XLA_FFI_DataType_PRED, 1}, {XLA_FFI_DataType_S8, 1},   {XLA_FFI_DataType_U8, 1},
      {XLA_FFI_DataType_S16, 2},  {XLA_FFI_DataType_U16, 2},  {XLA_FFI_DataType_F16, 2},
      {XLA_FFI_DataType_BF16, 2}, {XLA_FFI_DataType_S32, 4},  {XLA_FFI_DataType_U32, 4},
      {XLA_FFI_DataType_F32, 4},  {XLA_FFI_DataType_S64, 8},  {XLA_FFI_DataType_U64, 8},
      {XLA_FFI_DataType_F64, 8},
  };
  oxijax_shut_down();
  for (size_t t = 0; t < sizeof types / sizeof *types; ++t) {
    Request request; /* [4] -> [2,3], scalar, [0,3], [7] */
    make_request(&request, 7, 0, 1, 4, SHAPES(1, 4, 2, 2, 3, 0, 2, 0, 3, 1, 7));
    for (int i = 1; i < 5; ++i) request.buffers[i].dtype = types[t].dtype;
    request.buffers[3].data = NULL;
    CHECK(bytes_of(types[t].dtype) == types[t].bytes);
    CHECK(!call(oxijax_host_execute, &request) && is_abandoned(&request));
  }
  CHECK(!asked.count && !launched.count && !blocks());
}

static long inside; /* what oxijax_shut_down returns in the launch below */

/* What a call does that had looked before the shutdown and goes on after it. */
static int shut_down_then_fail(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z,
                               unsigned dynamic_shared, void *stream, void **parameters,
                               void **extra) {
  inside = oxijax_shut_down();
  oxijax_launch_nothing(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        dynamic_shared, stream, parameters, extra);
  return 1;
}

static void shut_down_in_a_launch(void) {
  start();
  answer.launch = shut_down_then_fail;
  Request request;
  make_plain(&request);
  CHECK(says(call(oxijax_cuda_execute, &request), "interpreter is shutting down"));
  CHECK(inside == 0 && !request.memory[2][0]); /* it does not hold the interpreter up */
  CHECK(!described.count);                     /* the interpreter may be gone */
}

static void shut_down_in_a_launch_in_python(void) {
  start();
  answer.launch = shut_down_then_fail;
  answer.in_python = 1;
  Request request;
  make_plain(&request);
  CHECK(!call(oxijax_host_execute, &request) && is_abandoned(&request));
  CHECK(inside == 1 && !described.count);
}

static void forgets(void) {
  start();
  Request request;
  make_plain(&request);
  oxijax_forget(); /* nothing yet */
  for (int i = 1; i <= 3; ++i) {
    CHECK(!call(oxijax_cuda_execute, &request) && !call(oxijax_cuda_execute, &request));
    CHECK(asked.count == i && launched.count == 2 * i);
    oxijax_forget();
  }
  CHECK(blocks() == 3 * 2); /* entries and tables are kept: a thread may be reading them */
  for (int64_t key = 0; key < 1000; ++key) { /* the table grows again */
    make_request(&request, key, 0, 1, 0, SHAPES(0));
    CHECK(!call(oxijax_cuda_execute, &request));
  }
  CHECK(asked.count == 1003);
  oxijax_forget();
  oxijax_forget();
  CHECK(!call(oxijax_cuda_execute, &request) && asked.count == 1004);
  oxijax_after_fork();
  pthread_mutex_lock(&table_lock); /* by a thread that a child does not have */
  oxijax_forget();
  pthread_mutex_unlock(&table_lock);
}

static int forget_in_resolver(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  if (asked.count < 3) oxijax_forget();
  return record_call(call, launch, message, capacity);
}

/* What the resolver has answered before all was forgotten is not put into the table. */
static void forgets_while_it_resolves(void) {
  start();
  oxijax_set_callbacks(forget_in_resolver, record_status);
  Request request;
  make_plain(&request);
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 1 && asked.count == 4);
  CHECK(!call(oxijax_cuda_execute, &request) && launched.count == 2 && asked.count == 4);
  CHECK(blocks() == 2);
}

static int interrupts;

static void count_interrupt(void) {
  CHECK(atomic_load(&calls_in_python) == 0); /* else it would be raised there, and lost */
  ++interrupts;
}

static int interrupted_resolver(const Call *call, Launch *launch, char *message,
                                uint64_t capacity) {
  if (complaint) oxijax_interrupt();
  return record_call(call, launch, message, capacity);
}

static int interrupted_kernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned dynamic_shared, void *stream, void **parameters,
                              void **extra) {
  oxijax_launch_nothing(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        dynamic_shared, stream, parameters, extra);
  if (launched.status > 0) oxijax_interrupt();
  *(int *)extra = launched.status;
  return launched.status;
}

static void *fail_elsewhere(void *request) {
  CHECK(says(call(oxijax_host_execute, request), "not this one") && !interrupts);
  return NULL;
}

static void interrupt_comes_after_the_call(void) {
  start();
  answer.launch = interrupted_kernel;
  answer.in_python = 1;
  oxijax_set_callbacks(interrupted_resolver, record_status);
  oxijax_set_interrupt(count_interrupt);
  Request request;
  make_plain(&request);
  complaint = "interrupted";
  CHECK(says(call(oxijax_host_execute, &request), "interrupted") && interrupts == 1);
  complaint = NULL;
  launched.status = 719;
  CHECK(says(call(oxijax_host_execute, &request), "status 719") && interrupts == 2);
  launched.status = ESCAPED; /* as where the function has not begun */
  CHECK(says(call(oxijax_host_execute, &request), "status -1") && interrupts == 3);
  interrupts = launched.status = 0;
  answer.launch = kernel; /* not what is in the table */
  oxijax_forget();
  CHECK(!call(oxijax_host_execute, &request) && !interrupts);
  oxijax_interrupt(); /* of this thread: the failure of another does not use it up */
  pthread_t other;
  oxijax_set_callbacks(record_call, record_status);
  complaint = "not this one";
  oxijax_forget();
  CHECK(!pthread_create(&other, NULL, fail_elsewhere, &request));
  pthread_join(other, NULL);
  CHECK(says(call(oxijax_host_execute, &request), "not this one") && interrupts == 1);
}

static void describe_nothing(uint64_t id, int status, char *message, uint64_t capacity) {
  (void)id, (void)status, (void)message, (void)capacity;
}

static void interrupted_description(void) {
  start();
  oxijax_set_callbacks(record_call, describe_nothing);
  Request request;
  make_plain(&request);
  oxijax_set_interrupt(count_interrupt);
  launched.status = 719;
  CHECK(says(call(oxijax_cuda_execute, &request), "KeyboardInterrupt") && interrupts == 1);
  complaint = ""; /* nor does the resolver say why */
  oxijax_forget();
  CHECK(says(call(oxijax_cuda_execute, &request), "KeyboardInterrupt") && interrupts == 2);
}

static void for_benchmarks(void) {
  Request request;
  make_plain(&request);
  CHECK(!call(oxijax_empty_execute, &request));
  CHECK(!oxijax_launch_nothing(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  CHECK(oxijax_layout() == ((uint64_t)sizeof(Launch) << 32 | sizeof(Call)));
}

int main(int argc, char **argv) {
  static const Case cases[] = {
      {"metadata", metadata},
      {"other_extensions", other_extensions},
      {"resolves_once", resolves_once},
      {"initialize", initialize},
      {"identities", identities},
      {"collisions", collisions},
      {"parameters", parameters},
      {"aliases", aliases},
      {"empty_grid", empty_grid},
      {"resolver_fails", resolver_fails},
      {"unsound_launch", unsound_launch},
      {"unknown_types", unknown_types},
      {"shared_memory", shared_memory},
      {"bad_attributes", bad_attributes},
      {"context_fails", context_fails},
      {"launch_fails", launch_fails},
      {"without_resolver", without_resolver},
      {"allocations", allocations},
      {"shut_down", shut_down},
      {"abandoned_results", abandoned_results},
      {"shut_down_in_a_launch", shut_down_in_a_launch},
      {"shut_down_in_a_launch_in_python", shut_down_in_a_launch_in_python},
      {"forgets", forgets},
      {"forgets_while_it_resolves", forgets_while_it_resolves},
      {"interrupt_comes_after_the_call", interrupt_comes_after_the_call},
      {"interrupted_description", interrupted_description},
      {"for_benchmarks", for_benchmarks},
  };
  return run_case(argc, argv, cases, sizeof cases / sizeof *cases);
}
