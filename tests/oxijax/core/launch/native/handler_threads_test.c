/* The handler, called by many threads: races to resolve, growth, shutdown, fork, and a stress.
 *
 * What is counted here is counted per thread or with relaxed atomics: a test that ordered its
 * threads would hide the handler's own races from ThreadSanitizer.
 */
#include "host.h"

#define THREADS 8

static atomic_long resolved, entered;

static long add(atomic_long *counter, long amount) {
  return atomic_fetch_add_explicit(counter, amount, memory_order_relaxed) + amount;
}

static long get(atomic_long *counter) { return atomic_load_explicit(counter, memory_order_relaxed); }

static void wait_until(atomic_long *counter, long value) {
  while (get(counter) < value) sched_yield();
}

typedef void Work(int thread);

static void *start_thread(void *packed) {
  ((Work *)((void **)packed)[0])((int)(intptr_t)((void **)packed)[1]);
  return NULL;
}

static void *packed_work[THREADS][2];
static pthread_t running[THREADS];

static void start_threads(int count, Work *work) {
  for (int i = 0; i < count; ++i) {
    packed_work[i][0] = (void *)work, packed_work[i][1] = (void *)(intptr_t)i;
    CHECK(!pthread_create(&running[i], NULL, start_thread, packed_work[i]));
  }
}

static void join_threads(int count) {
  for (int i = 0; i < count; ++i) pthread_join(running[i], NULL);
}

static uint32_t random_below(uint32_t limit) { /* xorshift */
  static _Thread_local uint32_t state;
  if (!state) state = (uint32_t)(uintptr_t)&state | 1;
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state % limit;
}

/* ---- kernels: each writes what the resolver has put into its arguments ---- */

/* Parameters: the buffer to write to, the value. */
static int write_value(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z,
                       unsigned dynamic_shared, void *stream, void **parameters, void **extra) {
  oxijax_launch_nothing(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        dynamic_shared, stream, parameters, extra);
  **(uint64_t **)parameters[0] = *(uint64_t *)parameters[1];
  return 0;
}

/* The value: a number of its own for each time that the resolver was asked. */
static int resolve_to_number(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  (void)message, (void)capacity;
  *launch = (Launch){.launch = write_value, .grid = {1, 1, 1}, .argument_count = 2};
  declare_bytes(call, launch);
  launch->arguments[0].buffer = 0;
  launch->arguments[1] = (Argument){-1, (uint64_t)add(&resolved, 1)};
  return 0;
}

/* ---- cases: the table ---- */

static uint64_t written[THREADS][5000];

static pthread_barrier_t everybody;

static int resolve_together(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  pthread_barrier_wait(&everybody);
  return resolve_to_number(call, launch, message, capacity);
}

static void call_one(int thread) {
  Request request;
  make_request(&request, 1, 0, 1, 0, SHAPES(0));
  CHECK(!call(oxijax_cuda_execute, &request));
  written[thread][0] = request.memory[0][0];
}

/* All threads resolve the same call at the same time: one launch wins, for all of them. */
static void race_to_resolve(void) {
  oxijax_set_callbacks(resolve_together, NULL);
  pthread_barrier_init(&everybody, NULL, THREADS);
  start_threads(THREADS, call_one);
  join_threads(THREADS);
  CHECK(resolved == THREADS && blocks() == 2); /* the entry and the table */
  for (int i = 0; i < THREADS; ++i) CHECK(written[i][0] && written[i][0] == written[0][0]);
  call_one(0);
  CHECK(resolved == THREADS && written[0][0] == written[1][0]);
}

/* Two threads start at each of four places. */
static void call_all(int thread) {
  for (int64_t i = 0; i < 5000; ++i) {
    int64_t shape = (i + thread / 2 * 1250) % 5000;
    Request request;
    make_request(&request, 1, 0, 1, 0, SHAPES(1, shape));
    CHECK(!call(oxijax_cuda_execute, &request));
    written[thread][shape] = request.memory[0][0];
  }
}

