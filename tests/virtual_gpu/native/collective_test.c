/* NCCL's collectives between two devices of one process. */
#include "cases.h"

typedef struct Communicator Communicator;
typedef struct { char bytes[128]; } UniqueId;
enum { RANKS = 2, INT32 = 2, BFLOAT16 = 9, SUM = 0, MAXIMUM = 2, INVALID_ARGUMENT = 4 };

int ncclGetUniqueId(UniqueId *id);
int ncclCommInitRank(Communicator **communicator, int size, UniqueId id, int rank);
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation,
                  Communicator *communicator, CUstream stream);
int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation,
                      Communicator *communicator, CUstream stream);
int ncclAllGather(const void *send, void *receive, size_t count, int type,
                  Communicator *communicator, CUstream stream);
int ncclAlltoAll(const void *send, void *receive, size_t count, int type,
                 Communicator *communicator, CUstream stream);
int ncclSend(const void *bytes, size_t count, int type, int peer, Communicator *communicator,
             CUstream stream);
int ncclRecv(void *bytes, size_t count, int type, int peer, Communicator *communicator,
             CUstream stream);

static Communicator *communicators[RANKS];
static CUstream streams[RANKS];
static CUdeviceptr from[RANKS], to[RANKS];

/* Two ranks: rank r has the ints 10r and 10r + 1 in `from`, and room for four in `to`. */
static void start_ranks(void) {
  UniqueId id;
  start(RANKS);
  CHECK(!ncclGetUniqueId(&id));
  for (int rank = 0; rank < RANKS; ++rank) {
    enter(rank);
    CHECK(!ncclCommInitRank(&communicators[rank], RANKS, id, rank));
    streams[rank] = stream_new_nonblocking();
    from[rank] = allocate(8);
    to[rank] = allocate(16);
    for (int i = 0; i < 2; ++i)
      OK(cuMemsetD32Async(from[rank] + 4 * i, (unsigned)(10 * rank + i), 1, streams[rank]));
  }
}

static int result(int rank, int index) {
  enter(rank);
  OK(cuStreamSynchronize(streams[rank]));
  return value_at(to[rank] + 4 * (unsigned)index);
}

static void ranks_reduce(void) {
  start_ranks();
  for (int rank = 0; rank < RANKS; ++rank) {
    enter(rank);
    CHECK(!ncclAllReduce((void *)from[rank], (void *)to[rank], 2, INT32, SUM,
                         communicators[rank], streams[rank]));
    CHECK(!ncclReduceScatter((void *)from[rank], (void *)(to[rank] + 8), 1, INT32, MAXIMUM,
                             communicators[rank], streams[rank]));
  }
  for (int rank = 0; rank < RANKS; ++rank) {
    CHECK(result(rank, 0) == 10);
    CHECK(result(rank, 1) == 12);
    CHECK(result(rank, 2) == 10 + rank);
  }
}

static void ranks_exchange(void) {
  start_ranks();
  for (int rank = 0; rank < RANKS; ++rank) {
    enter(rank);
    CHECK(!ncclAlltoAll((void *)from[rank], (void *)to[rank], 1, INT32, communicators[rank],
                        streams[rank]));
    CHECK(!ncclSend((void *)from[rank], 1, INT32, 1 - rank, communicators[rank], streams[rank]));
    CHECK(!ncclRecv((void *)(to[rank] + 8), 1, INT32, 1 - rank, communicators[rank],
                    streams[rank]));
  }
  for (int rank = 0; rank < RANKS; ++rank) {
    CHECK(result(rank, 0) == rank);
    CHECK(result(rank, 1) == 10 + rank);
    CHECK(result(rank, 2) == 10 * (1 - rank));
  }
}

static void a_collective_is_in_the_order_of_its_stream(void) {
  start_ranks();
  enter(0);
  close_gate(streams[0]);
  for (int rank = 0; rank < RANKS; ++rank) {
    enter(rank);
    CHECK(!ncclAllGather((void *)from[rank], (void *)to[rank], 2, INT32, communicators[rank],
                         streams[rank]));
    CHECK(cuStreamQuery(streams[rank]) == CUDA_ERROR_NOT_READY);
  }
  open_gate();
  for (int rank = 0; rank < RANKS; ++rank)
    for (int i = 0; i < 4; ++i) CHECK(result(rank, i) == 10 * (i / 2) + i % 2);
}

static void a_collective_stays_inside_its_memory(void) {
  start_ranks();
  enter(0);
  int status = ncclAllReduce((void *)from[0], (void *)to[0], 3, INT32, SUM, communicators[0],
                             streams[0]);
  CHECK(status == INVALID_ARGUMENT);
  CHECK(strstr(virtual_gpu_last_failure(), "ncclAllReduce: what is sent, 12 bytes"));
  status = ncclAllReduce((void *)from[1], (void *)to[0], 2, INT32, SUM, communicators[0],
                         streams[0]);
  CHECK(status == INVALID_ARGUMENT);
  CHECK(strstr(virtual_gpu_last_failure(), "memory of device 1, to which device 0"));
}

static void bfloat16_is_rounded(void) {
  start_ranks();
  for (int rank = 0; rank < RANKS; ++rank) {
    enter(rank);
    /* 1 and 2^-8: half of the last place of 1, which goes to even; 1.0078125 and the same: up */
    unsigned value = rank ? 0x3B803B80 : 0x3F813F80;
    OK(cuMemsetD32Async(from[rank], value, 1, streams[rank]));
    CHECK(!ncclAllReduce((void *)from[rank], (void *)to[rank], 2, BFLOAT16, SUM,
                         communicators[rank], streams[rank]));
  }
  for (int rank = 0; rank < RANKS; ++rank) CHECK(result(rank, 0) == 0x3F823F80);
}

#define CASE(name) {#name, name}
const Case collective_cases[] = {
    CASE(ranks_reduce),
    CASE(ranks_exchange),
    CASE(a_collective_is_in_the_order_of_its_stream),
    CASE(a_collective_stays_inside_its_memory),
    CASE(bfloat16_is_rounded),
    {0},
};
