/* Events: a point in a stream's order that others wait for. */
#include "driver.h"

API cuEventCreate(CUevent *event, unsigned flags) {
  ENTER;
  Context *context;
  TRY(current_context(&context));
  *event = object_new(EVENT, sizeof **event, context->device);
  (*event)->flags = flags;
  return CUDA_SUCCESS;
}

API cuEventDestroy(CUevent event) {
  ENTER;
  TRY(object_check(event, EVENT));
  object_end(event);
  return CUDA_SUCCESS;
}

static CUresult record(Event *event, CUstream handle) {
  Stream *stream;
  TRY(object_check(event, EVENT));
  TRY(stream_anywhere(handle, &stream));
  if (event->object.device != stream->context->device)
    return fail(CUDA_ERROR_INVALID_HANDLE, "the event is of device %d, and the stream of device %d",
                event->object.device, stream->context->device);
  if (stream->capture) return capture_record(stream, event);
  TRY(stream_submit(stream, (Operation){.kind = DO_RECORD, .event = event}));
  event->capture = NULL;
  event->stream = stream;
  event->until = stream->submitted;
  return CUDA_SUCCESS;
}

API cuEventRecord(CUevent event, CUstream stream) {
  ENTER;
  return record(event, stream);
}

API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  ENTER;
  if (flags) return fail(CUDA_ERROR_NOT_SUPPORTED, "flags %#x are not implemented", flags);
  return record(event, stream);
}

API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  ENTER;
  Stream *stream;
  TRY(stream_anywhere(handle, &stream));
  TRY(object_check(event, EVENT));
  if (flags) return fail(CUDA_ERROR_NOT_SUPPORTED, "flags %#x are not implemented", flags);
  if (event->capture) return capture_wait(stream, event);
  if (stream->capture)
    return capture_spoil(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                         "it would wait for an event that was recorded outside the capture");
  if (!event->stream) return CUDA_SUCCESS;
  return stream_submit(stream, (Operation){.kind = DO_WAIT, .other = event->stream,
                                           .until = event->until});
}

/* Fails where the last record was captured: such an event is never reached. */
static CUresult check_reachable(Event *event) {
  TRY(object_check(event, EVENT));
  TRY(capture_forbids());
  if (event->capture)
    return fail(CUDA_ERROR_CAPTURED_EVENT, "the event's last record was captured");
  return CUDA_SUCCESS;
}

API cuEventQuery(CUevent event) {
  ENTER;
  TRY(check_reachable(event));
  if (!event->stream) return CUDA_SUCCESS;
  TRY(context_status(event->stream->context));
  return event->stream->completed < event->until ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

API cuEventSynchronize(CUevent event) {
  ENTER;
  TRY(check_reachable(event));
  return event->stream ? stream_wait(event->stream, event->until) : CUDA_SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  ENTER;
  Event *events[] = {start, end};
  for (int i = 0; i < 2; ++i) {
    Event *event = events[i];
    TRY(check_reachable(event));
    if (!event->stream || event->flags & CU_EVENT_DISABLE_TIMING)
      return fail(CUDA_ERROR_INVALID_HANDLE, "an event without a time");
    if (event->stream->completed < event->until) return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = (float)(end->milliseconds - start->milliseconds);
  return CUDA_SUCCESS;
}

#undef cuEventElapsedTime
/* The one that CUDA had before 12.8, which its bindings for CUDA 12 call. */
API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}
