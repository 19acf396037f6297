/* Streams are asynchronous: only their order, events and waiting order what they do. */
#include <pthread.h>

#include "cases.h"

static void the_host_reads_too_early(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  int *host = pinned(4);
  OK(cuMemsetD32(memory, 5, 1));
  OK(cuCtxSynchronize());
  *host = -1;
  close_gate(stream);
  OK(cuMemcpyDtoHAsync(host, memory, 4, stream));
  CHECK(*host == -1);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  open_gate();
  OK(cuStreamSynchronize(stream));
  CHECK(*host == 5);
}

static void the_host_changes_pinned_memory_too_early(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  int *host = pinned(4), pageable = 1;
  *host = 1;
  close_gate(stream);
  OK(cuMemcpyHtoDAsync(memory, host, 4, stream));
  *host = 2;
  open_gate();
  CHECK(value_at(memory) == 2);
  close_gate(stream); /* pageable memory is read before the call returns */
  OK(cuMemcpyHtoDAsync(memory, &pageable, 4, stream));
  pageable = 2;
  open_gate();
  CHECK(value_at(memory) == 1);
}

static void a_stream_does_not_wait_for_another(void) {
  start(1);
  CUstream first = stream_new_nonblocking(), second = stream_new_nonblocking();
  CUdeviceptr from = allocate(4), to = allocate(4);
  OK(cuMemsetD32(from, 1, 1));
  OK(cuCtxSynchronize());
  close_gate(first);
  OK(cuMemsetD32Async(from, 2, 1, first));
  OK(cuMemcpyDtoDAsync(to, from, 4, second));
  OK(cuStreamSynchronize(second));
  open_gate();
  CHECK(value_at(to) == 1);
}

static void a_stream_waits_for_an_event(void) {
  start(1);
  CUstream first = stream_new_nonblocking(), second = stream_new_nonblocking();
  CUdeviceptr from = allocate(4), to = allocate(4);
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  OK(cuEventQuery(event)); /* never recorded */
  OK(cuMemsetD32(from, 1, 1));
  OK(cuCtxSynchronize());
  close_gate(first);
  OK(cuMemsetD32Async(from, 2, 1, first));
  OK(cuEventRecord(event, first));
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  OK(cuStreamWaitEvent(second, event, 0));
  OK(cuMemcpyDtoDAsync(to, from, 4, second));
  open_gate();
  OK(cuEventSynchronize(event));
  CHECK(value_at(to) == 2);
}

static void the_null_stream_does_not_wait_for_non_blocking_ones(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr from = allocate(4), to = allocate(4);
  OK(cuMemsetD32(from, 1, 1));
  OK(cuCtxSynchronize());
  close_gate(stream);
  OK(cuMemsetD32Async(from, 2, 1, stream));
  OK(cuMemcpyDtoDAsync(to, from, 4, NULL));
  OK(cuStreamSynchronize(NULL));
  open_gate();
  CHECK(value_at(to) == 1);
}

static void the_null_stream_and_blocking_ones_wait_for_each_other(void) {
  start(1);
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  CUdeviceptr from = allocate(4), to = allocate(4), last = allocate(4);
  close_gate(stream);
  OK(cuMemsetD32Async(from, 2, 1, stream));
  OK(cuMemcpyDtoDAsync(to, from, 4, NULL));
  OK(cuMemcpyDtoDAsync(last, to, 4, stream));
  CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
  open_gate();
  CHECK(value_at(last) == 2);
}

static void memory_is_freed_in_the_order_of_its_stream(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory, copy = allocate(4);
  size_t before, during, after, total;
  OK(cuMemGetInfo(&before, &total));
  OK(cuMemAllocAsync(&memory, 1 << 20, stream));
  close_gate(stream);
  OK(cuMemsetD32Async(memory, 3, 1, stream));
  OK(cuMemcpyDtoDAsync(copy, memory, 4, stream));
  OK(cuMemFreeAsync(memory, stream));
  OK(cuMemGetInfo(&during, &total));
  CHECK(before - during == 1 << 20);
  open_gate();
  CHECK(value_at(copy) == 3);
  OK(cuMemGetInfo(&after, &total));
  CHECK(after == before);
}

