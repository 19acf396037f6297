/* Modules and libraries: PTX texts, and the kernels and variables in them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "callbacks.h"
#include "driver.h"
#include "launches.h"

typedef struct Variable {
  struct Variable *next;
  char *name;
  int device;
  Memory *memory;
} Variable;

typedef struct Library {
  Object object; /* its device is a module's, and -1 for a CUlibrary */
  struct Library *next;
  uint64_t id;
  Entry *entries;
  Variable *variables;
} Library;

static Library *libraries; /* the last one first */
static uint64_t last_id;
static _Atomic(LoadCallback *) load_callback;

EXPORT void virtual_gpu_set_callbacks(LoadCallback *load, LaunchCallback *launch) {
  atomic_store(&load_callback, load);
  set_launch_callback(launch);
}

static void *checked(void *memory) {
  if (!memory) abort();
  return memory;
}

static Library *library_of(uint64_t id) {
  Library *library = libraries;
  while (library && library->id != id) library = library->next;
  return library;
}

uint64_t library_id(const Entry *entry) { return entry->library->id; }

/* ---- what the load callback adds ---- */

EXPORT int virtual_gpu_add_kernel(uint64_t id, const char *name, const uint64_t *sizes,
                                  const uint64_t *alignments, uint32_t count,
                                  uint32_t static_shared, uint32_t max_threads,
                                  int32_t registers) {
  Entry *entry = checked(calloc(1, sizeof *entry));
  entry->name = checked(strdup(name));
  entry->static_shared = static_shared;
  entry->max_threads = max_threads;
  entry->registers = registers;
  entry->parameter_count = count;
  entry->sizes = checked(calloc(count + 1, sizeof *entry->sizes));
  entry->offsets = checked(calloc(count + 1, sizeof *entry->offsets));
  for (uint32_t i = 0; i < count; ++i) {
    size_t alignment = alignments[i];
    entry->sizes[i] = sizes[i];
    entry->offsets[i] = (entry->parameter_bytes + alignment - 1) / alignment * alignment;
    entry->parameter_bytes = entry->offsets[i] + sizes[i];
  }
  for (int device = 0; device < MAX_DEVICES; ++device)
    entry->carve_out[device] = CU_SHAREDMEM_CARVEOUT_DEFAULT;
  lock();
  entry->library = library_of(id);
  entry->next = entry->library->entries;
  entry->library->entries = entry;
  unlock();
  return 0;
}

EXPORT int virtual_gpu_add_variable(uint64_t id, const char *name, int device, void *address,
                                    uint64_t size) {
  Variable *variable = checked(calloc(1, sizeof *variable));
  variable->name = checked(strdup(name));
  variable->device = device;
  lock();
  CUresult status = memory_adopt(&variable->memory, address, size, DEVICE_MEMORY, device);
  if (!status) {
    variable->memory->mapped = true; /* cuMemFree must not free it */
    Library *library = library_of(id);
    variable->next = library->variables;
    library->variables = variable;
  }
  unlock();
  return status;
}

/* ---- loading ---- */

/* Has Python, where this process is one of its, register the callbacks. */
static void start_python(void) {
  int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  int (*execute)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
  if (!ensure || !release || !execute) return;
  int state = ensure();
  execute("import virtual_driver.start");
  release(state);
}

/* Called with the lock, which it gives back meanwhile. */
static LoadCallback *loader(void) {
  if (!atomic_load(&load_callback)) {
    unlock();
    start_python();
    lock();
  }
  return atomic_load(&load_callback);
}

/* Where the caller wants the compiler's errors, if it does. */
static void tell_compiler_log(const char *message, unsigned count, const CUjit_option *options,
                              void *const *values) {
  char *log = NULL;
  size_t capacity = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) capacity = (size_t)values[i];
  }
  if (log && capacity) snprintf(log, capacity, "%s", message);
}

