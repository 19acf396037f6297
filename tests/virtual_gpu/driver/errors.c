/* Calls by name, the log, and what a failed call says. */
#include <ctype.h>
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

/* As the driver says it, of those errors that callers look at the words of. */
static const struct { CUresult code; const char *words; } known_words[] = {
    {CUDA_SUCCESS, "no error"},
    {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
    {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
};

/* Writes an error's words; where the table has none, those of its name. */
static void write_words(CUresult code, const char *name, char *text, size_t capacity) {
  for (size_t i = 0; i < sizeof known_words / sizeof *known_words; ++i)
    if (known_words[i].code == code) {
      snprintf(text, capacity, "%s", known_words[i].words);
      return;
    }
  snprintf(text, capacity, "%s", name + strlen("CUDA_ERROR_"));
  for (char *letter = text; *letter; ++letter)
    *letter = *letter == '_' ? ' ' : (char)tolower((unsigned char)*letter);
}

/* The error's words, and after them why this thread's last failed call has failed. */
API cuGetErrorString(CUresult code, const char **words) {
  static _Thread_local char text[1200];
  const char *name = error_name(code);
  *words = NULL;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  write_words(code, name, text, sizeof text);
  size_t length = strlen(text);
  if (code && code == failure)
    snprintf(text + length, sizeof text - length, ": %s", failure_reason);
  *words = text;
  return CUDA_SUCCESS;
}
