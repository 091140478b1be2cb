/* Counts what torch's CPU allocator has given out, in all threads of a process.

   torch's profiler does not see what gloo's threads free: a tensor whose last owner is a finished
   collective would count for ever. Loaded with LD_PRELOAD; counted is what libc10.so asks of
   posix_memalign. A hash table of addresses, open addressing, one lock.

   gloo's thread lets go of a finished collective's tensors a moment after the waiting thread has
   gone on; on a busy core that moment is long. So a new peak is noted after a pause in which that
   thread can run: what a rank takes then does not depend on who was first.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define PAUSE_US 3000

extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *address);

#define SLOTS (1u << 20)
static void *addresses[SLOTS];
static size_t sizes[SLOTS];
static void *const gone = (void *)1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t live, peak, noted;
static int training;

static unsigned slot_of(void *address) {
    uint64_t mixed = (uint64_t)(uintptr_t)address * 0x9E3779B97F4A7C15ull;
    return (unsigned)(mixed >> 44) & (SLOTS - 1);
}

static int asked_by_torch(void *caller) {
    static void *base;
    Dl_info found;
    if (!dladdr(caller, &found) || !found.dli_fname) return 0;
    if (base) return found.dli_fbase == base;
    if (!strstr(found.dli_fname, "libc10.so")) return 0;
    base = found.dli_fbase;
    return 1;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    void *made = __libc_memalign(alignment, size);
    if (!made) return ENOMEM;
    *out = made;
    if (!asked_by_torch(__builtin_return_address(0))) return 0;
    pthread_mutex_lock(&lock);
    int pauses = training && live + size > peak;
    pthread_mutex_unlock(&lock);
    if (pauses) usleep(PAUSE_US);
    pthread_mutex_lock(&lock);
    unsigned slot = slot_of(made);
    while (addresses[slot] && addresses[slot] != gone) slot = (slot + 1) & (SLOTS - 1);
    addresses[slot] = made;
    sizes[slot] = size;
    live += size;
    noted++;
    if (live > peak) peak = live;
    pthread_mutex_unlock(&lock);
    return 0;
}

void free(void *address) {
    if (address && ((uintptr_t)address & 63) == 0) {
        pthread_mutex_lock(&lock);
        unsigned slot = slot_of(address);
        while (addresses[slot]) {
            if (addresses[slot] == address) {
                addresses[slot] = gone;
                live -= sizes[slot];
                break;
            }
            slot = (slot + 1) & (SLOTS - 1);
        }
        pthread_mutex_unlock(&lock);
    }
    __libc_free(address);
}

/* The peak since the last call; from here on a new one begins. */
size_t autotune_peak_bytes(void) {
    pthread_mutex_lock(&lock);
    size_t found = peak;
    peak = live;
    training = 1;
    pthread_mutex_unlock(&lock);
    return found;
}

/* How many allocations were counted: 0 means that none of torch's came by. */
size_t autotune_allocations(void) { return noted; }
