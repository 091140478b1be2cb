// A clock that counted work advances. It is no measurement and no model of a GPU: it gives two
// candidates of unlike work unlike times, the same ones each time, so that a search has an order.
// Counted: FLOPs of matrix products against the kind's rate in bfloat16, bytes of copies and 16 bytes
// a thread of other kernels against its bandwidth, 4 us a launch. Streams run one after another.
#include "device.h"
#include <time.h>

static const double LAUNCH_NS = 4000;
static double done_at; // ns of CLOCK_MONOTONIC at which the work launched so far is done
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t tokens = 0x1000;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static void advance(double ns) {
  double n = now();
  pthread_mutex_lock(&lock);
  done_at = (done_at > n ? done_at : n) + ns;
  pthread_mutex_unlock(&lock);
}

void count_launch(double bytes) { advance(LAUNCH_NS + bytes / kind()->bandwidth * 1e9); }
void count_flops(double flops) { advance(LAUNCH_NS + flops / kind()->flops * 1e9); }

uint64_t device_time(void) {
  double n = now();
  pthread_mutex_lock(&lock);
  uint64_t at = done_at > n ? done_at : n;
  pthread_mutex_unlock(&lock);
  return at;
}

void wait_until(uint64_t at) {
  double left;
  while ((left = at - now()) > 0) {
    struct timespec t = {(time_t)(left / 1e9), (long)(left - (time_t)(left / 1e9) * 1e9)};
    nanosleep(&t, NULL);
  }
}

void *new_token(void) { return (void *)__sync_add_and_fetch(&tokens, 16); }
