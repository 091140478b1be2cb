// Memory of the runtime and the driver. A block is address space that nothing fills until somebody
// writes a small value into it, so a small machine holds a large GPU. Addresses are never used twice.
#include "device.h"
#include <sys/mman.h>

__thread int current_device, last_error;
static const size_t ARENA = (size_t)64 << 40, GRANULE = 2u << 20;
static char *arena, *next_address;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct { char *start; size_t bytes; int device; } Block; // bytes 0: freed
static Block *blocks; // by address
static size_t block_count, block_room;

static void begin(void) {
  if (arena) return;
  arena = next_address = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) { perror("virtual_gpu: no address space"); abort(); }
}

int is_on_device(const void *p) { return arena && (char *)p >= arena && (char *)p < arena + ARENA; }

static char *reserve(size_t n) {
  char *p = next_address;
  next_address += round_up(n, GRANULE) + GRANULE;
  return p;
}

static int back(char *p, size_t n) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(p, n, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}

static void drop(char *p, size_t n) {
  mmap(p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void note_block(char *start, size_t n, int device) {
  if (block_count == block_room) {
    size_t kept = 0;
    for (size_t i = 0; i < block_count; i++)
      if (blocks[i].bytes) blocks[kept++] = blocks[i];
    block_count = kept;
    if (2 * kept >= block_room) blocks = realloc(blocks, (block_room = 2 * block_room + 1024) * sizeof *blocks);
  }
  blocks[block_count++] = (Block){start, n, device};
}

static Block *block_of(const void *p) { // the last one that starts at or before p
  size_t low = 0, high = block_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].start <= (char *)p) low = middle + 1;
    else high = middle;
  }
  return low ? &blocks[low - 1] : NULL;
}

int cudaMalloc(void **out, size_t n) {
  size_t rounded = round_up(n ? n : 1, GRANULE);
  pthread_mutex_lock(&lock);
  begin();
  int device = physical(current_device), error = take_bytes(device, rounded);
  if (!error) {
    char *p = reserve(rounded);
    error = back(p, rounded);
    if (!error) { note_block(p, rounded, device); *out = p; }
  }
  pthread_mutex_unlock(&lock);
  return last_error = error;
}

