/* The lock, waiting for what others change, and the settings. */
#include <stdlib.h>

#include "driver.h"

static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void lock(void) { pthread_mutex_lock(&state_lock); }
void unlock(void) { pthread_mutex_unlock(&state_lock); }
void wait_for_change(void) { pthread_cond_wait(&changed, &state_lock); }
void tell_change(void) { pthread_cond_broadcast(&changed); }

long setting(const char *name, long otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtol(value, NULL, 10) : otherwise;
}
