/* NCCL between the devices of one process: the collectives that XLA makes.
 *
 * A call asks the stream for a host function, in whose order the rank takes part. The ranks of a
 * collective meet there: the last one to come does the work of all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { NCCL_SUCCESS = 0, NCCL_ERROR = 1, NCCL_INVALID_ARGUMENT = 4 };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, OPERATIONS };
typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL } Kind;
typedef int NcclResult;
#define NCCL_API EXPORT NcclResult

static const size_t widths[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

typedef struct {
  Kind kind;
  int type, operation, root;
  const char *send;
  char *receive;
  size_t count; /* elements that a rank sends; of REDUCE_SCATTER, that it receives */
} Work;

/* One collective, where the ranks meet. */
typedef struct Meeting {
  struct Meeting *next;
  long number;
  int arrived, left;
  bool done;
  Work work[MAX_DEVICES];
} Meeting;

/* What a rank has sent to another one and that has not been received. */
typedef struct Parcel {
  struct Parcel *next;
  int from, to;
  char *bytes;
  size_t size;
} Parcel;

typedef struct Clique {
  struct Clique *next;
  uint64_t id;
  int size;
  Meeting *meetings;
  Parcel *parcels; /* the first one sent first */
} Clique;

typedef struct {
  Clique *clique;
  int rank;
  int device;
  long collectives;
} Communicator;

typedef struct {
  char bytes[128];
} UniqueId;

static pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t nccl_change = PTHREAD_COND_INITIALIZER;
static Clique *cliques;
static uint64_t last_id;

static void *new(size_t size) {
  void *memory = calloc(1, size);
  if (!memory) abort();
  return memory;
}

/* ---- arithmetic ---- */

