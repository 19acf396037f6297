/* Calls by name, the log, and what a failed call says. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "callbacks.h"
#include "driver.h"
#include "symbols.h"

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t log_once = PTHREAD_ONCE_INIT;
static FILE *log_file;

static _Thread_local const char *call = "no call";
static _Thread_local CUresult failure;
static _Thread_local char failure_reason[1024];

int enter_call(const char *name) {
  call = name;
  note("%s", name);
  lock();
  return 1;
}

void leave_call(int *locked) {
  (void)locked;
  unlock();
}

const char *current_call(void) { return call; }
void name_call(const char *name) { call = name; }
const char *last_failure(void) { return failure_reason; }
EXPORT const char *virtual_gpu_last_failure(void) { return failure_reason; }

static void open_log(void) {
  const char *path = getenv("VIRTUAL_GPU_LOG");
  if (path && *path) log_file = strcmp(path, "-") ? fopen(path, "a") : stderr;
}

void note(const char *format, ...) {
  pthread_once(&log_once, open_log);
  if (!log_file) return;
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&log_lock);
  fprintf(log_file, "[%ld] ", syscall(SYS_gettid));
  vfprintf(log_file, format, arguments);
  fputc('\n', log_file);
  fflush(log_file);
  pthread_mutex_unlock(&log_lock);
  va_end(arguments);
}

CUresult fail(CUresult code, const char *format, ...) {
  int length = snprintf(failure_reason, sizeof failure_reason, "%s: ", call);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure_reason + length, sizeof failure_reason - length, format, arguments);
  va_end(arguments);
  failure = code;
  note("failed with %d: %s", code, failure_reason);
  return code;
}

/* A stub's whole body. Says so on standard error once for each function: whoever looks for what
 * the virtual GPU lacks finds it there. */
int virtual_gpu_missing(const char *name, int status, char *said) {
  if (!atomic_exchange((atomic_char *)said, 1))
    fprintf(stderr, "virtual GPU: %s is called, and is not implemented\n", name);
  call = name;
  fail(CUDA_ERROR_NOT_SUPPORTED, "the virtual GPU does not implement it");
  return status;
}

static const char *error_name(CUresult code) {
  for (const ErrorName *name = error_names; name->name; ++name)
    if (name->code == (int)code) return name->name;
  return NULL;
}

API cuGetErrorName(CUresult code, const char **name) {
  *name = error_name(code);
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What the error's name says, and after it why this thread's last failed call has failed. */
API cuGetErrorString(CUresult code, const char **words) {
  static _Thread_local char text[1200];
  const char *name = error_name(code);
  *words = NULL;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  const char *said = code ? name + strlen("CUDA_ERROR_") : "NO_ERROR";
  size_t length = 0;
  for (; said[length]; ++length) {
    char letter = said[length];
    text[length] = letter == '_' ? ' ' : letter >= 'A' && letter <= 'Z' ? letter + 32 : letter;
  }
  text[length] = 0;
  if (code && code == failure)
    snprintf(text + length, sizeof text - length, ": %s", failure_reason);
  *words = text;
  return CUDA_SUCCESS;
}
