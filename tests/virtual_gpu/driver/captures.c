/* Captures: operations of streams that are kept in a graph instead of being done. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static uint64_t last_id;

static void set_frontier(Node ***to, size_t *to_count, Node *const *nodes, size_t count) {
  Node **copy = calloc(count + 1, sizeof *copy);
  if (!copy) abort();
  if (count) memcpy(copy, nodes, count * sizeof *nodes);
  free(*to);
  *to = copy;
  *to_count = count;
}

/* ---- what forbids what ---- */

static void spoil(Capture *capture, const char *reason) {
  if (capture->invalid) return;
  capture->invalid = true;
  snprintf(capture->reason, sizeof capture->reason, "%s: %s", current_call(), reason);
}

CUresult capture_spoil(Stream *stream, CUresult code, const char *reason) {
  if (!stream->capture) return CUDA_SUCCESS;
  spoil(stream->capture, reason);
  return fail(code, "%s", reason);
}

/* Whether a capture forbids this thread what is no operation of a stream. */
static bool forbidden_by(const Capture *capture) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  if (pthread_equal(capture->thread, pthread_self())) return true;
  return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
         capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_forbids(void) {
  for (Stream *stream = first_stream(); stream; stream = stream->next)
    if (stream->capture && stream->capture->origin == stream && forbidden_by(stream->capture))
      return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                           "not allowed while a stream is capturing");
  return CUDA_SUCCESS;
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  ENTER;
  CUstreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* ---- keeping ---- */

static CUresult check_valid(const Capture *capture) {
  if (!capture->invalid) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture has been spoiled by %s",
              capture->reason);
}

CUresult capture_keep(Stream *stream, Operation operation) {
  TRY(check_valid(stream->capture));
  Node *node = graph_add(stream->capture->graph, operation, stream->frontier,
                         stream->frontier_count);
  set_frontier(&stream->frontier, &stream->frontier_count, &node, 1);
  return CUDA_SUCCESS;
}

CUresult capture_record(Stream *stream, Event *event) {
  TRY(check_valid(stream->capture));
  event->capture = stream->capture;
  set_frontier(&event->frontier, &event->frontier_count, stream->frontier, stream->frontier_count);
  return CUDA_SUCCESS;
}

/* A stream that waits for a captured event takes part in the capture from then on. */
CUresult capture_wait(Stream *stream, Event *event) {
  TRY(check_valid(event->capture));
  if (!stream->capture) {
    stream->capture = event->capture;
    set_frontier(&stream->frontier, &stream->frontier_count, NULL, 0);
  }
  if (stream->capture != event->capture)
    return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_MERGE,
                         "it would join two captures");
  size_t count = stream->frontier_count + event->frontier_count;
  Node **nodes = calloc(count + 1, sizeof *nodes);
  if (!nodes) abort();
  size_t kept = 0;
  for (size_t i = 0; i < stream->frontier_count; ++i) nodes[kept++] = stream->frontier[i];
  for (size_t i = 0; i < event->frontier_count; ++i) {
    bool known = false;
    for (size_t k = 0; k < stream->frontier_count; ++k)
      known |= stream->frontier[k] == event->frontier[i];
    if (!known) nodes[kept++] = event->frontier[i];
  }
  set_frontier(&stream->frontier, &stream->frontier_count, nodes, kept);
  free(nodes);
  return CUDA_SUCCESS;
}

/* ---- beginning and end ---- */

static CUresult begin(CUstream handle, Graph *graph, Node *const *after, size_t count,
                      CUstreamCaptureMode mode) {
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  if (stream == stream->context->legacy)
    return fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the NULL stream cannot be captured");
  if (stream->capture) return fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is already capturing");
  TRY(graph_check_nodes(graph, after, count));
  Capture *capture = object_new(CAPTURE, sizeof *capture, stream->context->device);
  capture->graph = graph;
  capture->origin = stream;
  capture->thread = pthread_self();
  capture->mode = mode;
  capture->id = ++last_id;
  stream->capture = capture;
  set_frontier(&stream->frontier, &stream->frontier_count, after, count);
  return CUDA_SUCCESS;
}

API cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  ENTER;
  return begin(stream, graph_new(), NULL, 0, mode);
}

API cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                const CUgraphEdgeData *edges, size_t count,
                                CUstreamCaptureMode mode) {
  ENTER;
  (void)edges;
  TRY(object_check(graph, GRAPH));
  return begin(stream, graph, after, count, mode);
}

static void mark_before(const Node *node, bool *marked) {
  if (marked[node->index]) return;
  marked[node->index] = true;
  for (size_t i = 0; i < node->before_count; ++i) mark_before(node->before[i], marked);
}

/* Whether the origin has waited for all that other streams have put into its capture. */
static bool joined(const Capture *capture) {
  bool *marked = calloc(capture->graph->count + 1, sizeof *marked), all = true;
  if (!marked) abort();
  const Stream *origin = capture->origin;
  for (size_t i = 0; i < origin->frontier_count; ++i) mark_before(origin->frontier[i], marked);
  for (const Stream *stream = first_stream(); stream; stream = stream->next)
    for (size_t i = 0; stream->capture == capture && i < stream->frontier_count; ++i)
      all &= marked[stream->frontier[i]->index];
  free(marked);
  return all;
}

static CUresult check_end(const Capture *capture) {
  TRY(check_valid(capture));
  if (!joined(capture))
    return fail(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                "the stream has not waited for what another one has put into its capture");
  return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *graph = NULL;
  Capture *capture = stream->capture;
  if (!capture) return fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
  if (capture->origin != stream)
    return fail(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture has begun in another stream");
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      !pthread_equal(capture->thread, pthread_self()))
    return fail(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture has begun in another thread");
  CUresult status = check_end(capture);
  for (Stream *other = first_stream(); other; other = other->next)
    if (other->capture == capture) {
      other->capture = NULL;
      set_frontier(&other->frontier, &other->frontier_count, NULL, 0);
    }
  if (!status) *graph = capture->graph;
  return status;
}

static CUstreamCaptureStatus status_of(const Stream *stream) {
  if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *status = status_of(stream);
  return CUDA_SUCCESS;
}

API cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                           CUgraph *graph, const CUgraphNode **nodes,
                           const CUgraphEdgeData **edges, size_t *count) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  *status = status_of(stream);
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = stream->capture->id;
  if (graph) *graph = stream->capture->graph;
  if (nodes) *nodes = stream->frontier;
  if (edges) *edges = NULL;
  if (count) *count = stream->frontier_count;
  return CUDA_SUCCESS;
}