static CUresult load(Library **made, const void *image, int device, unsigned count,
                     const CUjit_option *options, void *const *values) {
  enum { ELF = 0x464C457F, FAT_BINARY = 0xBA55ED50, FAT_BINARY_WRAPPER = 0x466243B1 };
  TRY(capture_forbids());
  unsigned magic;
  memcpy(&magic, image, sizeof magic);
  if (magic == ELF || magic == FAT_BINARY || magic == FAT_BINARY_WRAPPER)
    return fail(CUDA_ERROR_NO_BINARY_FOR_GPU, "machine code cannot run here, only PTX");
  LoadCallback *callback = loader();
  if (!callback) return fail(CUDA_ERROR_NOT_SUPPORTED, "nothing is there that reads PTX");
  Library *library = object_new(LIBRARY, sizeof *library, device);
  library->id = ++last_id;
  library->next = libraries;
  libraries = library;
  uint64_t id = library->id;
  note("  module %llu of %zu bytes", (unsigned long long)id, strlen(image));
  char message[8192] = "";
  const char *call = current_call(); /* the callback asks the driver for what it has to know */
  unlock();
  int status = callback(id, device, image, strlen(image), message, sizeof message);
  lock();
  name_call(call);
  if (status) {
    object_end(library);
    tell_compiler_log(message, count, options, values);
    return fail(status, "%.900s", message);
  }
  *made = library;
  return CUDA_SUCCESS;
}

static CUresult load_module(CUmodule *module, const void *image, unsigned count,
                            const CUjit_option *options, void *const *values) {
  Context *context;
  TRY(current_context(&context));
  return load((Library **)module, image, context->device, count, options, values);
}

API cuModuleLoadData(CUmodule *module, const void *image) {
  ENTER;
  return load_module(module, image, 0, NULL, NULL);
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                       void **values) {
  ENTER;
  return load_module(module, image, count, options, values);
}

API cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  ENTER;
  return load_module(module, image, 0, NULL, NULL);
}

API cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options, void **values,
                      unsigned count, CUlibraryOption *library_options, void **library_values,
                      unsigned library_count) {
  ENTER;
  (void)library_options, (void)library_values, (void)library_count;
  TRY(device_check(0)); /* no context is needed, but cuInit is */
  return load((Library **)library, image, -1, count, options, values);
}

/* What is still to be launched keeps what it needs; the handles end. */
static CUresult unload(Library *library) {
  TRY(object_check(library, LIBRARY));
  TRY(capture_forbids());
  object_end(library);
  for (Entry *entry = library->entries; entry; entry = entry->next) {
    if (entry->kernel) object_end(entry->kernel);
    for (int device = 0; device < MAX_DEVICES; ++device)
      if (entry->functions[device]) object_end(entry->functions[device]);
  }
  return CUDA_SUCCESS;
}

API cuModuleUnload(CUmodule module) {
  ENTER;
  return unload((Library *)module);
}

API cuLibraryUnload(CUlibrary library) {
  ENTER;
  return unload((Library *)library);
}

API cuLibraryGetModule(CUmodule *module, CUlibrary library) {
  ENTER;
  TRY(object_check(library, LIBRARY));
  *module = (CUmodule)library;
  return CUDA_SUCCESS;
}

/* ---- kernels ---- */

static Kernel *handle_of(Entry *entry, int device) {
  Kernel **handle = device < 0 ? &entry->kernel : &entry->functions[device];
  if (!*handle) {
    *handle = object_new(KERNEL, sizeof **handle, device);
    (*handle)->entry = entry;
  }
  return *handle;
}

static CUresult find_kernel(Kernel **kernel, Library *library, const char *name, int device) {
  TRY(object_check(library, LIBRARY));
  for (Entry *entry = library->entries; entry; entry = entry->next)
    if (!strcmp(entry->name, name)) {
      *kernel = handle_of(entry, device);
      return CUDA_SUCCESS;
    }
  return fail(CUDA_ERROR_NOT_FOUND, "the module has no kernel %s", name);
}

API cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  ENTER;
  return find_kernel((Kernel **)kernel, (Library *)library, name, -1);
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  Library *library = (Library *)module;
  TRY(object_check(library, LIBRARY));
  if (library->object.device >= 0 && library->object.device != context->device)
    return fail(CUDA_ERROR_INVALID_HANDLE,
                "the module is of device %d, and the current context of device %d",
                library->object.device, context->device);
  return find_kernel(function, library, name, context->device);
}

bool kernel_is_loaded(const Kernel *kernel, int device) {
  return kernel->object.device >= 0 || kernel->entry->functions[device];
}

void kernel_load(Kernel *kernel, int device) {
  if (!kernel_is_loaded(kernel, device)) handle_of(kernel->entry, device);
}

API cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  TRY(object_check(kernel, KERNEL));
  if (!kernel_is_loaded((Kernel *)kernel, context->device)) TRY(capture_forbids());
  *function = handle_of(((Kernel *)kernel)->entry, context->device);
  return CUDA_SUCCESS;
}

static CUresult get_name(const char **name, Kernel *kernel) {
  TRY(object_check(kernel, KERNEL));
  *name = kernel->entry->name;
  return CUDA_SUCCESS;
}

API cuKernelGetName(const char **name, CUkernel kernel) {
  ENTER;
  return get_name(name, (Kernel *)kernel);
}

API cuFuncGetName(const char **name, CUfunction function) {
  ENTER;
  return get_name(name, function);
}

API cuFuncGetModule(CUmodule *module, CUfunction function) {
  ENTER;
  TRY(object_check(function, KERNEL));
  *module = (CUmodule)function->entry->library;
  return CUDA_SUCCESS;
}

static CUresult parameter(Kernel *kernel, size_t index, size_t *offset, size_t *size) {
  TRY(object_check(kernel, KERNEL));
  Entry *entry = kernel->entry;
  /* How callers count the parameters: no failure that anybody needs to be told of. */
  if (index >= entry->parameter_count) return CUDA_ERROR_INVALID_VALUE;
  if (offset) *offset = entry->offsets[index];
  if (size) *size = entry->sizes[index];
  return CUDA_SUCCESS;
}

API cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
  ENTER;
  return parameter((Kernel *)kernel, index, offset, size);
}

API cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
  ENTER;
  return parameter(function, index, offset, size);
}

/* ---- attributes of kernels ---- */

int dynamic_shared_limit(const Entry *entry, int device) {
  int set = entry->dynamic_shared[device];
  int normal = model_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device) -
               (int)entry->static_shared;
  return set ? set : normal;
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, Kernel *kernel,
                              int device) {
  TRY(object_check(kernel, KERNEL));
  Entry *entry = kernel->entry;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)entry->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)entry->static_shared; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = entry->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = model()->major * 10 + model()->minor; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = dynamic_shared_limit(entry, device);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = entry->carve_out[device];
      break;
    default: return fail(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not implemented", attribute);
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attribute, int value, Kernel *kernel,
                              int device) {
  TRY(object_check(kernel, KERNEL));
  Entry *entry = kernel->entry;
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    if (value < CU_SHAREDMEM_CARVEOUT_DEFAULT || value > CU_SHAREDMEM_CARVEOUT_MAX_SHARED)
      return fail(CUDA_ERROR_INVALID_VALUE, "a carve-out of %d percent for %s", value,
                  entry->name);
    entry->carve_out[device] = value;
    return CUDA_SUCCESS;
  }
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    return fail(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not implemented", attribute);
  int most = model()->shared_per_block - (int)entry->static_shared;
  if (value < 0 || value > most)
    return fail(CUDA_ERROR_INVALID_VALUE,
                "%d bytes of dynamic shared memory for %s: at most %d are left", value,
                entry->name, most);
  entry->dynamic_shared[device] = value;
  return CUDA_SUCCESS;
}

API cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                         CUdevice device) {
  ENTER;
  TRY(device_check(device));
  return get_attribute(value, attribute, (Kernel *)kernel, device);
}

API cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                         CUdevice device) {
  ENTER;
  TRY(device_check(device));
  return set_attribute(attribute, value, (Kernel *)kernel, device);
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  return get_attribute(value, attribute, function, context->device);
}

API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  return set_attribute(attribute, value, function, context->device);
}

API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  ENTER;
  (void)config;
  return object_check(function, KERNEL);
}

API cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  ENTER;
  (void)config;
  TRY(device_check(device));
  return object_check(kernel, KERNEL);
}

/* ---- variables ---- */

API cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  TRY(object_check(module, LIBRARY));
  Variable *variable = ((Library *)module)->variables;
  while (variable && (strcmp(variable->name, name) || variable->device != context->device))
    variable = variable->next;
  if (!variable) return fail(CUDA_ERROR_NOT_FOUND, "the module has no variable %s", name);
  if (address) *address = (CUdeviceptr)variable->memory->address;
  if (size) *size = variable->memory->size;
  return CUDA_SUCCESS;
}
