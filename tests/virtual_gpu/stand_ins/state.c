// Who holds how much of which device, in a file that all processes map: a device is full for all of
// them, and NVML tells of all of them. A process that has died holds nothing.
#include "device.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

enum { ROWS = 512 };
typedef struct {
  volatile int busy; // pid of the process that is changing the table
  struct { int pid, device; size_t bytes; } row[ROWS];
} Table;

static Table *table;
static Kind kind_;
static int row_of[MOST_DEVICES], row_owner; // this process's row + 1 on each device
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static double number(const char *name, double usual) {
  const char *text = getenv(name);
  return text && *text ? strtod(text, NULL) : usual;
}

static size_t bytes(const char *name, size_t usual) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : usual;
}

static void start(void) {
  pthread_mutex_lock(&starting);
  if (!table) {
    const char *name = getenv("VIRTUAL_GPU_NAME"), *path = getenv("VIRTUAL_GPU_STATE");
    snprintf(kind_.name, sizeof kind_.name, "%s", name ? name : "NVIDIA H200");
    kind_.count = number("VIRTUAL_GPU_DEVICES", 1);
    if (kind_.count > MOST_DEVICES) kind_.count = MOST_DEVICES;
    kind_.major = number("VIRTUAL_GPU_MAJOR", 9);
    kind_.minor = number("VIRTUAL_GPU_MINOR", 0);
    kind_.multiprocessors = number("VIRTUAL_GPU_MULTIPROCESSORS", 132);
    kind_.total = bytes("VIRTUAL_GPU_TOTAL", 150109880320ull);
    kind_.nvml_total = bytes("VIRTUAL_GPU_NVML_TOTAL", kind_.total);
    kind_.context = bytes("VIRTUAL_GPU_CONTEXT", 520ull << 20);
    kind_.flops = number("VIRTUAL_GPU_FLOPS", 9.9e14);
    kind_.bandwidth = number("VIRTUAL_GPU_BANDWIDTH", 4.8e12);
    int file = open(path ? path : "/dev/shm/virtual_gpu", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Table))) {
      perror("virtual_gpu: VIRTUAL_GPU_STATE cannot be used");
      abort();
    }
    table = mmap(NULL, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
  }
  pthread_mutex_unlock(&starting);
}

const Kind *kind(void) {
  if (!table) start();
  return &kind_;
}

static int is_gone(int pid) { return kill(pid, 0) && errno == ESRCH; }

static void enter(void) {
  kind();
  while (!__sync_bool_compare_and_swap(&table->busy, 0, getpid())) {
    int busy = table->busy;
    if (busy && busy != getpid() && is_gone(busy)) __sync_bool_compare_and_swap(&table->busy, busy, 0);
    usleep(10);
  }
}

static void leave(void) { __sync_lock_release(&table->busy); }

// Bytes that the living hold; rows of the dead are freed. With the table entered. A zombie counts as
// dead, as a driver frees the memory of a process when it ends and not when somebody reaps it.
static int is_zombie(int pid) {
  char path[32], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  char *after = n ? strrchr(text, ')') : NULL;
  return after && (after[2] == 'Z' || after[2] == 'X');
}

static size_t sum_held(int device) {
  size_t sum = 0;
  for (int i = 0; i < ROWS; i++) {
    if (!table->row[i].pid || table->row[i].device != device) continue;
    if (table->row[i].pid != getpid() && (is_gone(table->row[i].pid) || is_zombie(table->row[i].pid)))
      table->row[i].pid = 0;
    else
      sum += table->row[i].bytes;
  }
  return sum;
}

void begin_context(int device) {
  enter();
  if (row_owner != getpid()) { // a forked child begins anew
    row_owner = getpid();
    memset(row_of, 0, sizeof row_of);
  }
  if (!row_of[device]) {
    sum_held(device);
    for (int i = 0; i < ROWS && !row_of[device]; i++) {
      if (table->row[i].pid) continue;
      table->row[i].device = device;
      table->row[i].bytes = kind_.context;
      table->row[i].pid = getpid();
      row_of[device] = i + 1;
    }
  }
  leave();
}

int has_context(int device) { return row_owner == getpid() && row_of[device]; }

int take_bytes(int device, size_t n) {
  begin_context(device);
  enter();
  int error = sum_held(device) + n > kind_.total ? OUT_OF_MEMORY : SUCCESS;
  if (!error && row_of[device]) table->row[row_of[device] - 1].bytes += n;
  leave();
  return error;
}

void give_bytes(int device, size_t n) {
  enter();
  if (row_owner == getpid() && row_of[device]) table->row[row_of[device] - 1].bytes -= n;
  leave();
}

size_t held_bytes(int device) {
  enter();
  size_t sum = sum_held(device);
  leave();
  return sum;
}

int holders(int device, Holder *found, int most) {
  int count = 0;
  enter();
  sum_held(device);
  for (int i = 0; i < ROWS; i++)
    if (table->row[i].pid && table->row[i].device == device) {
      if (count < most) found[count] = (Holder){table->row[i].pid, table->row[i].bytes};
      count++;
    }
  leave();
  return count;
}

// The devices' numbers are made up; only the last byte differs.
void device_uuid(int device, unsigned char uuid[UUID_BYTES]) {
  memcpy(uuid, "\x56\x69\x72\x74\x75\x61\x4c\x50\x80\x55\x00\x00\x00\x00\x00\x00", UUID_BYTES);
  uuid[UUID_BYTES - 1] = device;
}

void uuid_text(int device, char text[UUID_TEXT]) {
  unsigned char u[UUID_BYTES];
  device_uuid(device, u);
  sprintf(text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
          u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

// CUDA_VISIBLE_DEVICES is read once, when the runtime starts, as CUDA does: numbers or how a UUID
// begins; the first entry that names no device ends the list, one named twice empties it.
static int shown[MOST_DEVICES], shown_count = -1;

static int device_named(const char *entry) {
  char *end, text[UUID_TEXT];
  long number_ = strtol(entry, &end, 10);
  if (end != entry && (!*end || *end == ' ')) return number_ >= 0 && number_ < kind_.count ? number_ : -1;
  int found = -1;
  for (int device = 0; device < kind_.count && strlen(entry) > 4; device++) {
    uuid_text(device, text);
    if (strncmp(text, entry, strlen(entry))) continue;
    if (found >= 0) return -1;
    found = device;
  }
  return found;
}

static void read_visible(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  kind();
  if (!list)
    for (; count < kind_.count; count++) shown[count] = count;
  else {
    char *copy = strdup(list), *rest = copy, *entry;
    while ((entry = strsep(&rest, ",")) && count < MOST_DEVICES) {
      entry += strspn(entry, " ");
      int device = device_named(entry);
      if (device < 0) break;
      for (int i = 0; i < count; i++)
        if (shown[i] == device) count = -1;
      if (count < 0) { count = 0; break; }
      shown[count++] = device;
    }
    free(copy);
  }
  shown_count = count;
}

int visible_count(void) {
  if (shown_count < 0) read_visible();
  return shown_count;
}

int physical(int visible) { return visible < visible_count() && visible >= 0 ? shown[visible] : 0; }
