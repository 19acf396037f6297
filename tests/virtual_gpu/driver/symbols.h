/* Tables that the build generates from cuda.h and from the plugin's own strings: see build.py. */
#ifndef VIRTUAL_GPU_SYMBOLS_H
#define VIRTUAL_GPU_SYMBOLS_H

typedef struct {
  int code;
  const char *name;
} ErrorName;

typedef struct {
  const char *name;
  void *address;
} Symbol;

extern const ErrorName error_names[]; /* of every CUresult, up to a NULL */
extern const Symbol symbols[];        /* all functions of the driver, stubs too, up to a NULL */

int virtual_gpu_missing(const char *name, int status, char *said);

#endif
