/* Graphs and captures: what is kept, in which order it is done, and what a capture forbids. */
#include <pthread.h>

#include "cases.h"

static void launch_once(CUgraph graph, CUstream stream) {
  CUgraphExec executable;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuGraphExecDestroy(executable));
}

/* ---- captures ---- */

static void a_capture_does_nothing_until_it_is_launched(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUfunction store = function(load_module(), "store");
  CUdeviceptr memory = allocate(4), copy = allocate(4);
  CUgraph graph;
  CUstreamCaptureStatus status;
  OK(cuMemsetD32(memory, 1, 1));
  OK(cuMemsetD32(copy, 1, 1));
  OK(cuCtxSynchronize());
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(launch_store(store, stream, memory, 6)); /* the parameters are kept by value */
  OK(cuMemcpyDtoDAsync(copy, memory, 4, stream));
  OK(cuStreamIsCapturing(stream, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuStreamEndCapture(stream, &graph));
  CHECK(value_at(copy) == 1);
  launch_once(graph, stream);
  CHECK(value_at(copy) == 6);
  OK(cuGraphDestroy(graph));
}

static void a_capture_forbids_unsafe_calls(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory;
  CUgraph graph;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "while a stream is capturing",
        cuMemAlloc(&memory, 4));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "spoiled by cuMemAlloc",
        cuStreamEndCapture(stream, &graph));
  OK(cuMemAlloc(&memory, 4));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemAlloc(&memory, 4));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuMemAlloc(&memory, 4));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  OK(cuStreamEndCapture(stream, &graph));
}

static CUresult allocated;

static void *allocate_elsewhere(void *unused) {
  CUdeviceptr memory;
  enter(0);
  allocated = cuMemAlloc(&memory, 4);
  return unused;
}

static void in_another_thread(void) {
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, allocate_elsewhere, NULL));
  pthread_join(thread, NULL);
}

static void a_capture_loads_no_kernel(void) {
  start(2);
  load_module();
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  OK(cuLibraryLoadData(&library, "kernels", NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "small"));
  OK(cuKernelGetFunction(&function, kernel));
  for (int device = 0; device < 2; ++device) {
    enter(device);
    CUstream stream = stream_new_nonblocking();
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (device == 0) { /* whose function was asked for */
      OK(launch((CUfunction)kernel, stream, 1, 1, 0));
      OK(cuStreamEndCapture(stream, &graph));
      continue;
    }
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not loaded into this device",
          launch((CUfunction)kernel, stream, 1, 1, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "spoiled by cuLaunchKernel",
          cuStreamEndCapture(stream, &graph));
    OK(launch((CUfunction)kernel, stream, 1, 1, 0)); /* which loads it */
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch((CUfunction)kernel, stream, 1, 1, 0));
    OK(cuStreamEndCapture(stream, &graph));
  }
}

static void a_global_capture_forbids_other_threads_too(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUgraph graph;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  in_another_thread();
  CHECK(allocated == CUDA_SUCCESS);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  in_another_thread();
  CHECK(allocated == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuMemAlloc", cuStreamEndCapture(stream, &graph));
}

static void a_capturing_stream_cannot_be_waited_for(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  CUgraph graph;
  OK(cuStreamSynchronize(stream));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cannot be waited for",
        cuStreamSynchronize(stream));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "spoiled by cuStreamSynchronize",
        cuMemsetD32Async(memory, 1, 1, stream));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "spoiled", cuStreamEndCapture(stream, &graph));
  OK(cuMemsetD32Async(memory, 1, 1, stream));
}

static void the_null_stream_spoils_the_capture_of_a_blocking_one(void) {
  start(1);
  CUstream stream, other = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  CUgraph graph;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD32(memory, 1, 1)); /* it does not wait for a non-blocking one */
  OK(cuStreamEndCapture(other, &graph));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the NULL stream would wait",
        cuMemsetD32(memory, 1, 1));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuMemsetD32", cuStreamEndCapture(stream, &graph));
}

