// NCCL between processes of one machine. Small values (flags, lengths, losses, pickled objects) really
// go from rank to rank, through a file that the ranks map: the call waits for the others, where NCCL
// only puts it into its stream. Large ones are left as they are: gradients and weights have no values.
// No sends and receives between two ranks: no strategy of autotune uses them.
#include "device.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

enum { MOST_RANKS = MOST_DEVICES, AVERAGE = 4 };
#define SLOT ((size_t)2 << 20) // what is larger than this, of one rank, is not exchanged

typedef struct { volatile unsigned turn[MOST_RANKS]; char slot[][SLOT]; } Board;
typedef struct { int ranks, rank; unsigned turn, children; volatile int aborted; char id[64]; Board *board; } Comm;
typedef struct { char text[128]; } UniqueId;

int ncclGetUniqueId(UniqueId *id) {
  memset(id, 0, sizeof *id);
  snprintf(id->text, 40, "%d-%lx", getpid(), (unsigned long)device_time());
  return SUCCESS;
}

// Wait until every rank has come here as often as this one.
static void meet(Comm *c) {
  c->board->turn[c->rank] = ++c->turn;
  __sync_synchronize();
  for (int r = 0, pause = 20; r < c->ranks; r++)
    while ((int)(c->board->turn[r] - c->turn) < 0 && !c->aborted) {
      usleep(pause);
      if (pause < 500) pause += 20;
    }
}

static int join(Comm **out, int ranks, const char *id, int rank) {
  char path[300];
  const char *state = getenv("VIRTUAL_GPU_STATE");
  if (ranks > MOST_RANKS) return 4; // ncclInvalidArgument
  Comm *c = calloc(1, sizeof *c);
  c->ranks = ranks;
  c->rank = rank;
  snprintf(c->id, sizeof c->id, "%s", id);
  snprintf(path, sizeof path, "%s.nccl-%s", state ? state : "/dev/shm/virtual_gpu", c->id);
  size_t size = sizeof(Board) + ranks * SLOT;
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, size)) return 2; // ncclSystemError
  c->board = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  meet(c);
  unlink(path);
  *out = c;
  return SUCCESS;
}

int ncclCommInitRank(Comm **c, int n, UniqueId id, int r) { return join(c, n, id.text, r); }
int ncclCommInitRankConfig(Comm **c, int n, UniqueId id, int r, void *config) { return join(c, n, id.text, r); }
int ncclCommInitRankScalable(Comm **c, int n, int r, int ids, UniqueId *id, void *config) { return join(c, n, id->text, r); }
int ncclCommSplit(Comm *c, int color, int key, Comm **out, void *config) {
  char id[64];
  int pair[2] = {color, key}, ranks = 0, rank = 0;
  memcpy(c->board->slot[c->rank], pair, sizeof pair);
  meet(c);
  for (int r = 0; r < c->ranks; r++) {
    int *other = (int *)c->board->slot[r];
    if (other[0] != color) continue;
    ranks++;
    rank += other[1] < key || (other[1] == key && r < c->rank);
  }
  meet(c);
  snprintf(id, sizeof id, "%.40s.%u.%d", c->id, ++c->children, color);
  return color < 0 ? SUCCESS : join(out, ranks, id, rank);
}
int ncclCommAbort(Comm *c) { if (c) c->aborted = 1; return SUCCESS; }
int ncclCommGetAsyncError(void *c, int *e) { *e = SUCCESS; return SUCCESS; }
int ncclCommCount(Comm *c, int *n) { *n = c->ranks; return SUCCESS; }
int ncclCommUserRank(Comm *c, int *n) { *n = c->rank; return SUCCESS; }
int ncclGetVersion(int *v) { *v = 22809; return SUCCESS; }
const char *ncclGetErrorString(int e) { return "virtual_gpu"; }
const char *ncclGetLastError(void *c) { return "virtual_gpu"; }

static size_t width(int type) {
  static const int widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? widths[type] : 4;
}

