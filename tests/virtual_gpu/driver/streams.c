/* Streams: each a thread that does operations one after the other.
 *
 * Nothing but the order in a stream, events, and the rules of the NULL stream orders operations.
 * With a seed in VIRTUAL_GPU_ASYNC threads pause before some operations, so that whoever forgets to
 * wait meets what has not been done yet.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "callbacks.h"
#include "driver.h"

static Stream *all_streams;
static unsigned stream_count;

Stream *first_stream(void) { return all_streams; }

unsigned random_below(unsigned *seed, unsigned bound) {
  return settings()->seed ? (unsigned)rand_r(seed) % bound : 0;
}

Stream *stream_new(Context *context, unsigned flags, int priority) {
  Stream *stream = object_new(STREAM, sizeof *stream, context->device);
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->last = &stream->first;
  stream->seed = settings()->seed * 1000 + stream_count++;
  stream->next = all_streams;
  all_streams = stream;
  return stream;
}

CUresult stream_anywhere(CUstream handle, Stream **stream) {
  if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    TRY(object_check(handle, STREAM));
    *stream = handle;
    return CUDA_SUCCESS;
  }
  Context *context;
  TRY(current_context(&context));
  if (handle == CU_STREAM_PER_THREAD)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "streams of a thread are not implemented");
  *stream = context->legacy;
  return CUDA_SUCCESS;
}

CUresult stream_of(CUstream handle, Stream **stream) {
  Context *context;
  TRY(current_context(&context));
  TRY(stream_anywhere(handle, stream));
  if ((*stream)->context != context)
    return fail(CUDA_ERROR_INVALID_HANDLE,
                "the stream is of device %d, and the current context of device %d",
                (*stream)->context->device, context->device);
  return CUDA_SUCCESS;
}

/* ---- a stream's thread ---- */

static double milliseconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Does an operation; called with the lock, and gives it back meanwhile. */
static void perform(Stream *stream, Operation *operation) {
  unsigned pause = random_below(&stream->seed, 8);
  if (operation->kind == DO_WAIT)
    while (operation->other->completed < operation->until) wait_for_change();
  bool failed = stream->context->sticky != CUDA_SUCCESS;
  unlock();
  if (pause < 3) usleep(400 * pause);
  name_call(operation->call);
  CUresult status = failed ? CUDA_SUCCESS : operation_run(operation, stream->context->device);
  double reached = operation->kind == DO_RECORD ? milliseconds_now() : 0;
  lock();
  if (status) context_fail(stream->context, status, last_failure());
  if (operation->kind == DO_RECORD) operation->event->milliseconds = reached;
  if (operation->kind == DO_FREE) {
    memory_credit(operation->memory->device, operation->memory->size);
    memory_end(operation->memory);
  }
}

static void *work(void *argument) {
  Stream *stream = argument;
  enter_context(stream->context);
  lock();
  for (;;) {
    while (!stream->first && stream->object.alive) wait_for_change();
    Item *item = stream->first;
    if (!item) break;
    perform(stream, &item->operation);
    stream->first = item->next;
    if (!stream->first) stream->last = &stream->first;
    stream->completed++;
    operation_free(&item->operation);
    free(item);
    tell_change();
  }
  unlock();
  return NULL;
}

/* ---- asking for operations ---- */

static CUresult push(Stream *stream, Operation operation) {
  if (!stream->started) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, stream))
      return fail(CUDA_ERROR_OUT_OF_MEMORY, "a stream's thread cannot be started");
    pthread_detach(thread);
    stream->started = true;
  }
  Item *item = malloc(sizeof *item);
  if (!item) abort();
  *item = (Item){.operation = operation};
  *stream->last = item;
  stream->last = &item->next;
  stream->submitted++;
  tell_change();
  return CUDA_SUCCESS;
}

static bool blocking(const Stream *stream) { return !(stream->flags & CU_STREAM_NON_BLOCKING); }

static CUresult follow(Stream *stream, Stream *other) {
  if (other == stream || other->completed == other->submitted) return CUDA_SUCCESS;
  return push(stream, (Operation){.kind = DO_WAIT, .call = current_call(), .other = other,
                                  .until = other->submitted});
}