static void a_capture_joins_streams_by_events(void) {
  start(1);
  CUstream origin = stream_new_nonblocking(), other = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4), copy = allocate(4);
  CUevent fork, join;
  CUgraph graph;
  OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  for (int forgotten = 0; forgotten < 2; ++forgotten) {
    OK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemsetD32Async(memory, 9, 1, origin));
    OK(cuEventRecord(fork, origin));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(cuMemcpyDtoDAsync(copy, memory, 4, other));
    OK(cuEventRecord(join, other));
    if (forgotten) {
      FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "has not waited",
            cuStreamEndCapture(origin, &graph));
    } else {
      OK(cuStreamWaitEvent(origin, join, 0));
      OK(cuStreamEndCapture(origin, &graph));
      launch_once(graph, origin);
      CHECK(value_at(copy) == 9);
    }
  }
  FAILS(CUDA_ERROR_CAPTURED_EVENT, "was captured", cuEventSynchronize(join));
}

static void a_capture_does_not_wait_for_what_is_outside(void) {
  start(1);
  CUstream stream = stream_new_nonblocking(), other = stream_new_nonblocking();
  CUevent event;
  CUgraph graph;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(event, other));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "outside the capture",
        cuStreamWaitEvent(stream, event, 0));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "", cuStreamEndCapture(stream, &graph));
}

/* ---- graphs ---- */

static CUgraphNode add_set(CUgraph graph, CUdeviceptr to, int value, CUgraphNode before) {
  CUDA_MEMSET_NODE_PARAMS set = {.dst = to, .value = (unsigned)value, .elementSize = 4,
                                 .width = 1, .height = 1};
  CUgraphNode node;
  OK(cuGraphAddMemsetNode(&node, graph, &before, before ? 1 : 0, &set, context(0)));
  return node;
}

static void nodes_follow_their_edges_and_nothing_else(void) {
  setenv("VIRTUAL_GPU_ASYNC", "1", 1);
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  for (int edge = 0; edge < 2; ++edge) {
    int seen[3] = {0};
    CUgraph graph;
    CUgraphExec executable;
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode first = add_set(graph, memory, 1, NULL);
    add_set(graph, memory, 2, edge ? first : NULL);
    OK(cuGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 40; ++round) {
      OK(cuGraphLaunch(executable, stream));
      seen[value_at(memory)]++;
    }
    CHECK(edge ? seen[2] == 40 : seen[1] && seen[2]);
  }
}