static void seeds_change_what_is_done_first(void) {
  setenv("VIRTUAL_GPU_ASYNC", "3", 1);
  start(1);
  enum { ROUNDS = 60 };
  CUstream streams[] = {stream_new_nonblocking(), stream_new_nonblocking()};
  CUdeviceptr memory[] = {allocate(4), allocate(4)};
  CUevent done[2];
  for (int i = 0; i < 2; ++i) OK(cuEventCreate(&done[i], CU_EVENT_DEFAULT));
  int last[2] = {0};
  for (int round = 0; round < ROUNDS; ++round) {
    for (int i = 0; i < 2; ++i) {
      OK(cuMemsetD32Async(memory[i], 1, 1, streams[i]));
      OK(cuEventRecord(done[i], streams[i]));
    }
    for (int i = 0; i < 2; ++i) OK(cuEventSynchronize(done[i]));
    float milliseconds;
    OK(cuEventElapsedTime(&milliseconds, done[0], done[1]));
    last[milliseconds > 0]++;
  }
  CHECK(last[0] && last[1]);
}

static void events_tell_the_time_between(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUevent first, second;
  float milliseconds;
  OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&second, CU_EVENT_DEFAULT));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "without a time",
        cuEventElapsedTime(&milliseconds, first, second));
  OK(cuEventRecord(first, stream));
  OK(cuEventSynchronize(first));
  usleep(2000);
  OK(cuEventRecord(second, stream));
  OK(cuEventSynchronize(second));
  OK(cuEventElapsedTime(&milliseconds, first, second));
  CHECK(milliseconds >= 2);

  float again = 0;
  CUresult (*older)(float *, CUevent, CUevent);
  OK(cuGetProcAddress("cuEventElapsedTime", (void **)&older, 12000, 0, NULL));
  OK(older(&again, first, second));
  CHECK(again == milliseconds);
}

/* ---- many threads at once: for ThreadSanitizer ---- */

enum { THREADS = 4, STEPS = 50 };
static CUfunction store;

static void *work(void *argument) {
  CUdeviceptr memory = *(CUdeviceptr *)argument;
  enter(0);
  CUstream stream = stream_new_nonblocking();
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int step = 0; step < STEPS; ++step) {
    CUdeviceptr scratch;
    OK(cuMemAllocAsync(&scratch, 64, stream));
    OK(launch_store(store, stream, scratch, step));
    OK(cuMemcpyDtoDAsync(memory, scratch, 4, stream));
    OK(cuMemFreeAsync(scratch, stream));
    OK(cuEventRecord(event, stream));
  }
  OK(cuEventSynchronize(event));
  OK(cuStreamDestroy(stream));
  return NULL;
}

static void threads_have_streams_of_their_own(void) {
  start(1);
  store = function(load_module(), "store");
  pthread_t threads[THREADS];
  CUdeviceptr memory[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    memory[i] = allocate(4);
    CHECK(!pthread_create(&threads[i], NULL, work, &memory[i]));
  }
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; ++i) CHECK(value_at(memory[i]) == STEPS - 1);
}

#define CASE(name) {#name, name}
const Case order_cases[] = {
    CASE(the_host_reads_too_early),
    CASE(the_host_changes_pinned_memory_too_early),
    CASE(a_stream_does_not_wait_for_another),
    CASE(a_stream_waits_for_an_event),
    CASE(the_null_stream_does_not_wait_for_non_blocking_ones),
    CASE(the_null_stream_and_blocking_ones_wait_for_each_other),
    CASE(memory_is_freed_in_the_order_of_its_stream),
    CASE(seeds_change_what_is_done_first),
    CASE(events_tell_the_time_between),
    CASE(threads_have_streams_of_their_own),
    {0},
};