static float widen(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#define COMBINED(a, b)                                                        \
  (operation == SUM       ? (a) + (b)                                         \
   : operation == PRODUCT ? (a) * (b)                                         \
   : operation == MAXIMUM ? ((a) > (b) ? (a) : (b))                           \
                          : ((a) < (b) ? (a) : (b)))
#define COMBINE(name, Type)                                                   \
  case name: {                                                                \
    Type *a = (Type *)into;                                                   \
    const Type *b = (const Type *)from;                                       \
    for (size_t i = 0; i < count; ++i) a[i] = (Type)COMBINED(a[i], b[i]);     \
    break;                                                                    \
  }

static void combine(char *into, const char *from, size_t count, int type, int operation) {
  switch (type) {
    COMBINE(INT8, int8_t)
    COMBINE(UINT8, uint8_t)
    /* Sums wrap around. */
    COMBINE(INT32, uint32_t)
    COMBINE(UINT32, uint32_t)
    COMBINE(INT64, uint64_t)
    COMBINE(UINT64, uint64_t)
    COMBINE(FLOAT16, _Float16)
    COMBINE(FLOAT32, float)
    COMBINE(FLOAT64, double)
    case BFLOAT16: {
      uint16_t *a = (uint16_t *)into;
      const uint16_t *b = (const uint16_t *)from;
      for (size_t i = 0; i < count; ++i) a[i] = narrow(COMBINED(widen(a[i]), widen(b[i])));
      break;
    }
  }
}

/* ---- collectives ---- */

/* The reduction over all ranks. */
static char *reduced(const Meeting *meeting, int ranks, size_t count) {
  const Work *work = meeting->work;
  char *sum = new(count * widths[work->type] + 1);
  memcpy(sum, work->send, count * widths[work->type]);
  for (int rank = 1; rank < ranks; ++rank)
    combine(sum, work[rank].send, count, work->type, work->operation);
  return sum;
}

static void perform(const Meeting *meeting, int ranks) {
  const Work *work = meeting->work;
  size_t bytes = work->count * widths[work->type];
  char *all = NULL;
  switch (work->kind) {
    case ALL_REDUCE:
      all = reduced(meeting, ranks, work->count);
      for (int rank = 0; rank < ranks; ++rank) memcpy(work[rank].receive, all, bytes);
      break;
    case REDUCE_SCATTER:
      all = reduced(meeting, ranks, work->count * (size_t)ranks);
      for (int rank = 0; rank < ranks; ++rank)
        memcpy(work[rank].receive, all + (size_t)rank * bytes, bytes);
      break;
    case ALL_GATHER:
      all = new(bytes * (size_t)ranks + 1);
      for (int rank = 0; rank < ranks; ++rank)
        memcpy(all + (size_t)rank * bytes, work[rank].send, bytes);
      for (int rank = 0; rank < ranks; ++rank)
        memcpy(work[rank].receive, all, bytes * (size_t)ranks);
      break;
    case ALL_TO_ALL:
      all = new(bytes * (size_t)ranks * (size_t)ranks + 1);
      for (int from = 0; from < ranks; ++from)
        memcpy(all + (size_t)from * bytes * (size_t)ranks, work[from].send, bytes * (size_t)ranks);
      for (int from = 0; from < ranks; ++from)
        for (int to = 0; to < ranks; ++to)
          memcpy(work[to].receive + (size_t)from * bytes,
                 all + ((size_t)from * (size_t)ranks + (size_t)to) * bytes, bytes);
      break;
    case BROADCAST:
      all = new(bytes + 1);
      memcpy(all, work[work->root].send, bytes);
      for (int rank = 0; rank < ranks; ++rank) memcpy(work[rank].receive, all, bytes);
      break;
  }
  free(all);
}

static Meeting *find_meeting(Clique *clique, long number) {
  Meeting *meeting = clique->meetings;
  while (meeting && meeting->number != number) meeting = meeting->next;
  if (meeting) return meeting;
  meeting = new(sizeof *meeting);
  meeting->number = number;
  meeting->next = clique->meetings;
  clique->meetings = meeting;
  return meeting;
}

static void end_meeting(Clique *clique, Meeting *meeting) {
  Meeting **place = &clique->meetings;
  while (*place != meeting) place = &(*place)->next;
  *place = meeting->next;
  free(meeting);
}

typedef struct {
  Communicator *communicator;
  Work work;
} Collective;

static void take_part(void *data) {
  Collective *collective = data;
  Clique *clique = collective->communicator->clique;
  pthread_mutex_lock(&nccl_lock);
  Meeting *meeting = find_meeting(clique, collective->communicator->collectives++);
  meeting->work[collective->communicator->rank] = collective->work;
  if (++meeting->arrived == clique->size) {
    perform(meeting, clique->size);
    meeting->done = true;
    pthread_cond_broadcast(&nccl_change);
  }
  while (!meeting->done) pthread_cond_wait(&nccl_change, &nccl_lock);
  if (++meeting->left == clique->size) end_meeting(clique, meeting);
  pthread_mutex_unlock(&nccl_lock);
  free(collective);
}

static NcclResult check_memory(const void *address, size_t bytes, int device, const char *what) {
  lock();
  CUresult status = memory_check(address, bytes, device, false, what);
  unlock();
  return status ? NCCL_INVALID_ARGUMENT : NCCL_SUCCESS;
}

static NcclResult check_types(int type, int operation) {
  if (type < 0 || type >= TYPES || operation < 0 || operation >= OPERATIONS) {
    fail(CUDA_ERROR_NOT_SUPPORTED, "type %d or operation %d is not implemented", type, operation);
    return NCCL_INVALID_ARGUMENT;
  }
  return NCCL_SUCCESS;
}

static NcclResult submit(const char *call, Communicator *communicator, Work work, size_t sent,
                         size_t received, CUstream stream) {
  name_call(call);
  TRY(check_types(work.type, work.operation));
  size_t width = widths[work.type];
  bool sends = work.kind != BROADCAST || communicator->rank == work.root;
  if (sends) TRY(check_memory(work.send, sent * width, communicator->device, "what is sent"));
  TRY(check_memory(work.receive, received * width, communicator->device, "what is received"));
  Collective *collective = new(sizeof *collective);
  *collective = (Collective){communicator, work};
  return cuLaunchHostFunc(stream, take_part, collective) ? NCCL_ERROR : NCCL_SUCCESS;
}

NCCL_API ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation,
                       Communicator *communicator, CUstream stream) {
  Work work = {ALL_REDUCE, type, operation, 0, send, receive, count};
  return submit(__func__, communicator, work, count, count, stream);
}