static void an_update_is_for_the_executable_alone(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUfunction store = function(load_module(), "store");
  CUdeviceptr memory = allocate(4);
  int value = 1;
  void *parameters[] = {&memory, &value};
  CUDA_KERNEL_NODE_PARAMS kernel = {.func = store, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                    .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
                                    .kernelParams = parameters};
  CUgraph graph;
  CUgraphNode node, other;
  CUgraphExec executable;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
  OK(cuGraphInstantiate(&executable, graph, 0));
  value = 2;
  OK(cuGraphExecKernelNodeSetParams(executable, node, &kernel));
  OK(cuGraphLaunch(executable, stream));
  CHECK(value_at(memory) == 2);
  launch_once(graph, stream);
  CHECK(value_at(memory) == 1);
  CUgraph another;
  OK(cuGraphCreate(&another, 0));
  other = add_set(another, memory, 1, NULL);
  FAILS(CUDA_ERROR_INVALID_VALUE, "not of the graph that was instantiated",
        cuGraphExecKernelNodeSetParams(executable, other, &kernel));
  kernel.blockDimX = 2000;
  FAILS(CUDA_ERROR_INVALID_VALUE, "block dimension x is 2000",
        cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
  OK(cuGraphExecDestroy(executable));
  FAILS(CUDA_ERROR_INVALID_HANDLE, "destroyed", cuGraphLaunch(executable, stream));
}

static void an_update_does_not_reach_a_launch_before_it(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  CUgraph graph;
  CUgraphExec executable;
  OK(cuGraphCreate(&graph, 0));
  CUgraphNode node = add_set(graph, memory, 1, NULL);
  OK(cuGraphInstantiate(&executable, graph, 0));
  close_gate(stream);
  OK(cuGraphLaunch(executable, stream));
  CUDA_MEMSET_NODE_PARAMS set = {.dst = memory, .value = 2, .elementSize = 4, .width = 1,
                                 .height = 1};
  OK(cuGraphExecMemsetNodeSetParams(executable, node, &set, context(0)));
  OK(cuGraphExecDestroy(executable));
  open_gate();
  CHECK(value_at(memory) == 1);
}

static void children_are_copies(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  CUgraph child, graph;
  CUgraphNode node, nodes[2];
  size_t count = 2;
  OK(cuGraphCreate(&child, 0));
  add_set(child, memory, 5, NULL);
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
  OK(cuGraphDestroy(child));
  OK(cuGraphGetRootNodes(graph, nodes, &count));
  CHECK(count == 1 && nodes[0] == node);
  launch_once(graph, stream);
  CHECK(value_at(memory) == 5);
  OK(cuGraphDestroy(graph));
}

static void nodes_of_a_moved_child_are_updated(void) {
  start(1);
  CUstream stream = stream_new_nonblocking();
  CUdeviceptr memory = allocate(4);
  CUDA_MEMSET_NODE_PARAMS set = {.dst = memory, .value = 6, .elementSize = 4, .width = 1,
                                 .height = 1};
  for (int moved = 0; moved < 2; ++moved) {
    CUgraph child, graph;
    CUgraphNode node;
    CUgraphExec executable;
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphCreate(&graph, 0));
    CUgraphNode inner = add_set(child, memory, 5, NULL);
    CUgraphNodeParams parameters = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    parameters.graph.graph = child;
    parameters.graph.ownership = moved ? CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
                                       : CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
    OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    OK(cuGraphInstantiate(&executable, graph, 0));
    if (moved) {
      OK(cuGraphExecMemsetNodeSetParams(executable, inner, &set, context(0)));
      OK(cuGraphLaunch(executable, stream));
      CHECK(value_at(memory) == 6);
    } else {
      FAILS(CUDA_ERROR_INVALID_VALUE, "not of the graph that was instantiated",
            cuGraphExecMemsetNodeSetParams(executable, inner, &set, context(0)));
    }
  }
}

static void a_graph_is_of_one_device(void) {
  start(2);
  CUfunction store = function(load_module(), "store");
  CUdeviceptr memory = allocate(4);
  CUstream stream = stream_new_nonblocking();
  CUgraph graph;
  CUgraphExec executable;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(launch_store(store, stream, memory, 1));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, stream));
  enter(1);
  FAILS(CUDA_ERROR_INVALID_HANDLE, "to be launched on device 0",
        cuGraphLaunch(executable, stream_new_nonblocking()));
}

/* ---- addresses ---- */

static void functions_are_found_by_version(void) {
  start(1);
  void *older = NULL, *newer = NULL, *none = &older;
  OK(cuGetProcAddress("cuEventElapsedTime", &older, 12000, 0, NULL));
  OK(cuGetProcAddress("cuEventElapsedTime", &newer, 12080, 0, NULL));
  CHECK(newer == (void *)cuEventElapsedTime);
  CHECK(older && older != newer);
  FAILS(CUDA_ERROR_NOT_FOUND, "there is no cuNothing",
        cuGetProcAddress("cuNothing", &none, 13000, 0, NULL));
  CHECK(!none);
}

#define CASE(name) {#name, name}
const Case graph_cases[] = {
    CASE(a_capture_does_nothing_until_it_is_launched),
    CASE(a_capture_forbids_unsafe_calls),
    CASE(a_capture_loads_no_kernel),
    CASE(a_global_capture_forbids_other_threads_too),
    CASE(a_capturing_stream_cannot_be_waited_for),
    CASE(the_null_stream_spoils_the_capture_of_a_blocking_one),
    CASE(a_capture_joins_streams_by_events),
    CASE(a_capture_does_not_wait_for_what_is_outside),
    CASE(nodes_follow_their_edges_and_nothing_else),
    CASE(an_update_is_for_the_executable_alone),
    CASE(an_update_does_not_reach_a_launch_before_it),
    CASE(children_are_copies),
    CASE(nodes_of_a_moved_child_are_updated),
    CASE(a_graph_is_of_one_device),
    CASE(functions_are_found_by_version),
    {0},
};