static void growth(void) {
  oxijax_set_callbacks(resolve_to_number, NULL);
  start_threads(THREADS, call_all);
  join_threads(THREADS);
  long once = get(&resolved);
  CHECK(once >= 5000 && once <= 5000 * THREADS);
  static bool seen[5000 * THREADS + 1];
  for (int shape = 0; shape < 5000; ++shape) {
    uint64_t winner = written[0][shape];
    CHECK(winner >= 1 && winner <= (uint64_t)once && !seen[winner]);
    seen[winner] = true;
    for (int i = 1; i < THREADS; ++i) CHECK(written[i][shape] == winner);
  }
  long before = blocks();
  CHECK(before >= 5001 && before < 5020);
  start_threads(THREADS, call_all);
  join_threads(THREADS);
  CHECK(get(&resolved) == once && blocks() == before);
}

#define PUBLISHED 2000

static atomic_long published;

static void read_published(int thread) {
  for (int64_t i = 0; i < PUBLISHED; ++i) {
    Request request;
    make_request(&request, 1, 0, 1, 0, SHAPES(1, i));
    wait_until(&published, i + 1);
    CHECK(!call(oxijax_cuda_execute, &request));
    CHECK(request.memory[0][0] == (uint64_t)i + 1);
  }
  (void)thread;
}

/* Threads that have never asked the resolver use what another has put into the table: its own
 * release and acquire are all that orders them. */
static void publication(void) {
  oxijax_set_callbacks(resolve_to_number, NULL);
  start_threads(3, read_published);
  for (int64_t i = 0; i < PUBLISHED; ++i) {
    Request request;
    make_request(&request, 1, 0, 1, 0, SHAPES(1, i));
    CHECK(!call(oxijax_cuda_execute, &request));
    add(&published, 1);
  }
  join_threads(3);
  CHECK(get(&resolved) == PUBLISHED);
}

static atomic_long released;

static int resolve_slowly(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  if (call->buffer_count == 1 && call->buffers[1] == 0) {
    add(&entered, 1);
    wait_until(&released, 1);
  }
  return resolve_to_number(call, launch, message, capacity);
}

/* Neither a resolver that takes its time nor a held lock delays a call that has been resolved. */
static void takes_no_lock(void) {
  oxijax_set_callbacks(resolve_slowly, NULL);
  start_threads(1, call_one);
  wait_until(&entered, 1);
  Request request;
  make_request(&request, 1, 0, 1, 0, SHAPES(1, 5));
  CHECK(!call(oxijax_cuda_execute, &request)); /* another call can be resolved meanwhile */
  pthread_mutex_lock(&table_lock);
  CHECK(!call(oxijax_cuda_execute, &request) && get(&resolved) == 1);
  pthread_mutex_unlock(&table_lock);
  add(&released, 1);
  join_threads(1);
  CHECK(get(&resolved) == 2);
}

/* ---- cases: what was resolved is forgotten ---- */

enum { FORGETTING_THREADS = 4, FORGETTING_CALLS = 20000, FORGETTING_SHAPES = 20 };

static atomic_long oldest; /* launches with smaller numbers are gone */
static atomic_long over;

/* In Python, as far as the handler knows; parameters: the buffer to write to, the number. */
static int write_or_forgotten(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned dynamic_shared, void *stream, void **parameters,
                              void **extra) {
  bool gone = (long)*(uint64_t *)parameters[1] < get(&oldest);
  *(int *)extra = gone ? FORGOTTEN : LAUNCHED;
  if (gone) return 0;
  write_value(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared, stream,
              parameters, extra);
  return 0;
}

static int resolve_to_forget(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  int status = resolve_to_number(call, launch, message, capacity);
  if (!random_below(4)) sched_yield(); /* so that it may be forgotten before it is in the table */
  launch->launch = write_or_forgotten, launch->in_python = 1;
  return status;
}

static void call_while_forgetting(int thread) {
  for (int i = 0; i < FORGETTING_CALLS; ++i) {
    long before = get(&oldest);
    Request request;
    make_request(&request, 1, 0, 1, 0, SHAPES(1, random_below(FORGETTING_SHAPES)));
    CHECK(!call(thread % 2 ? oxijax_host_execute : oxijax_cuda_execute, &request));
    CHECK((long)request.memory[0][0] >= before); /* was not gone when the call began */
  }
  add(&over, 1);
}