NCCL_API ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation,
                           Communicator *communicator, CUstream stream) {
  Work work = {REDUCE_SCATTER, type, operation, 0, send, receive, count};
  size_t ranks = (size_t)communicator->clique->size;
  return submit(__func__, communicator, work, count * ranks, count, stream);
}

NCCL_API ncclAllGather(const void *send, void *receive, size_t count, int type,
                       Communicator *communicator, CUstream stream) {
  Work work = {ALL_GATHER, type, SUM, 0, send, receive, count};
  size_t ranks = (size_t)communicator->clique->size;
  return submit(__func__, communicator, work, count, count * ranks, stream);
}

NCCL_API ncclAlltoAll(const void *send, void *receive, size_t count, int type,
                      Communicator *communicator, CUstream stream) {
  Work work = {ALL_TO_ALL, type, SUM, 0, send, receive, count};
  size_t all = count * (size_t)communicator->clique->size;
  return submit(__func__, communicator, work, all, all, stream);
}

NCCL_API ncclBroadcast(const void *send, void *receive, size_t count, int type, int root,
                       Communicator *communicator, CUstream stream) {
  Work work = {BROADCAST, type, SUM, root, send, receive, count};
  return submit(__func__, communicator, work, count, count, stream);
}

/* ---- from one rank to another ---- */

typedef struct {
  Clique *clique;
  int from, to;
  char *bytes;
  size_t size;
} Transfer;

static void send_parcel(void *data) {
  Transfer *transfer = data;
  Parcel *parcel = new(sizeof *parcel);
  *parcel = (Parcel){.from = transfer->from, .to = transfer->to, .size = transfer->size,
                     .bytes = new(transfer->size + 1)};
  memcpy(parcel->bytes, transfer->bytes, transfer->size);
  pthread_mutex_lock(&nccl_lock);
  Parcel **end = &transfer->clique->parcels;
  while (*end) end = &(*end)->next;
  *end = parcel;
  pthread_cond_broadcast(&nccl_change);
  pthread_mutex_unlock(&nccl_lock);
  free(transfer);
}

static Parcel **find_parcel(Transfer *transfer) {
  Parcel **place = &transfer->clique->parcels;
  while (*place && ((*place)->from != transfer->from || (*place)->to != transfer->to))
    place = &(*place)->next;
  return place;
}

static void receive_parcel(void *data) {
  Transfer *transfer = data;
  pthread_mutex_lock(&nccl_lock);
  while (!*find_parcel(transfer)) pthread_cond_wait(&nccl_change, &nccl_lock);
  Parcel **place = find_parcel(transfer), *parcel = *place;
  *place = parcel->next;
  pthread_mutex_unlock(&nccl_lock);
  size_t size = parcel->size < transfer->size ? parcel->size : transfer->size;
  memcpy(transfer->bytes, parcel->bytes, size);
  free(parcel->bytes);
  free(parcel);
  free(transfer);
}

static NcclResult submit_transfer(const char *call, CUhostFn function, Communicator *communicator,
                                  int from, int to, const void *bytes, size_t count, int type,
                                  CUstream stream) {
  name_call(call);
  TRY(check_types(type, SUM));
  size_t size = count * widths[type];
  TRY(check_memory(bytes, size, communicator->device, "the buffer"));
  Transfer *transfer = new(sizeof *transfer);
  *transfer = (Transfer){communicator->clique, from, to, (char *)bytes, size};
  return cuLaunchHostFunc(stream, function, transfer) ? NCCL_ERROR : NCCL_SUCCESS;
}