/* The NULL stream waits for all streams of its context that are not CU_STREAM_NON_BLOCKING, and
 * they for it. */
static CUresult follow_legacy_rules(Stream *stream) {
  Context *context = stream->context;
  if (!blocking(stream)) return CUDA_SUCCESS;
  if (stream != context->legacy) return follow(stream, context->legacy);
  for (Stream *other = all_streams; other; other = other->next) {
    if (other->context != context || !blocking(other)) continue;
    TRY(capture_spoil(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                      "the NULL stream would wait for a stream that is capturing"));
    TRY(follow(stream, other));
  }
  return CUDA_SUCCESS;
}

static CUresult submit(Stream *stream, Operation operation) {
  TRY(context_status(stream->context));
  TRY(operation_check(&operation, stream->context->device, false));
  if (stream->capture) return capture_keep(stream, operation);
  TRY(follow_legacy_rules(stream));
  return push(stream, operation);
}

CUresult stream_submit(Stream *stream, Operation operation) {
  operation.call = current_call();
  CUresult status = submit(stream, operation);
  if (status) operation_free(&operation);
  return status;
}

CUresult stream_wait(Stream *stream, uint64_t until) {
  while (stream->completed < until) wait_for_change();
  return context_status(stream->context);
}

CUresult device_wait(Context *context) {
  for (Stream *stream = all_streams; stream; stream = stream->next)
    if (stream->context == context) stream_wait(stream, stream->submitted);
  return context_status(context);
}

EXPORT void virtual_gpu_stop(void) {
  lock();
  for (Stream *stream = all_streams; stream; stream = stream->next)
    stream_wait(stream, stream->submitted);
  unlock();
}

/* ---- entry points ---- */

static CUresult create(CUstream *handle, unsigned flags, int priority) {
  Context *context;
  TRY(current_context(&context));
  if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
    return fail(CUDA_ERROR_INVALID_VALUE, "flags are %#x", flags);
  *handle = stream_new(context, flags, priority);
  return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *stream, unsigned flags) {
  ENTER;
  return create(stream, flags, 0);
}

API cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  ENTER;
  return create(stream, flags, priority);
}

/* Its thread ends when it has done what was asked for. */
API cuStreamDestroy(CUstream stream) {
  ENTER;
  TRY(object_check(stream, STREAM));
  TRY(capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "its stream is destroyed"));
  object_end(stream);
  tell_change();
  return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream handle) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  TRY(capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                    "a stream that is capturing cannot be waited for"));
  return stream_wait(stream, stream->submitted);
}

API cuStreamQuery(CUstream handle) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  TRY(capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                    "a stream that is capturing cannot be asked"));
  TRY(context_status(stream->context));
  return stream->completed == stream->submitted ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuStreamGetCtx(CUstream handle, CUcontext *context) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *context = stream->context;
  return CUDA_SUCCESS;
}

API cuStreamGetDevice(CUstream handle, CUdevice *device) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *device = stream->context->device;
  return CUDA_SUCCESS;
}

API cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream handle, unsigned *flags) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

API cuStreamGetId(CUstream handle, unsigned long long *id) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *id = (unsigned long long)stream;
  return CUDA_SUCCESS;
}

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  ENTER;
  Stream *stream;
  TRY(stream_of(handle, &stream));
  return stream_submit(stream, (Operation){.kind = DO_HOST, .function = function, .data = data});
}

typedef struct {
  CUstreamCallback function;
  CUstream stream;
  void *data;
} OldCallback;

static void call_old(void *data) {
  OldCallback old = *(OldCallback *)data;
  free(data);
  old.function(old.stream, CUDA_SUCCESS, old.data);
}

API cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data, unsigned flags) {
  ENTER;
  (void)flags;
  Stream *stream;
  TRY(stream_of(handle, &stream));
  TRY(capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a callback cannot be kept"));
  OldCallback *old = malloc(sizeof *old);
  if (!old) abort();
  *old = (OldCallback){function, handle, data};
  return stream_submit(stream, (Operation){.kind = DO_HOST, .function = call_old, .data = old});
}
