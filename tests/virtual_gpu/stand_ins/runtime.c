// The CUDA runtime and driver but for memory: devices, streams, events, launches. Kernels do nothing.
#include "device.h"

// A process that was forked after CUDA started has no CUDA.
static int started_by;
static int start_here(void) {
  if (!started_by) started_by = getpid();
  return started_by == getpid() ? SUCCESS : NOT_INITIALIZED;
}

int cudaGetDeviceCount(int *n) {
  int error = start_here();
  *n = error ? 0 : visible_count();
  return last_error = error ? error : *n ? SUCCESS : NO_DEVICE;
}
int cudaGetDevice(int *n) { *n = current_device; return SUCCESS; }
int cudaSetDevice(int n) {
  if (start_here()) return last_error = NOT_INITIALIZED;
  if (n < 0 || n >= visible_count()) return last_error = 101; // cudaErrorInvalidDevice
  current_device = n;
  begin_context(physical(n)); // as CUDA 12 and later do
  return SUCCESS;
}
int cudaDriverGetVersion(int *v) { *v = 13000; return SUCCESS; }
int cudaRuntimeGetVersion(int *v) { *v = 13000; return SUCCESS; }
const char *cudaGetErrorName(int e) {
  return e == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : e == NO_DEVICE ? "cudaErrorNoDevice" : e == NOT_INITIALIZED ? "cudaErrorInitializationError" : e ? "cudaErrorInvalidDevice" : "cudaSuccess";
}
const char *cudaGetErrorString(int e) {
  return e == OUT_OF_MEMORY ? "out of memory" : e == NO_DEVICE ? "no CUDA-capable device is detected" : e == NOT_INITIALIZED ? "initialization error" : e ? "invalid device ordinal" : "no error";
}
int cudaGetLastError(void) { int e = last_error; last_error = SUCCESS; return e; }
int cudaPeekAtLastError(void) { return last_error; }

// cudaDeviceProp of CUDA 13, of which torch reads the fields that are set here.
typedef struct {
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t total, shared_per_block;
  int registers_per_block, warp;
  size_t pitch;
  int threads_per_block, threads[3], grid[3];
  size_t constant;
  int major, minor;
  size_t texture_alignment, texture_pitch;
  int multiprocessors, integrated, maps_host, textures[39];
  size_t surface_alignment;
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, engines, unified, bus_width, l2, l2_persisting;
  int threads_per_multiprocessor, stream_priorities, l1_global, l1_local;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed, board, board_group, atomics, pageable, concurrent_managed, preemption;
  int host_pointer, cooperative;
  size_t shared_optin;
  int rest[96];
} Properties;

static int optin_bytes(void) { return kind()->major >= 9 ? 232448 : kind()->minor ? 101376 : 166912; }

int cudaGetDeviceProperties(Properties *p, int device) {
  enum { SIZE = 1008 }; // of the real structure: nothing is written behind it
  memset(p, 0, SIZE < sizeof *p ? SIZE : sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", kind()->name);
  device_uuid(physical(device), (unsigned char *)p->uuid);
  p->total = kind()->total;
  p->shared_per_block = 49152;
  p->registers_per_block = p->registers_per_multiprocessor = 65536;
  p->warp = 32;
  p->pitch = 2147483647;
  p->threads_per_block = p->threads[0] = p->threads[1] = 1024;
  p->threads[2] = 64;
  p->grid[0] = 2147483647;
  p->grid[1] = p->grid[2] = 65535;
  p->constant = 65536;
  p->major = kind()->major;
  p->minor = kind()->minor;
  p->texture_alignment = 512;
  p->multiprocessors = kind()->multiprocessors;
  p->maps_host = p->concurrent_kernels = p->unified = p->managed = p->cooperative = 1;
  p->engines = 3;
  p->pci_bus = physical(device) + FIRST_BUS;
  p->bus_width = 5120;
  p->l2 = 50 << 20;
  p->threads_per_multiprocessor = 2048;
  p->shared_per_multiprocessor = optin_bytes() + 1024;
  p->shared_optin = optin_bytes();
  return SUCCESS;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  static const int limits[][2] = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
      {8, 49152}, {9, 65536}, {10, 32}, {12, 65536}, {38, 50 << 20}, {39, 2048}, {82, 65536}, {102, 1}, {106, 32}};
  *value = 0; // what is not listed the device cannot: VMM by fabric, multicast, GPUDirect
  for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++)
    if (limits[i][0] == attribute) *value = limits[i][1];
  if (attribute == 16) *value = kind()->multiprocessors;
  if (attribute == 75) *value = kind()->major;
  if (attribute == 76) *value = kind()->minor;
  if (attribute == 81) *value = optin_bytes() + 1024;
  if (attribute == 97) *value = optin_bytes();
  return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
int cudaDeviceGetPCIBusId(char *text, int n, int device) { snprintf(text, n, "0000:00:%02x.0", physical(device) + FIRST_BUS); return SUCCESS; }
int cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return SUCCESS; }
int cudaDeviceGetDefaultMemPool(void **pool, int device) { *pool = (void *)1; return SUCCESS; }
int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) { *(uint64_t *)value = 0; return SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }

// -- streams and events: one line of work, on the clock of clock.c