int cudaFree(void *p) {
  if (!p) return SUCCESS;
  pthread_mutex_lock(&lock);
  Block *b = block_of(p);
  if (b && b->start == p && b->bytes) {
    give_bytes(b->device, b->bytes);
    drop(b->start, b->bytes);
    b->bytes = 0;
  }
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int cudaMallocAsync(void **out, size_t n, void *stream) { return cudaMalloc(out, n); }
int cudaFreeAsync(void *p, void *stream) { return cudaFree(p); }
int cudaMallocManaged(void **out, size_t n, unsigned flags) { return cudaMalloc(out, n); } // paged optimizers
int cudaMemPrefetchAsync(void) { return SUCCESS; }

int cudaMemGetInfo(size_t *free_, size_t *total) {
  int device = physical(current_device);
  begin_context(device);
  size_t held = held_bytes(device);
  *total = kind()->total;
  *free_ = held < *total ? *total - held : 0;
  return SUCCESS;
}

// -- copies: small ones are real. What comes back to the host has waited for the device.

static void zero(char *p, size_t n) { // whole pages are given back: they are zeros, and take no memory, until written
  char *first = (char *)round_up((size_t)p, 4096), *last = (char *)((size_t)(p + n) & ~(size_t)4095);
  if (first >= last || madvise(first, last - first, MADV_DONTNEED)) { memset(p, 0, n); return; }
  memset(p, 0, first - p);
  memset(last, 0, p + n - last);
}

int backward_passes; // that run now (site/virtual_values.py): nothing in them is computed, gradients are what lay there

static int may_be_infinite(const uint16_t *p, size_t n) { // or no number, as float16, bfloat16 or float32
  for (size_t i = 0; i < n / 2; i++)
    if ((p[i] & 0x7c00) == 0x7c00) return 1;
  return 0;
}

// A program would compute with what lay in the host's memory before, or look for overflows in it: it gets zeros.
int copy_values(void *to, const void *from, size_t n) {
  int to_host = !is_on_device(to), on_host = to_host && !is_on_device(from);
  if (to == from) return SUCCESS;
  int real = on_host || (n <= MOST_COPIED && !(to_host && backward_passes && may_be_infinite(from, n)));
  if (real) memmove(to, from, n);
  else if (to_host) zero(to, n);
  return SUCCESS;
}

static int copy(void *to, const void *from, size_t n) {
  count_launch(2.0 * n);
  if (!is_on_device(to)) wait_until(device_time());
  return copy_values(to, from, n);
}

int cudaMemcpy(void *to, const void *from, size_t n, int way) { return copy(to, from, n); }
int cudaMemcpyAsync(void *to, const void *from, size_t n, int way, void *stream) { return copy(to, from, n); }
int cudaMemcpyPeerAsync(void *to, int d, const void *from, int s, size_t n, void *st) { return copy(to, from, n); }
int cudaMemsetAsync(void *p, int value, size_t n, void *stream) {
  count_launch(n);
  if (n <= MOST_COPIED) memset(p, value, n);
  return SUCCESS;
}
int cudaMemset(void *p, int value, size_t n) { return cudaMemsetAsync(p, value, n, NULL); }

// -- pinned memory of the host: its pages come when they are touched, with CUDA at once

typedef struct Pinned { char *start; size_t bytes; struct Pinned *next; } Pinned;
static Pinned *pinned;

static void pin(void *p, size_t n) {
  Pinned *new = malloc(sizeof *new);
  pthread_mutex_lock(&lock);
  *new = (Pinned){p, n, pinned};
  pinned = new;
  pthread_mutex_unlock(&lock);
}

static void unpin(void *p) {
  pthread_mutex_lock(&lock);
  for (Pinned **at = &pinned; *at; at = &(*at)->next)
    if ((*at)->start == p) { Pinned *gone = *at; *at = gone->next; free(gone); break; }
  pthread_mutex_unlock(&lock);
}

int cudaHostAlloc(void **out, size_t n, unsigned flags) {
  if (posix_memalign(out, 4096, n ? n : 1)) return last_error = OUT_OF_MEMORY;
  pin(*out, n);
  return SUCCESS;
}
int cudaFreeHost(void *p) { unpin(p); free(p); return SUCCESS; }
int cudaHostRegister(void *p, size_t n, unsigned flags) { pin(p, n); return SUCCESS; }
int cudaHostUnregister(void *p) { unpin(p); return SUCCESS; }

typedef struct { int type, device; void *device_pointer, *host_pointer; long reserved[8]; } PointerAttributes;
int cudaPointerGetAttributes(PointerAttributes *out, const void *p) {
  enum { UNREGISTERED = 0, HOST = 1, DEVICE = 2 };
  memset(out, 0, sizeof *out);
  out->device = -2;
  out->host_pointer = (void *)p;
  pthread_mutex_lock(&lock);
  if (is_on_device(p)) {
    Block *b = block_of(p);
    out->type = DEVICE;
    out->device_pointer = (void *)p;
    out->device = current_device;
    for (int i = 0; b && b->bytes && (char *)p < b->start + b->bytes && i < visible_count(); i++)
      if (physical(i) == b->device) out->device = i;
  } else
    for (Pinned *at = pinned; at; at = at->next)
      if ((char *)p >= at->start && (char *)p < at->start + at->bytes) {
        out->type = HOST;
        out->device = current_device;
        out->device_pointer = (void *)p;
      }
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

// -- the driver's virtual memory: expandable segments

typedef struct { size_t bytes; int device; } Handle;
int cuMemGetAllocationGranularity(size_t *granule, const void *properties, int option) { *granule = GRANULE; return SUCCESS; }
int cuMemAddressReserve(uint64_t *p, size_t n, size_t alignment, uint64_t at, unsigned long long flags) {
  pthread_mutex_lock(&lock);
  begin();
  *p = (uintptr_t)reserve(n);
  note_block((char *)*p, n, physical(current_device));
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
int cuMemAddressFree(uint64_t p, size_t n) { return SUCCESS; }
int cuMemCreate(uint64_t *handle, size_t n, const void *properties, unsigned long long flags) {
  int device = physical(current_device), error = take_bytes(device, n);
  if (error) return error;
  Handle *new = malloc(sizeof *new);
  *new = (Handle){n, device};
  *handle = (uintptr_t)new;
  return SUCCESS;
}
int cuMemRelease(uint64_t handle) {
  Handle *gone = (Handle *)(uintptr_t)handle;
  give_bytes(gone->device, gone->bytes);
  free(gone);
  return SUCCESS;
}
int cuMemMap(uint64_t p, size_t n, size_t offset, uint64_t handle, unsigned long long flags) { return back((char *)(uintptr_t)p, n); }
int cuMemSetAccess(uint64_t p, size_t n, const void *access, size_t count) { return SUCCESS; }
int cuMemUnmap(uint64_t p, size_t n) { drop((char *)(uintptr_t)p, n); return SUCCESS; }
int cuPointerGetAttribute(void *value, int attribute, uint64_t p) { *(uint64_t *)value = 0; return SUCCESS; }