/* As Python does it: what is known, then the table is forgotten, then what was known is dropped. */
static void forget_all(void) {
  long known = get(&resolved);
  oxijax_forget();
  atomic_store_explicit(&oldest, known + 1, memory_order_relaxed);
}

static void forget_while_calling(void) {
  oxijax_set_callbacks(resolve_to_forget, NULL);
  start_threads(FORGETTING_THREADS, call_while_forgetting);
  while (get(&over) < FORGETTING_THREADS) {
    forget_all();
    for (volatile uint32_t i = random_below(20000); i; --i) continue;
  }
  join_threads(FORGETTING_THREADS);
  forget_all();
  long before = get(&resolved);
  for (int i = 0; i < 3; ++i) call_one(0); /* asks once, and finds it then */
  CHECK(get(&resolved) == before + 1);
}

/* ---- cases: shutdown and fork ---- */

/* `function` is NULL where the launch is native. */
static int wait_in_python(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned dynamic_shared, void *stream, void **parameters, void **extra) {
  oxijax_launch_nothing(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        dynamic_shared, stream, parameters, extra);
  add(&entered, 1);
  wait_until(&released, 1);
  if (function) *(int *)extra = LAUNCHED;
  return 0;
}

/* Keys 0 and 1: a native launch and one in Python, both of which wait. Other keys do not. */
static int resolve_to_wait(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  (void)message, (void)capacity;
  bool waits = call->spec_size == 6 && call->spec[5] <= '1';
  *launch = (Launch){.launch = waits ? wait_in_python : oxijax_launch_nothing, .grid = {1, 1, 1}};
  declare_bytes(call, launch);
  launch->in_python = waits && call->spec[5] == '1';
  launch->function = launch->in_python ? (void *)&released : NULL;
  return 0;
}

static void call_and_wait(int thread) {
  Request request;
  bool in_python = thread < 3; /* of five */
  make_request(&request, in_python, 0, 1, 0, SHAPES(0));
  CHECK(!call(in_python ? oxijax_host_execute : oxijax_cuda_execute, &request));
}

static void shut_down_counts(void) {
  oxijax_set_callbacks(resolve_to_wait, NULL);
  Request request;
  make_request(&request, 9, 0, 1, 0, SHAPES(0));
  CHECK(!call(oxijax_cuda_execute, &request));
  start_threads(5, call_and_wait);
  wait_until(&entered, 5);
  for (int i = 0; i < 2; ++i) {
    CHECK(oxijax_shut_down() == 3);
    make_request(&request, 1, 0, 1, 0, SHAPES(0)); /* does not enter Python, nor wait there */
    CHECK(!call(oxijax_host_execute, &request) && get(&entered) == 5);
    make_request(&request, 2, 0, 1, 0, SHAPES(0)); /* asks nobody */
    CHECK(says(call(oxijax_cuda_execute, &request), "interpreter is shutting down"));
    make_request(&request, 9, 0, 1, 0, SHAPES(0)); /* needs no Python */
    CHECK(!call(oxijax_cuda_execute, &request));
  }
  add(&released, 1);
  join_threads(5);
  CHECK(oxijax_shut_down() == 0);
}

static bool is_refused(int64_t key) {
  Request request;
  make_request(&request, key, 0, 1, 0, SHAPES(0));
  return says(call(oxijax_cuda_execute, &request), "forked after its parent") &&
         says(call(oxijax_cuda_initialize, &request), "'spawn' or 'forkserver'") &&
         says(call(oxijax_host_execute, &request), "forked after its parent");
}

static void in_child(void) {
  alarm(20);
  oxijax_after_fork();
  /* The lock may be held by a thread that the child does not have. */
  for (int64_t key = 0; key < 10; ++key) CHECK(is_refused(key));
  CHECK(oxijax_shut_down() == 0); /* nor are there threads to wait for */
  CHECK(is_refused(1) && atomic_load(&errors_alive) == 0);
  _exit(43);
}