int cudaStreamCreate(void **s) { *s = new_token(); return SUCCESS; }
int cudaStreamCreateWithFlags(void **s, unsigned flags) { *s = new_token(); return SUCCESS; }
int cudaStreamCreateWithPriority(void **s, unsigned flags, int priority) { *s = new_token(); return SUCCESS; }
int cudaStreamGetPriority(void *s, int *priority) { *priority = 0; return SUCCESS; }
int cudaStreamIsCapturing(void *s, int *status) { *status = 0; return SUCCESS; }
int cudaStreamGetCaptureInfo(void *s, int *status, unsigned long long *id, void **graph, const void ***d, const void **e, size_t *n) {
  *status = 0;
  if (id) *id = 0;
  return SUCCESS;
}
int cudaThreadExchangeStreamCaptureMode(int *mode) { return SUCCESS; }
int cudaDeviceSynchronize(void) { wait_until(device_time()); return SUCCESS; }
int cudaStreamSynchronize(void *s) { wait_until(device_time()); return SUCCESS; }
int cudaStreamQuery(void *s) { return SUCCESS; }

int cudaEventCreateWithFlags(void **e, unsigned flags) { *e = calloc(1, sizeof(uint64_t)); return SUCCESS; }
int cudaEventCreate(void **e) { return cudaEventCreateWithFlags(e, 0); }
int cudaEventDestroy(void *e) { free(e); return SUCCESS; }
int cudaEventRecord(uint64_t *e, void *stream) { *e = device_time(); return SUCCESS; }
int cudaEventRecordWithFlags(uint64_t *e, void *stream, unsigned flags) { return cudaEventRecord(e, stream); }
int cudaEventSynchronize(uint64_t *e) { wait_until(*e); return SUCCESS; }
int cudaEventQuery(uint64_t *e) { return SUCCESS; } // done: the allocator may use its block again at once
int cudaEventElapsedTime(float *ms, uint64_t *from, uint64_t *to) {
  *ms = *to > *from ? (*to - *from) / 1e6f : 0.0f;
  return SUCCESS;
}
int cudaLaunchHostFunc(void *s, void (*f)(void *), void *data) { f(data); return SUCCESS; }
int cudaStreamAddCallback(void *s, void (*f)(void *, int, void *), void *data, unsigned flags) { f(s, 0, data); return SUCCESS; }

// -- launches

typedef struct { unsigned x, y, z; } Size3;
// VIRTUAL_GPU_STALL_AT=n: the nth launch of a process never ends, as a kernel in an endless loop.
static void stall_if_asked(void) {
  static long launches, stall_at = -1;
  if (stall_at < 0) stall_at = getenv("VIRTUAL_GPU_STALL_AT") ? atol(getenv("VIRTUAL_GPU_STALL_AT")) : 0;
  if (stall_at && __sync_add_and_fetch(&launches, 1) >= stall_at)
    for (;;) pause();
}
static void launched(double threads) {
  stall_if_asked();
  count_launch(16.0 * threads);
}
int cudaLaunchKernel(const void *f, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  launched((double)grid.x * grid.y * grid.z * block.x * block.y * block.z);
  return SUCCESS;
}
typedef struct { Size3 grid, block; } LaunchConfig;
int cudaLaunchKernelExC(const LaunchConfig *c, const void *f, void **arguments) {
  return cudaLaunchKernel(f, c->grid, c->block, arguments, 0, NULL);
}
int __cudaLaunchKernel(const void *kernel, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream); // what nvcc 13 makes of <<<>>>
}
int cudaLaunchCooperativeKernel(const void *f, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  return cudaLaunchKernel(f, grid, block, arguments, shared, stream);
}
// Between these two lies the compiler's own code, which launches with what was pushed.
static __thread LaunchConfig pushed;
int __cudaPushCallConfiguration(Size3 grid, Size3 block, size_t shared, void *stream) {
  pushed = (LaunchConfig){grid, block};
  return SUCCESS;
}
int __cudaPopCallConfiguration(Size3 *grid, Size3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = 0;
  *(void **)stream = NULL;
  return SUCCESS;
}
void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
int __cudaGetKernel(void **kernel, const void *f) { *kernel = (void *)f; return SUCCESS; }
int cudaGetSymbolAddress(void **p, const void *symbol) {
  static char *variables; // all of them: nobody reads one back
  if (!variables) variables = calloc(1, 1 << 20);
  *p = variables;
  return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) { *n = 2; return SUCCESS; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned fl) { *n = 2; return SUCCESS; }
typedef struct { size_t shared, constant, local; int threads, registers, ptx, binary, cache, most_shared, carveout; } FunctionAttributes;
// Of which architecture the kernels are that a device runs: the newest one of torch's wheels with its
// major number that it can run (8.9 runs those of 8.6). cub looks its tables up by that.
static int kernel_architecture(void) {
  static const int BUILT[] = {75, 80, 86, 90, 100, 120};
  int device = kind()->major * 10 + kind()->minor, found = device;
  for (unsigned i = 0; i < sizeof BUILT / sizeof *BUILT; i++)
    if (BUILT[i] / 10 == kind()->major && BUILT[i] <= device) found = BUILT[i];
  return found;
}
int cudaFuncGetAttributes(FunctionAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->threads = 1024;
  a->registers = 64;
  a->ptx = a->binary = kernel_architecture();
  a->most_shared = 49152;
  return SUCCESS;
}

// -- the driver

int cuInit(unsigned flags) { return start_here(); }
int cuDeviceGet(int *device, int n) { *device = n; return SUCCESS; }
int cuDeviceGetCount(int *n) { *n = visible_count(); return SUCCESS; }
int cuGetErrorString(int e, const char **text) { *text = cudaGetErrorString(e); return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return SUCCESS; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = has_context(physical(device)); // else torch would begin one on every device it passes
  return SUCCESS;
}
static int nothing(void) { return SUCCESS; }

// torch asks for the driver's functions by name: those of this library, and one that does nothing.
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *status) {
  extern void *dlsym(void *, const char *);
  void *found = dlsym(NULL, name);
  *out = found ? found : (void *)nothing;
  if (status) *status = 0;
  return SUCCESS;
}
int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, out, 0, flags, status);
}
