/* What the driver's tests share: checks, devices to start with, and kernels that need no PTX.
 *
 * A program is a table of cases and runs one of them, because the driver's state lives as long as
 * the process. A case commits a fault and sees the error that names the call; beside it is the same
 * without the fault.
 */
#ifndef VIRTUAL_GPU_CASES_H
#define VIRTUAL_GPU_CASES_H

#define _GNU_SOURCE
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "callbacks.h"
#include "cuda.h"

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                     \
    }                                                                               \
  } while (0)

#define OK(call) check_success(call, __FILE__, __LINE__, #call)

/* The call returns `code`, and what it says names it and contains `words`. */
#define FAILS(code, words, call) check_failure(call, code, words, __FILE__, __LINE__, #call)

/* An earlier call has failed for good: this one says so. */
#define FAILS_FOR(code, words, call) check_sticky(call, code, words, __FILE__, __LINE__, #call)

void check_success(CUresult status, const char *file, int line, const char *call);
void check_failure(CUresult status, CUresult code, const char *words, const char *file, int line,
                   const char *call);
void check_sticky(CUresult status, CUresult code, const char *words, const char *file, int line,
                  const char *call);

typedef struct {
  const char *name;
  void (*run)(void);
} Case;

extern const Case order_cases[], fault_cases[], graph_cases[], collective_cases[];
extern const Case sanitizer_cases[];

/* Starts the driver with so many devices, and enters the first one's context. */
void start(int devices);
CUcontext context(int device);
void enter(int device);

/* Kernels: store(int *to, int value) writes a value; fault() fails; registers255() only has many
 * registers; static_shared() has 40 KiB of static shared memory; small() allows 64 threads. */
CUmodule load_module(void);
CUfunction function(CUmodule module, const char *name);
CUresult launch_store(CUfunction store, CUstream stream, CUdeviceptr to, int value);
CUresult launch(CUfunction kernel, CUstream stream, unsigned grid, unsigned threads,
                unsigned shared);

CUstream stream_new_nonblocking(void);
CUdeviceptr allocate(size_t bytes);
int *pinned(size_t bytes);
/* The int at an address, once all streams are done. */
int value_at(CUdeviceptr address);

/* Has a stream wait until `open_gate`. */
void close_gate(CUstream stream);
void open_gate(void);

#endif
