/* What a GPU does not stand is an error that names the call. */
#include "cases.h"

static void no_context(void) {
  CUdeviceptr memory;
  FAILS(CUDA_ERROR_NOT_INITIALIZED, "cuInit", cuMemAlloc(&memory, 4));
  start(1);
  OK(cuMemAlloc(&memory, 4));
  OK(cuCtxSetCurrent(NULL));
  FAILS(CUDA_ERROR_INVALID_CONTEXT, "no current context", cuMemAlloc(&memory, 4));
  OK(cuCtxPushCurrent(context(0)));
  OK(cuMemAlloc(&memory, 4));
  OK(cuDevicePrimaryCtxRelease(0));
  FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, "released", cuMemAlloc(&memory, 4));
}

static void a_stream_of_another_device(void) {
  start(2);
  CUstream stream = stream_new_nonblocking();
  enter(1);
  CUdeviceptr memory = allocate(4);
  CUstream own = stream_new_nonblocking();
  FAILS(CUDA_ERROR_INVALID_HANDLE, "the stream is of device 0",
        cuMemsetD32Async(memory, 1, 1, stream));
  OK(cuMemsetD32Async(memory, 1, 1, own));
}

static void an_event_of_another_device(void) {
  start(2);
  CUevent event, own;
  OK(cuEventCreate(&event, 0));
  enter(1);
  OK(cuEventCreate(&own, 0));
  CUstream stream = stream_new_nonblocking();
  FAILS(CUDA_ERROR_INVALID_HANDLE, "the event is of device 0", cuEventRecord(event, stream));
  OK(cuEventRecord(own, stream));
  OK(cuStreamWaitEvent(stream, event, 0)); /* to wait for one is allowed */
}

static void a_kernel_of_another_device(void) {
  start(2);
  CUmodule module = load_module();
  CUfunction store = function(module, "store"), other;
  CUdeviceptr memory = allocate(4);
  OK(launch_store(store, NULL, memory, 1));
  enter(1);
  FAILS(CUDA_ERROR_INVALID_HANDLE, "store is loaded on device 0, and launched on device 1",
        launch_store(store, NULL, memory, 1));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "the module is of device 0",
        cuModuleGetFunction(&other, module, "store"));
}

static void memory_of_another_device(void) {
  start(2);
  CUdeviceptr memory = allocate(4);
  enter(1);
  CUfunction store = function(load_module(), "store");
  FAILS(CUDA_ERROR_INVALID_VALUE, "memory of device 0, to which device 1 has no access",
        cuMemsetD32(memory, 1, 1));
  OK(cuCtxEnablePeerAccess(context(0), 0));
  OK(launch_store(store, NULL, memory, 3));
  CHECK(value_at(memory) == 3);
  FAILS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "already", cuCtxEnablePeerAccess(context(0), 0));
}

static void a_kernel_uses_memory_of_another_device(void) {
  start(2);
  CUdeviceptr memory = allocate(4);
  enter(1);
  OK(launch_store(function(load_module(), "store"), NULL, memory, 3));
  FAILS_FOR(CUDA_ERROR_ILLEGAL_ADDRESS, "cuLaunchKernel: kernel store", cuCtxSynchronize());
}

