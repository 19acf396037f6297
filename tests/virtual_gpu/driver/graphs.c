/* Graphs: operations that follow each other, and executable copies of them.
 *
 * A launch does the nodes one after the other, in some order that their dependencies allow: with a
 * seed in VIRTUAL_GPU_ASYNC, in a random one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launches.h"
#include "transfers.h"

typedef struct CUgraphExec_st {
  Object object;
  Graph *graph; /* its own copy, whose nodes go by the names of those that they are copies of */
  unsigned seed;
} Executable;

static void *grown(void *array, size_t count, size_t size) {
  void *larger = realloc(array, (count ? count : 1) * size);
  if (!larger) abort();
  return larger;
}

Graph *graph_new(void) { return object_new(GRAPH, sizeof(Graph), -1); }

Node *graph_add(Graph *graph, Operation operation, Node *const *before, size_t count) {
  Node *node = object_new(NODE, sizeof *node, -1);
  node->graph = graph;
  node->index = graph->count;
  node->operation = operation;
  node->before = grown(NULL, count, sizeof *node->before);
  if (count) memcpy(node->before, before, count * sizeof *before);
  node->before_count = count;
  graph->nodes = grown(graph->nodes, graph->count + 1, sizeof *graph->nodes);
  graph->nodes[graph->count++] = node;
  return node;
}

Graph *graph_copy(const Graph *graph) {
  Graph *copy = graph_new();
  for (size_t i = 0; i < graph->count; ++i) {
    const Node *node = graph->nodes[i];
    Node *made = graph_add(copy, operation_copy(&node->operation), node->before,
                           node->before_count);
    made->origin = node;
    for (size_t k = 0; k < made->before_count; ++k)
      made->before[k] = copy->nodes[node->before[k]->index];
  }
  return copy;
}

void graph_end(Graph *graph) {
  for (size_t i = 0; i < graph->count; ++i) {
    Node *node = graph->nodes[i];
    operation_free(&node->operation);
    free(node->before);
    object_end(node);
  }
  free(graph->nodes);
  graph->nodes = NULL;
  graph->count = 0;
  object_end(graph);
}

CUresult graph_check_nodes(const Graph *graph, Node *const *nodes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    TRY(object_check(nodes[i], NODE));
    if (nodes[i]->graph != graph)
      return fail(CUDA_ERROR_INVALID_VALUE, "node %zu to follow is of another graph", i);
  }
  return CUDA_SUCCESS;
}

/* ---- the operations of nodes ---- */

static CUresult kernel_node(Operation *operation, CUfunction function, CUkernel kernel,
                            const unsigned *grid, const unsigned *block, unsigned shared,
                            void **parameters, void **extra) {
  Context *context;
  TRY(current_context(&context));
  LaunchParameters launch = {.function = function ? function : (CUfunction)kernel,
                             .shared = shared,
                             .parameters = parameters,
                             .extra = extra};
  memcpy(launch.grid, grid, sizeof launch.grid);
  memcpy(launch.block, block, sizeof launch.block);
  return launch_operation(operation, &launch, context->device);
}

/* A child is a copy; or, where the caller moves it, the graph itself, whose nodes stay what they
 * are. */
static CUresult child_node(Operation *operation, const CUDA_CHILD_GRAPH_NODE_PARAMS *child) {
  TRY(object_check(child->graph, GRAPH));
  bool moved = child->ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  *operation = (Operation){.kind = DO_GRAPH,
                           .call = current_call(),
                           .graph = moved ? child->graph : graph_copy(child->graph)};
  return CUDA_SUCCESS;
}