static void fork_while_launching(void) {
  oxijax_set_callbacks(resolve_to_wait, NULL);
  start_threads(5, call_and_wait);
  wait_until(&entered, 5);
  pthread_mutex_lock(&table_lock);
  pid_t child = fork();
  if (!child) in_child();
  pthread_mutex_unlock(&table_lock);
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 43);
  add(&released, 1);
  join_threads(5);
  Request request;
  for (int64_t key = 0; key < 10; ++key) { /* the parent goes on */
    make_request(&request, key, 0, 1, 0, SHAPES(0));
    CHECK(!call(oxijax_cuda_execute, &request));
  }
}

static int interpreter_alive; /* not atomic: ThreadSanitizer reports an access after the end */

static int need_interpreter(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned dynamic_shared, void *stream, void **parameters,
                            void **extra) {
  CHECK(interpreter_alive);
  oxijax_launch_nothing(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        dynamic_shared, stream, parameters, extra);
  CHECK(interpreter_alive);
  *(int *)extra = LAUNCHED;
  return 0;
}

static int resolve_in_interpreter(const Call *call, Launch *launch, char *message,
                                  uint64_t capacity) {
  CHECK(interpreter_alive);
  int status = resolve_to_wait(call, launch, message, capacity);
  launch->launch = need_interpreter, launch->in_python = 1;
  CHECK(interpreter_alive);
  return status;
}

enum { ROUNDS = 10000, SECONDS = 2 }; /* whichever comes first: on a busy machine, the seconds */

static bool last_round_is_over; /* ordered by the barrier */

/* Half of the threads launch in Python, in host memory; the others resolve, for a GPU. */
static void call_until_the_end(int thread) {
  Request request;
  int64_t shape = thread;
  for (;;) {
    pthread_barrier_wait(&everybody);
    if (last_round_is_over) return;
    for (bool ended = false; !ended;) {
      if (thread % 2 || !random_below(16)) shape += THREADS;
      make_request(&request, 5, 0, 1, 1, SHAPES(1, shape % 4096, 0));
      const char *message = call(thread % 2 ? oxijax_cuda_initialize : oxijax_host_execute, &request);
      CHECK(!message || (thread % 2 && strstr(message, "interpreter is shutting down")));
      ended = message || request.memory[1][0] == UINT64_MAX;
      ended |= thread % 2 && shape / 4096; /* by then all are resolved */
      if (!random_below(16)) sched_yield();
    }
    pthread_barrier_wait(&everybody);
  }
}

/* Once oxijax_shut_down has returned 0, nothing uses the interpreter any more. */
static void shut_down_is_final(void) {
  oxijax_set_callbacks(resolve_in_interpreter, NULL);
  pthread_barrier_init(&everybody, NULL, 5);
  start_threads(4, call_until_the_end);
  time_t start = time(NULL);
  for (int round = 0; round < ROUNDS && time(NULL) - start <= SECONDS; ++round) {
    interpreter_alive = 1;
    atomic_store(&shutting_down, false);
    pthread_barrier_wait(&everybody);
    for (volatile uint32_t i = random_below(5000); i; --i) continue;
    while (oxijax_shut_down()) sched_yield();
    interpreter_alive = 0;
    pthread_barrier_wait(&everybody);
  }
  last_round_is_over = true;
  pthread_barrier_wait(&everybody);
  join_threads(4);
}

/* ---- cases: everything at once ---- */

enum { STRESS_CALLS = 40000, STRESS_SHAPES = 300 };

static atomic_long stress_calls;
static bool stress_shuts_down;

static uint64_t stress_value(int64_t key, int64_t device, int64_t shape) {
  return (uint64_t)((key * 10 + device + 1) * 100000 + shape);
}

static int stress_kernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned dynamic_shared, void *stream, void **parameters, void **extra) {
  bool in_python = stream == NULL;
  CHECK(!in_python || interpreter_alive);
  write_value(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared, stream,
              parameters, extra);
  CHECK(!in_python || interpreter_alive);
  int status = random_below(16) ? 0 : 700;
  if (in_python) *(int *)extra = status ? status : LAUNCHED;
  return status;
}

