/* Cases that must fail: they show that the checks and the sanitizers are awake. */
#include <limits.h>
#include <pthread.h>

#include "cases.h"

static int number;

static void *count(void *unused) {
  ++number;
  return unused;
}

static void canary_race(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) CHECK(!pthread_create(&threads[i], NULL, count, NULL));
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
}

static void canary_leak(void) {
  char *volatile block = malloc(11);
  block[0] = 1;
  block = NULL;
}

static void canary_overflow(void) {
  volatile char *volatile block = malloc(11);
  volatile int index = 11;
  block[index] = 1;
  free((void *)block);
}

static void canary_undefined(void) {
  volatile int most = INT_MAX;
  most = most + 1;
}

static void canary_check(void) { CHECK(number == 1); }

static void canary_success(void) {
  start(1);
  OK(cuMemFree(1));
}

static void canary_failure(void) {
  start(1);
  FAILS(CUDA_ERROR_INVALID_VALUE, "another reason", cuMemFree(1));
}

const Case sanitizer_cases[] = {
    {"canary_race", canary_race},           {"canary_leak", canary_leak},
    {"canary_overflow", canary_overflow},   {"canary_undefined", canary_undefined},
    {"canary_check", canary_check},         {"canary_success", canary_success},
    {"canary_failure", canary_failure},     {0},
};