NCCL_API ncclSend(const void *bytes, size_t count, int type, int peer, Communicator *communicator,
                  CUstream stream) {
  return submit_transfer(__func__, send_parcel, communicator, communicator->rank, peer, bytes,
                         count, type, stream);
}

NCCL_API ncclRecv(void *bytes, size_t count, int type, int peer, Communicator *communicator,
                  CUstream stream) {
  return submit_transfer(__func__, receive_parcel, communicator, peer, communicator->rank, bytes,
                         count, type, stream);
}

/* ---- communicators ---- */

NCCL_API ncclGetUniqueId(UniqueId *id) {
  memset(id, 0, sizeof *id);
  pthread_mutex_lock(&nccl_lock);
  ++last_id;
  memcpy(id->bytes, &last_id, sizeof last_id);
  pthread_mutex_unlock(&nccl_lock);
  return NCCL_SUCCESS;
}

static NcclResult join(const char *call, Communicator **made, int size, const UniqueId *id,
                       int rank) {
  name_call(call);
  uint64_t number;
  CUdevice device;
  memcpy(&number, id->bytes, sizeof number);
  if (cuCtxGetDevice(&device)) return NCCL_ERROR;
  if (size > MAX_DEVICES || rank < 0 || rank >= size) {
    fail(CUDA_ERROR_INVALID_VALUE, "rank %d of %d", rank, size);
    return NCCL_INVALID_ARGUMENT;
  }
  pthread_mutex_lock(&nccl_lock);
  Clique *clique = cliques;
  while (clique && clique->id != number) clique = clique->next;
  if (!clique) {
    clique = new(sizeof *clique);
    *clique = (Clique){.next = cliques, .id = number, .size = size};
    cliques = clique;
  }
  pthread_mutex_unlock(&nccl_lock);
  *made = new(sizeof **made);
  **made = (Communicator){.clique = clique, .rank = rank, .device = device};
  return NCCL_SUCCESS;
}

NCCL_API ncclCommInitRank(Communicator **communicator, int size, UniqueId id, int rank) {
  return join(__func__, communicator, size, &id, rank);
}

NCCL_API ncclCommInitRankConfig(Communicator **communicator, int size, UniqueId id, int rank,
                                const void *config) {
  (void)config;
  return join(__func__, communicator, size, &id, rank);
}

NCCL_API ncclCommInitRankScalable(Communicator **communicator, int size, int rank, int id_count,
                                  const UniqueId *ids, const void *config) {
  (void)id_count, (void)config;
  return join(__func__, communicator, size, ids, rank);
}

NCCL_API ncclCommCount(const Communicator *communicator, int *count) {
  *count = communicator->clique->size;
  return NCCL_SUCCESS;
}

NCCL_API ncclCommUserRank(const Communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return NCCL_SUCCESS;
}

NCCL_API ncclCommGetAsyncError(const Communicator *communicator, NcclResult *error) {
  (void)communicator;
  *error = NCCL_SUCCESS;
  return NCCL_SUCCESS;
}

/* They stay: what has been asked for may still need them. */
NCCL_API ncclCommDestroy(Communicator *communicator) {
  (void)communicator;
  return NCCL_SUCCESS;
}
NCCL_API ncclCommAbort(Communicator *communicator) { return ncclCommDestroy(communicator); }
NCCL_API ncclCommFinalize(Communicator *communicator) { return ncclCommDestroy(communicator); }

NCCL_API ncclGroupStart(void) { return NCCL_SUCCESS; } /* no call waits for another rank */
NCCL_API ncclGroupEnd(void) { return NCCL_SUCCESS; }

NCCL_API ncclGetVersion(int *version) {
  *version = 22803;
  return NCCL_SUCCESS;
}

EXPORT const char *ncclGetErrorString(NcclResult result) {
  return result ? last_failure() : "no error";
}

EXPORT const char *ncclGetLastError(const Communicator *communicator) {
  (void)communicator;
  return last_failure();
}