/* In host memory a call is launched in Python, on a device natively. */
static int stress_resolve(const Call *call, Launch *launch, char *message, uint64_t capacity) {
  CHECK(interpreter_alive);
  CHECK(call->buffer_count == 2 && call->buffers[1] == 1 && call->spec_size == strlen("spec 0"));
  if (!random_below(4)) {
    snprintf(message, capacity, "not now: %lld", (long long)call->buffers[2]);
    return 1;
  }
  *launch = (Launch){.launch = stress_kernel, .grid = {1, 1, 1}, .argument_count = 2};
  declare_bytes(call, launch);
  launch->id = stress_value(call->spec[5] - '0', call->device, call->buffers[2]);
  launch->in_python = call->device < 0;
  launch->arguments[0].buffer = 1;
  launch->arguments[1] = (Argument){-1, launch->id};
  return 0;
}

static void stress_describe(uint64_t id, int status, char *message, uint64_t capacity) {
  CHECK(interpreter_alive);
  snprintf(message, capacity, "failed: %llu with %d", (unsigned long long)id, status);
}

static void stress_thread(int thread) {
  bool ended = false;
  for (int i = 0; i < STRESS_CALLS; ++i) {
    int64_t key = random_below(2), device = (int64_t)random_below(4) - 1;
    int64_t shape = random_below(STRESS_SHAPES);
    uint64_t expected = stress_value(key, device, shape);
    Request request;
    make_request(&request, key, (int32_t)device, 1, 1, SHAPES(1, shape, 0));
    if (!random_below(64)) allocations_left = random_below(3);
    const char *message = call(device < 0 ? oxijax_host_execute : oxijax_cuda_execute, &request);
    bool starved = allocations_left < 0 && says(message, "memory");
    allocations_left = -1;
    char failed[64], not_now[64];
    snprintf(failed, sizeof failed, "failed: %llu with 700", (unsigned long long)expected);
    snprintf(not_now, sizeof not_now, "not now: %lld", (long long)shape);
    uint64_t result = request.memory[1][0];
    if (!message) {
      CHECK(result == expected || (result == UINT64_MAX && device < 0 && stress_shuts_down));
      CHECK(!ended || device >= 0 || result == UINT64_MAX); /* from then on, all in host memory */
      ended |= result == UINT64_MAX;
    } else if (!strcmp(message, failed)) {
      CHECK(result == expected && !ended);
    } else if (!strcmp(message, not_now)) {
      CHECK(!result && !ended);
    } else if (says(message, "interpreter is shutting down")) {
      CHECK(device >= 0 && stress_shuts_down && (!result || result == expected));
      ended = true;
    } else {
      CHECK(starved && (!result || result == expected));
    }
    add(&stress_calls, 1);
  }
  CHECK(ended == stress_shuts_down);
  (void)thread;
}

static void stress(void) {
  oxijax_set_callbacks(stress_resolve, stress_describe);
  interpreter_alive = 1;
  start_threads(THREADS, stress_thread);
  if (stress_shuts_down) {
    wait_until(&stress_calls, THREADS * STRESS_CALLS / 20);
    while (oxijax_shut_down()) sched_yield();
    interpreter_alive = 0;
  }
  join_threads(THREADS);
  CHECK(stress_calls == THREADS * STRESS_CALLS);
  long entries = 2 * 4 * STRESS_SHAPES;
  CHECK(stress_shuts_down ? blocks() > 10 : blocks() > entries && blocks() < entries + 20);
}

static void stress_with_shut_down(void) {
  stress_shuts_down = true;
  stress();
}

int main(int argc, char **argv) {
  static const Case cases[] = {
      {"race_to_resolve", race_to_resolve},
      {"growth", growth},
      {"publication", publication},
      {"takes_no_lock", takes_no_lock},
      {"forget_while_calling", forget_while_calling},
      {"shut_down_counts", shut_down_counts},
      {"fork_while_launching", fork_while_launching},
      {"shut_down_is_final", shut_down_is_final},
      {"stress", stress},
      {"stress_with_shut_down", stress_with_shut_down},
  };
  return run_case(argc, argv, cases, sizeof cases / sizeof *cases);
}