static CUresult node_operation(Operation *operation, const CUgraphNodeParams *node) {
  *operation = (Operation){.kind = DO_NOTHING, .call = current_call()};
  switch (node->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3 *k = &node->kernel;
      return kernel_node(operation, k->func, k->kern,
                         (unsigned[]){k->gridDimX, k->gridDimY, k->gridDimZ},
                         (unsigned[]){k->blockDimX, k->blockDimY, k->blockDimZ},
                         k->sharedMemBytes, k->kernelParams, k->extra);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return copy_operation(operation, &node->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2 *set = &node->memset;
      return set_operation(operation, set->dst, set->value, set->elementSize, set->width,
                           set->height, set->pitch);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      operation->kind = DO_HOST;
      operation->function = node->host.fn;
      operation->data = node->host.userData;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return child_node(operation, &node->graph);
    default:
      return fail(CUDA_ERROR_NOT_SUPPORTED, "nodes of type %d are not implemented", node->type);
  }
}

/* What the functions for one type of node have in common with those for all. */
static CUgraphNodeParams kernel_parameters(const CUDA_KERNEL_NODE_PARAMS *k) {
  CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  node.kernel = (CUDA_KERNEL_NODE_PARAMS_v3){
      .func = k->func, .kern = k->kern, .ctx = k->ctx,
      .gridDimX = k->gridDimX, .gridDimY = k->gridDimY, .gridDimZ = k->gridDimZ,
      .blockDimX = k->blockDimX, .blockDimY = k->blockDimY, .blockDimZ = k->blockDimZ,
      .sharedMemBytes = k->sharedMemBytes, .kernelParams = k->kernelParams, .extra = k->extra};
  return node;
}

static CUgraphNodeParams copy_parameters(const CUDA_MEMCPY3D *copy) {
  CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  node.memcpy.copyParams = *copy;
  return node;
}

static CUgraphNodeParams set_parameters(const CUDA_MEMSET_NODE_PARAMS *set) {
  CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
  node.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = set->dst, .pitch = set->pitch,
                                             .value = set->value,
                                             .elementSize = set->elementSize,
                                             .width = set->width, .height = set->height};
  return node;
}

static CUgraphNodeParams graph_parameters(CUgraph child) {
  CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
  node.graph.graph = child;
  return node;
}

static CUresult add(CUgraphNode *made, Graph *graph, const CUgraphNode *before, size_t count,
                    CUgraphNodeParams node) {
  Operation operation;
  TRY(object_check(graph, GRAPH));
  TRY(graph_check_nodes(graph, before, count));
  TRY(node_operation(&operation, &node));
  *made = graph_add(graph, operation, before, count);
  return CUDA_SUCCESS;
}

/* The copy of a node in a graph or in its children; NULL where there is none. */
static Node *copy_of(const Graph *graph, const Node *origin) {
  for (size_t i = 0; i < graph->count; ++i) {
    Node *node = graph->nodes[i];
    if (node->origin == origin) return node;
    const Graph *child = node->operation.graph;
    Node *found = child ? copy_of(child, origin) : NULL;
    if (found) return found;
  }
  return NULL;
}

/* The node of an executable graph that a node of what it was made of stands for. */
static CUresult node_of(Node **node, const Executable *executable, const Node *named) {
  TRY(object_check(executable, EXECUTABLE));
  TRY(object_check(named, NODE));
  *node = copy_of(executable->graph, named);
  if (!*node)
    return fail(CUDA_ERROR_INVALID_VALUE, "the node is not of the graph that was instantiated");
  return CUDA_SUCCESS;
}

/* A child that takes the place of another one: its nodes go by the same names as before. */
static CUresult keep_names(const Graph *graph, const Graph *before) {
  if (graph->count != before->count)
    return fail(CUDA_ERROR_INVALID_VALUE, "the child has %zu nodes, and had %zu", graph->count,
                before->count);
  for (size_t i = 0; i < graph->count; ++i) {
    Node *node = graph->nodes[i], *old = before->nodes[i];
    node->origin = old->origin;
    if (node->operation.graph && old->operation.graph)
      TRY(keep_names(node->operation.graph, old->operation.graph));
  }
  return CUDA_SUCCESS;
}

