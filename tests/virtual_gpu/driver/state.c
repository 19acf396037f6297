/* The lock, waiting for what others change, and the settings. */
#include <stdlib.h>

#include "driver.h"

static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void lock(void) { pthread_mutex_lock(&state_lock); }
void unlock(void) { pthread_mutex_unlock(&state_lock); }
void wait_for_change(void) { pthread_cond_wait(&changed, &state_lock); }
void tell_change(void) { pthread_cond_broadcast(&changed); }

static long number(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtol(value, NULL, 10) : otherwise;
}

static Settings found;

static void read_settings(void) {
  long devices = number("VIRTUAL_GPU_DEVICES", 1);
  found.devices = devices < 0 ? 0 : devices > MAX_DEVICES ? MAX_DEVICES : (int)devices;
  found.memory = (size_t)number("VIRTUAL_GPU_MEMORY_MB", 2048) << 20;
  found.seed = (unsigned)number("VIRTUAL_GPU_ASYNC", 0);
  found.cuda = (int)number("VIRTUAL_GPU_CUDA", 13000);
}

const Settings *settings(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_settings);
  return &found;
}
