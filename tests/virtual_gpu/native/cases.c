#include "cases.h"

/* ---- checks ---- */

static const char *name_of(CUresult status) {
  const char *name = NULL;
  return cuGetErrorName(status, &name) ? "an unknown CUresult" : name;
}

void check_success(CUresult status, const char *file, int line, const char *call) {
  if (status == CUDA_SUCCESS) return;
  fprintf(stderr, "%s:%d: %s returned %s: %s\n", file, line, call, name_of(status),
          virtual_gpu_last_failure());
  _exit(1);
}

static void check_words(CUresult status, CUresult code, const char *words, bool named,
                        const char *file, int line, const char *call) {
  const char *said = virtual_gpu_last_failure();
  bool names = !named || !strncmp(said, call, strcspn(call, "("));
  if (status == code && names && strstr(said, words)) return;
  fprintf(stderr, "%s:%d: %s returned %s and said \"%s\"; %s and \"%s\" were expected\n", file,
          line, call, name_of(status), said, name_of(code), words);
  _exit(1);
}

void check_failure(CUresult status, CUresult code, const char *words, const char *file, int line,
                   const char *call) {
  check_words(status, code, words, strncmp(call, "launch", 6) != 0, file, line, call);
}

void check_sticky(CUresult status, CUresult code, const char *words, const char *file, int line,
                  const char *call) {
  check_words(status, code, words, false, file, line, call);
}

/* ---- devices ---- */

static CUcontext contexts[8];

void start(int devices) {
  char text[8];
  snprintf(text, sizeof text, "%d", devices);
  setenv("VIRTUAL_GPU_DEVICES", text, 1);
  setenv("VIRTUAL_GPU_MEMORY_MB", "64", 1);
  OK(cuInit(0));
  for (int device = 0; device < devices; ++device)
    OK(cuDevicePrimaryCtxRetain(&contexts[device], device));
  enter(0);
}

CUcontext context(int device) { return contexts[device]; }

void enter(int device) { OK(cuCtxSetCurrent(contexts[device])); }

/* ---- kernels ---- */

static int load(uint64_t library, int32_t device, const char *text, uint64_t size, char *message,
                uint64_t capacity) {
  static int table[] = {7, 8};
  (void)size;
  if (strcmp(text, "kernels")) {
    snprintf(message, capacity, "this is no module");
    return CUDA_ERROR_INVALID_PTX;
  }
  const uint64_t sizes[] = {8, 4};
  virtual_gpu_add_kernel(library, "store", sizes, sizes, 2, 0, 1024, 16);
  virtual_gpu_add_kernel(library, "fault", NULL, NULL, 0, 0, 1024, 16);
  virtual_gpu_add_kernel(library, "registers255", NULL, NULL, 0, 0, 1024, 255);
  virtual_gpu_add_kernel(library, "static_shared", NULL, NULL, 0, 40 << 10, 1024, 16);
  virtual_gpu_add_kernel(library, "small", NULL, NULL, 0, 0, 64, 16);
  if (device == 0 && library == 1)
    virtual_gpu_add_variable(library, "table", device, table, sizeof table);
  return CUDA_SUCCESS;
}

static int run(const LaunchRequest *request, char *message, uint64_t capacity) {
  if (!strcmp(request->kernel, "fault")) {
    snprintf(message, capacity, "it was to fail");
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  if (strcmp(request->kernel, "store")) return CUDA_SUCCESS;
  uint64_t to;
  memcpy(&to, request->parameters[0], sizeof to);
  MemoryRecord memory;
  if (!virtual_gpu_memory_at(to, request->device, &memory) || !memory.usable) {
    virtual_gpu_describe_address(to, message, capacity);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  memcpy((void *)to, request->parameters[1], sizeof(int));
  return CUDA_SUCCESS;
}

CUmodule load_module(void) {
  CUmodule module;
  virtual_gpu_set_callbacks(load, run);
  OK(cuModuleLoadData(&module, "kernels"));
  return module;
}

CUfunction function(CUmodule module, const char *name) {
  CUfunction found;
  OK(cuModuleGetFunction(&found, module, name));
  return found;
}

CUresult launch(CUfunction kernel, CUstream stream, unsigned grid, unsigned threads,
                unsigned shared) {
  return cuLaunchKernel(kernel, grid, 1, 1, threads, 1, 1, shared, stream, NULL, NULL);
}

CUresult launch_store(CUfunction store, CUstream stream, CUdeviceptr to, int value) {
  void *parameters[] = {&to, &value};
  return cuLaunchKernel(store, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

/* ---- streams and memory ---- */

CUstream stream_new_nonblocking(void) {
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr address;
  OK(cuMemAlloc(&address, bytes));
  return address;
}

int *pinned(size_t bytes) {
  void *address;
  OK(cuMemAllocHost(&address, bytes));
  return address;
}

int value_at(CUdeviceptr address) {
  int value;
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoH(&value, address, sizeof value));
  return value;
}

static sem_t gate;

static void wait_at_gate(void *unused) {
  (void)unused;
  sem_wait(&gate);
}

void close_gate(CUstream stream) {
  sem_init(&gate, 0, 0);
  OK(cuLaunchHostFunc(stream, wait_at_gate, NULL));
}

void open_gate(void) { sem_post(&gate); }

/* ---- main: without an argument it lists the cases, with one it runs that case ---- */

int main(int argc, char **argv) {
  const Case *tables[] = {order_cases, fault_cases, graph_cases, collective_cases,
                          sanitizer_cases};
  alarm(30); /* a case that hangs fails */
  for (size_t t = 0; t < sizeof tables / sizeof *tables; ++t)
    for (const Case *here = tables[t]; here->name; ++here) {
      if (argc == 1) {
        puts(here->name);
      } else if (!strcmp(here->name, argv[1])) {
        here->run();
        return 0;
      }
    }
  if (argc == 1) return 0;
  fprintf(stderr, "no case is called %s\n", argv[1]);
  return 2;
}