// Put n bytes where the others see them; 0 where they are too many for that.
static int show(Comm *c, const void *from, size_t n) {
  count_launch(4.0 * n);
  if (n > SLOT) return 0;
  memcpy(c->board->slot[c->rank], from, n);
  meet(c);
  return 1;
}

static double read_value(const char *p, int type) {
  uint32_t bits;
  switch (type) {
    case 0: return *(int8_t *)p;
    case 1: return *(uint8_t *)p;
    case 2: return *(int32_t *)p;
    case 3: return *(uint32_t *)p;
    case 4: return *(int64_t *)p;
    case 5: return *(uint64_t *)p;
    case 7: return *(float *)p;
    case 8: return *(double *)p;
    case 9: bits = (uint32_t)*(uint16_t *)p << 16; float f; memcpy(&f, &bits, 4); return f;
    default: return 0; // float16 and smaller: nobody looks at them
  }
}

static void write_value(char *p, int type, double v) {
  float f = v;
  uint32_t bits;
  switch (type) {
    case 0: case 1: *(int8_t *)p = v; break;
    case 2: case 3: *(int32_t *)p = v; break;
    case 4: case 5: *(int64_t *)p = v; break;
    case 7: *(float *)p = f; break;
    case 8: *(double *)p = v; break;
    case 9: memcpy(&bits, &f, 4); *(uint16_t *)p = bits >> 16; break;
    default: *(uint16_t *)p = 0;
  }
}

static double combined(double a, double b, int operation) {
  switch (operation) {
    case 1: return a * b;
    case 2: return a > b ? a : b;
    case 3: return a < b ? a : b;
    default: return a + b; // sum, average, and a sum that is scaled first
  }
}

// Values [first, first + n) of what was shown, over all ranks.
static void reduce(Comm *c, char *to, size_t first, size_t n, int type, int operation) {
  size_t w = width(type);
  for (size_t i = 0; i < n; i++) {
    double v = read_value(c->board->slot[0] + (first + i) * w, type);
    for (int r = 1; r < c->ranks; r++) v = combined(v, read_value(c->board->slot[r] + (first + i) * w, type), operation);
    write_value(to + i * w, type, operation == AVERAGE ? v / c->ranks : v);
  }
}

int ncclAllGather(const void *from, char *to, size_t n, int type, Comm *c, void *stream) {
  n *= width(type);
  if (!show(c, from, n)) return SUCCESS;
  for (int r = 0; r < c->ranks; r++) memcpy(to + r * n, c->board->slot[r], n);
  meet(c);
  return SUCCESS;
}
int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation, Comm *c, void *stream) {
  if (!show(c, from, n * width(type))) return SUCCESS;
  reduce(c, to, 0, n, type, operation);
  meet(c);
  return SUCCESS;
}
int ncclReduce(const void *from, void *to, size_t n, int type, int operation, int root, Comm *c, void *stream) {
  if (!show(c, from, n * width(type))) return SUCCESS;
  if (c->rank == root) reduce(c, to, 0, n, type, operation);
  meet(c);
  return SUCCESS;
}
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Comm *c, void *stream) {
  n *= width(type);
  // Only the root's bytes are real: the others show nothing of theirs.
  if (n > SLOT) { count_launch(4.0 * n); return SUCCESS; }
  if (c->rank == root) memcpy(c->board->slot[root], from, n);
  meet(c);
  if (c->rank != root || from != to) memcpy(to, c->board->slot[root], n);
  meet(c);
  return SUCCESS;
}
int ncclBcast(void *buffer, size_t n, int type, int root, Comm *c, void *stream) { return ncclBroadcast(buffer, buffer, n, type, root, c, stream); }
int ncclReduceScatter(const void *from, void *to, size_t n, int type, int operation, Comm *c, void *stream) {
  if (!show(c, from, n * c->ranks * width(type))) return SUCCESS;
  reduce(c, to, c->rank * n, n, type, operation);
  meet(c);
  return SUCCESS;
}