static void one_byte_too_far(void) {
  start(1);
  CUdeviceptr memory = allocate(5), other = allocate(8);
  char host[8] = {0};
  OK(cuMemsetD8(memory, 1, 5));
  FAILS(CUDA_ERROR_INVALID_VALUE, "from byte 0 of 5 on, 1 too many", cuMemsetD8(memory, 1, 6));
  OK(cuMemcpyHtoD(memory + 1, host, 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, "from byte 1 of 5 on, 1 too many",
        cuMemcpyHtoD(memory + 1, host, 5));
  FAILS(CUDA_ERROR_INVALID_VALUE, "the source", cuMemcpyDtoH(host, memory, 6));
  FAILS(CUDA_ERROR_INVALID_VALUE, "the source", cuMemcpyDtoD(other, memory, 6));
  FAILS(CUDA_ERROR_INVALID_VALUE, "behind the end of the 8", cuMemsetD8(other + 8, 1, 1));
}

static void freed_memory(void) {
  start(1);
  CUdeviceptr memory = allocate(16);
  CUfunction store = function(load_module(), "store");
  FAILS(CUDA_ERROR_INVALID_VALUE, "byte 4 of the 16", cuMemFree(memory + 4));
  OK(cuMemFree(memory));
  FAILS(CUDA_ERROR_INVALID_VALUE, "that have been freed", cuMemFree(memory));
  FAILS(CUDA_ERROR_INVALID_VALUE, "byte 4 of 16", cuMemsetD8(memory + 4, 1, 1));
  CUdeviceptr later = allocate(16);
  CHECK(later != memory);
  OK(launch_store(store, NULL, memory, 1));
  FAILS_FOR(CUDA_ERROR_ILLEGAL_ADDRESS, "that have been freed", cuCtxSynchronize());
}

static void memory_that_is_being_freed(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory;
  OK(cuMemAllocAsync(&memory, 4, stream));
  OK(cuMemsetD32Async(memory, 1, 1, stream));
  close_gate(stream);
  OK(cuMemFreeAsync(memory, stream));
  FAILS(CUDA_ERROR_INVALID_VALUE, "which cuMemFreeAsync has freed",
        cuMemsetD32Async(memory, 1, 1, stream));
  FAILS(CUDA_ERROR_INVALID_VALUE, "which cuMemFreeAsync has freed",
        cuMemFreeAsync(memory, stream));
  open_gate();
  OK(cuStreamSynchronize(stream));
}

static void foreign_memory(void) {
  start(1);
  CUdeviceptr memory = allocate(4);
  int host = 0, *page_locked = pinned(4);
  FAILS(CUDA_ERROR_INVALID_VALUE, "no memory of a device",
        cuMemcpyDtoD(memory, (CUdeviceptr)&host, 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, "is memory of device 0, and not of the host",
        cuMemcpyHtoD(memory, (void *)memory, 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, "is memory of device 0, and not of the host",
        cuMemcpyDtoH((void *)memory, memory, 4));
  OK(cuMemcpyHtoD(memory, &host, 4));
  OK(cuMemcpyHtoD(memory, page_locked, 4));
}

static void too_much_memory(void) {
  start(1);
  CUdeviceptr memory;
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, "device 0 has 0 of 67108864 in use",
        cuMemAlloc(&memory, (64 << 20) + 1));
  OK(cuMemAlloc(&memory, 64 << 20));
  OK(cuMemFree(memory));
  OK(cuMemAlloc(&memory, 64 << 20));
}

static void a_destroyed_handle(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUevent event;
  CUmodule module = load_module();
  CUfunction store = function(module, "store");
  CUdeviceptr memory = allocate(4);
  OK(cuEventCreate(&event, 0));
  OK(cuEventRecord(event, stream));
  OK(launch_store(store, stream, memory, 1));
  OK(cuEventDestroy(event));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "event that has been destroyed",
        cuEventRecord(event, stream));
  OK(cuModuleUnload(module));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "kernel that has been destroyed",
        launch_store(store, stream, memory, 1));
  OK(cuStreamDestroy(stream));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "stream that has been destroyed",
        cuMemsetD32Async(memory, 1, 1, stream));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "is a context, and a stream is wanted",
        cuMemsetD32Async(memory, 1, 1, (CUstream)context(0)));
}

static void an_error_sticks(void) {
  start(2);
  CUstream stream = stream_new_nonblocking();
  CUmodule module = load_module();
  CUdeviceptr memory;
  OK(launch(function(module, "fault"), stream, 1, 1, 0));
  FAILS_FOR(CUDA_ERROR_LAUNCH_FAILED, "cuLaunchKernel: kernel fault: it was to fail",
            cuStreamSynchronize(stream));
  FAILS(CUDA_ERROR_LAUNCH_FAILED, "failed for good", cuMemAlloc(&memory, 4));
  FAILS(CUDA_ERROR_LAUNCH_FAILED, "failed for good", cuStreamQuery(stream));
  const char *words;
  OK(cuGetErrorString(CUDA_ERROR_LAUNCH_FAILED, &words));
  CHECK(strstr(words, "unspecified launch failure: cuStreamQuery: device 0 has failed for good"));
  enter(1);
  OK(cuMemAlloc(&memory, 4)); /* the other device has not failed */
}