static CUresult update(Executable *executable, const Node *named, CUgraphNodeParams parameters) {
  Node *node = NULL;
  Operation operation;
  TRY(node_of(&node, executable, named));
  TRY(node_operation(&operation, &parameters));
  if (operation.kind != node->operation.kind) {
    operation_free(&operation);
    return fail(CUDA_ERROR_INVALID_VALUE, "the node is of another type");
  }
  CUresult status = CUDA_SUCCESS;
  if (operation.graph) status = keep_names(operation.graph, node->operation.graph);
  operation_free(status ? &operation : &node->operation);
  if (!status) node->operation = operation;
  return status;
}

/* ---- making graphs ---- */

API cuGraphCreate(CUgraph *graph, unsigned flags) {
  ENTER;
  if (flags) return fail(CUDA_ERROR_INVALID_VALUE, "flags are %u, and 0 is expected", flags);
  *graph = graph_new();
  return CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph graph) {
  ENTER;
  TRY(object_check(graph, GRAPH));
  graph_end(graph);
  return CUDA_SUCCESS;
}

API cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters) {
  ENTER;
  (void)edges; /* programmatic edges only start a kernel earlier */
  return add(node, graph, before, count, *parameters);
}

API cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                        size_t count) {
  ENTER;
  return add(node, graph, before, count,
             (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

API cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                         const CUDA_KERNEL_NODE_PARAMS *parameters) {
  ENTER;
  return add(node, graph, before, count, kernel_parameters(parameters));
}

API cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                         const CUDA_MEMCPY3D *copy, CUcontext context) {
  ENTER;
  TRY(object_check(context, CONTEXT));
  return add(node, graph, before, count, copy_parameters(copy));
}

API cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                         const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context) {
  ENTER;
  TRY(object_check(context, CONTEXT));
  return add(node, graph, before, count, set_parameters(set));
}

API cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                             size_t count, CUgraph child) {
  ENTER;
  return add(node, graph, before, count, graph_parameters(child));
}

API cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                  const CUkernelNodeAttrValue *value) {
  ENTER;
  (void)value;
  TRY(object_check(node, NODE));
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not implemented", attribute);
}

/* ---- questions ---- */

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  ENTER;
  TRY(object_check(graph, GRAPH));
  if (nodes)
    for (size_t i = 0; i < *count; ++i) nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
  *count = graph->count;
  return CUDA_SUCCESS;
}

API cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  ENTER;
  TRY(object_check(graph, GRAPH));
  size_t roots = 0;
  for (size_t i = 0; i < graph->count; ++i) {
    if (graph->nodes[i]->before_count) continue;
    if (nodes && roots < *count) nodes[roots] = graph->nodes[i];
    roots++;
  }
  *count = roots;
  return CUDA_SUCCESS;
}

API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  ENTER;
  TRY(object_check(node, NODE));
  switch (node->operation.kind) {
    case DO_LAUNCH: *type = CU_GRAPH_NODE_TYPE_KERNEL; break;
    case DO_COPY: *type = CU_GRAPH_NODE_TYPE_MEMCPY; break;
    case DO_SET: *type = CU_GRAPH_NODE_TYPE_MEMSET; break;
    case DO_HOST: *type = CU_GRAPH_NODE_TYPE_HOST; break;
    case DO_GRAPH: *type = CU_GRAPH_NODE_TYPE_GRAPH; break;
    default: *type = CU_GRAPH_NODE_TYPE_EMPTY;
  }
  return CUDA_SUCCESS;
}

API cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned flags) {
  ENTER;
  (void)flags;
  TRY(object_check(graph, GRAPH));
  FILE *file = fopen(path, "w");
  if (!file) return fail(CUDA_ERROR_OPERATING_SYSTEM, "%s cannot be written", path);
  fprintf(file, "digraph {\n");
  for (size_t i = 0; i < graph->count; ++i) {
    const Node *node = graph->nodes[i];
    const Entry *entry = node->operation.entry;
    fprintf(file, "  %zu [label=\"%s\"];\n", i, entry ? entry->name : node->operation.call);
    for (size_t k = 0; k < node->before_count; ++k)
      fprintf(file, "  %zu -> %zu;\n", node->before[k]->index, i);
  }
  fprintf(file, "}\n");
  fclose(file);
  return CUDA_SUCCESS;
}

/* ---- executable graphs ---- */

API cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
  ENTER;
  (void)flags; /* of uploads and priorities */
  TRY(object_check(graph, GRAPH));
  *executable = object_new(EXECUTABLE, sizeof **executable, -1);
  (*executable)->graph = graph_copy(graph);
  (*executable)->seed = settings()->seed;
  return CUDA_SUCCESS;
}

API cuGraphExecDestroy(CUgraphExec executable) {
  ENTER;
  TRY(object_check(executable, EXECUTABLE));
  graph_end(executable->graph);
  object_end(executable);
  return CUDA_SUCCESS;
}

API cuGraphUpload(CUgraphExec executable, CUstream handle) {
  ENTER;
  Stream *stream;
  TRY(object_check(executable, EXECUTABLE));
  return stream_of(handle, &stream);
}

API cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                             CUgraphNodeParams *parameters) {
  ENTER;
  return update(executable, node, *parameters);
}

API cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                   const CUDA_KERNEL_NODE_PARAMS *parameters) {
  ENTER;
  return update(executable, node, kernel_parameters(parameters));
}

API cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                   const CUDA_MEMCPY3D *copy, CUcontext context) {
  ENTER;
  TRY(object_check(context, CONTEXT));
  return update(executable, node, copy_parameters(copy));
}

API cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                   const CUDA_MEMSET_NODE_PARAMS *set, CUcontext context) {
  ENTER;
  TRY(object_check(context, CONTEXT));
  return update(executable, node, set_parameters(set));
}

API cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) {
  ENTER;
  return update(executable, node, graph_parameters(child));
}

/* ---- launches ---- */

static CUresult submit_graph(Stream *stream, const Graph *graph, unsigned *seed);

static CUresult submit_node(Stream *stream, const Node *node, unsigned *seed) {
  if (node->operation.kind == DO_GRAPH) return submit_graph(stream, node->operation.graph, seed);
  return stream_submit(stream, operation_copy(&node->operation));
}

static bool ready(const Node *node, const bool *done) {
  for (size_t k = 0; k < node->before_count; ++k)
    if (!done[node->before[k]->index]) return false;
  return !done[node->index];
}

static CUresult submit_graph(Stream *stream, const Graph *graph, unsigned *seed) {
  bool *done = calloc(graph->count + 1, sizeof *done);
  Node **choice = calloc(graph->count + 1, sizeof *choice);
  if (!done || !choice) abort();
  CUresult status = CUDA_SUCCESS;
  for (size_t submitted = 0; submitted < graph->count && !status; ++submitted) {
    unsigned choices = 0;
    for (size_t i = 0; i < graph->count; ++i)
      if (ready(graph->nodes[i], done)) choice[choices++] = graph->nodes[i];
    /* A node follows only older ones, so there is always one that is ready. */
    Node *node = choice[random_below(seed, choices)];
    done[node->index] = true;
    status = submit_node(stream, node, seed);
  }
  free(done);
  free(choice);
  return status;
}

API cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  ENTER;
  Stream *stream;
  TRY(stream_of(handle, &stream));
  TRY(object_check(executable, EXECUTABLE));
  note("  %zu nodes", executable->graph->count);
  if (stream->capture)
    return stream_submit(stream, (Operation){.kind = DO_GRAPH,
                                             .graph = graph_copy(executable->graph)});
  return submit_graph(stream, executable->graph, &executable->seed);
}