/* ---- the limits of the device ---- */

static void too_much_shared_memory(void) {
  start(2);
  CUmodule module = load_module();
  CUfunction store = function(module, "small"), shared = function(module, "static_shared");
  OK(launch(store, NULL, 1, 1, 48 << 10));
  FAILS(CUDA_ERROR_INVALID_VALUE, "49153 bytes of dynamic shared memory, and it may have 49152",
        launch(store, NULL, 1, 1, (48 << 10) + 1));
  OK(cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  OK(launch(store, NULL, 1, 1, 100 << 10));
  FAILS(CUDA_ERROR_INVALID_VALUE, "at most 232448",
        cuFuncSetAttribute(store, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449));
  OK(launch(shared, NULL, 1, 1, 8 << 10));
  FAILS(CUDA_ERROR_INVALID_VALUE, "it may have 8192", launch(shared, NULL, 1, 1, (8 << 10) + 1));
}

static void the_shared_memory_of_another_device(void) {
  start(2);
  load_module();
  CUlibrary library;
  CUkernel kernel;
  OK(cuLibraryLoadData(&library, "kernels", NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "small"));
  OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10, kernel, 0));
  OK(launch((CUfunction)kernel, NULL, 1, 1, 100 << 10));
  enter(1);
  FAILS(CUDA_ERROR_INVALID_VALUE, "it may have 49152 on device 1",
        launch((CUfunction)kernel, NULL, 1, 1, 100 << 10));
}

static void the_carve_out_of_another_device(void) {
  start(2);
  load_module();
  const CUfunction_attribute carve_out = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  const size_t shared = 40 << 10;
  CUlibrary library;
  CUkernel kernel;
  int blocks, percent;
  OK(cuLibraryLoadData(&library, "kernels", NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "small"));
  CUfunction small = (CUfunction)kernel;
  FAILS(CUDA_ERROR_INVALID_VALUE, "101 percent for small",
        cuKernelSetAttribute(carve_out, 101, kernel, 1));
  OK(cuKernelSetAttribute(carve_out, 50, kernel, 1));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 64, shared));
  CHECK(blocks == 5); /* of 41 KiB in 228 */
  OK(cuKernelGetAttribute(&percent, carve_out, kernel, 0));
  CHECK(percent == CU_SHAREDMEM_CARVEOUT_DEFAULT);
  enter(1);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 64, shared));
  CHECK(blocks == 2); /* in 114 */
  OK(cuKernelGetAttribute(&percent, carve_out, kernel, 1));
  CHECK(percent == 50);
  OK(cuKernelSetAttribute(carve_out, 0, kernel, 1));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 64, shared));
  CHECK(blocks == 1); /* a kernel runs, whatever it prefers */
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, small, 64, 49 << 10));
  CHECK(blocks == 0); /* more than it may have */
}

static void too_many_threads(void) {
  start(1);
  CUmodule module = load_module();
  CUfunction fault = function(module, "static_shared"), small = function(module, "small");
  CUfunction registers = function(module, "registers255");
  OK(launch(fault, NULL, 1, 1024, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "block dimension x is 1025", launch(fault, NULL, 1, 1025, 0));
  OK(launch(small, NULL, 1, 64, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "65 threads a block, and at most 64",
        launch(small, NULL, 1, 65, 0));
  OK(launch(registers, NULL, 1, 256, 0));
  FAILS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "257 threads of 255 registers",
        launch(registers, NULL, 1, 257, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "block dimension z is 65",
        cuLaunchKernel(fault, 1, 1, 1, 1, 1, 65, 0, NULL, NULL, NULL));
}

static void too_many_blocks(void) {
  start(1);
  CUfunction kernel = function(load_module(), "small");
  OK(launch(kernel, NULL, 2147483647, 1, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "grid dimension x is 2147483648",
        launch(kernel, NULL, 2147483648u, 1, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "grid dimension x is 0", launch(kernel, NULL, 0, 1, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "grid dimension y is 65536",
        cuLaunchKernel(kernel, 1, 65536, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void a_missing_parameter(void) {
  start(1);
  CUfunction store = function(load_module(), "store");
  CUdeviceptr memory = allocate(4);
  void *parameters[] = {&memory, NULL};
  FAILS(CUDA_ERROR_INVALID_VALUE, "store has 2 parameters, and none is given",
        launch(store, NULL, 1, 1, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "parameter 1 of 2 is missing",
        cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
  OK(launch_store(store, NULL, memory, 4));
  CHECK(value_at(memory) == 4);
}

static void a_module_that_is_none(void) {
  start(1);
  CUmodule module = load_module();
  CUfunction missing;
  char log[64] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)sizeof log};
  FAILS(CUDA_ERROR_INVALID_PTX, "this is no module",
        cuModuleLoadDataEx(&module, "nothing", 2, options, values));
  CHECK(!strcmp(log, "this is no module"));
  FAILS(CUDA_ERROR_NO_BINARY_FOR_GPU, "machine code", cuModuleLoadData(&module, "\177ELF"));
  FAILS(CUDA_ERROR_NOT_FOUND, "no kernel absent", cuModuleGetFunction(&missing, module, "absent"));
  CUdeviceptr table;
  size_t size;
  OK(cuModuleGetGlobal(&table, &size, module, "table"));
  CHECK(size == 8 && value_at(table + 4) == 8);
}

/* ---- virtual memory ---- */

static void mapped_memory(void) {
  start(2);
  enum { SIZE = 2 << 20 };
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, {.id = 0}}};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  FAILS(CUDA_ERROR_INVALID_VALUE, "granularity", cuMemCreate(&handle, 100, &properties, 0));
  OK(cuMemCreate(&handle, SIZE, &properties, 0));
  OK(cuMemAddressReserve(&address, 2 * SIZE, 0, 0, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, "no memory", cuMemsetD8(address, 1, 1));
  OK(cuMemMap(address, SIZE, 0, handle, 0));
  OK(cuMemsetD8(address, 1, SIZE));
  FAILS(CUDA_ERROR_INVALID_VALUE, "1 too many", cuMemsetD8(address, 1, SIZE + 1));
  OK(cuMemRelease(handle));
  size_t free_bytes, total;
  OK(cuMemGetInfo(&free_bytes, &total));
  CHECK(total - free_bytes == SIZE); /* until it is unmapped */
  OK(cuCtxSynchronize());
  enter(1);
  FAILS(CUDA_ERROR_INVALID_VALUE, "no access", cuMemsetD8(address, 1, 1));
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {.id = 1}},
                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(address, SIZE, &access, 1));
  OK(cuMemsetD8(address, 1, 1));
  enter(0);
  OK(cuMemUnmap(address, SIZE));
  FAILS(CUDA_ERROR_INVALID_VALUE, "0 of the 2097152 bytes", cuMemUnmap(address, SIZE));
  OK(cuMemGetInfo(&free_bytes, &total));
  CHECK(total == free_bytes);
  OK(cuMemAddressFree(address, 2 * SIZE));
}

#define CASE(name) {#name, name}
const Case fault_cases[] = {
    CASE(no_context),
    CASE(a_stream_of_another_device),
    CASE(an_event_of_another_device),
    CASE(a_kernel_of_another_device),
    CASE(memory_of_another_device),
    CASE(a_kernel_uses_memory_of_another_device),
    CASE(one_byte_too_far),
    CASE(freed_memory),
    CASE(memory_that_is_being_freed),
    CASE(foreign_memory),
    CASE(too_much_memory),
    CASE(a_destroyed_handle),
    CASE(an_error_sticks),
    CASE(too_much_shared_memory),
    CASE(the_shared_memory_of_another_device),
    CASE(the_carve_out_of_another_device),
    CASE(too_many_threads),
    CASE(too_many_blocks),
    CASE(a_missing_parameter),
    CASE(a_module_that_is_none),
    CASE(mapped_memory),
    {0},
};
