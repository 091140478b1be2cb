// NVML: every device with what all processes hold of it, and their names.
#include "device.h"

enum { INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
static int index_of(void *handle) { return (int)(uintptr_t)handle - 1; }

int nvmlInit_v2(void) { kind(); return SUCCESS; }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { kind(); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int e) { return e == INSUFFICIENT_SIZE ? "Insufficient Size" : e == INVALID ? "Invalid Argument" : e ? "Not Supported" : "Success"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "580.00.00"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = kind()->count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) {
  *handle = (void *)(uintptr_t)(i + 1);
  return i < (unsigned)kind()->count ? SUCCESS : INVALID;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  unsigned bus = 0;
  sscanf(id, "%*x:%x", &bus);
  return nvmlDeviceGetHandleByIndex_v2(bus - FIRST_BUS, handle);
}
int nvmlDeviceGetIndex(void *handle, unsigned *i) { *i = index_of(handle); return SUCCESS; }
int nvmlDeviceGetName(void *handle, char *text, unsigned n) { snprintf(text, n, "%s", kind()->name); return SUCCESS; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned n) {
  char uuid[UUID_TEXT];
  uuid_text(index_of(handle), uuid);
  snprintf(text, n, "%s", uuid);
  return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { *major = kind()->major; *minor = kind()->minor; return SUCCESS; }

// What the driver keeps for itself is the difference of the two totals: used, but nobody's.
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *total_free_used) {
  size_t held = held_bytes(index_of(handle)), kept = kind()->nvml_total - kind()->total;
  total_free_used[0] = kind()->nvml_total;
  total_free_used[1] = held < kind()->total ? kind()->total - held : 0;
  total_free_used[2] = held + kept;
  return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; } Running;
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *n, Running *running) {
  Holder found[256];
  int count = holders(index_of(handle), found, 256), room = *n;
  for (int i = 0; i < count && i < room; i++) running[i] = (Running){found[i].pid, found[i].bytes, -1, -1};
  *n = count;
  return count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
// The name without a version is the first layout; torch asks for it.
typedef struct { unsigned pid; unsigned long long bytes; } RunningV1;
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *n, RunningV1 *running) {
  Holder found[256];
  int count = holders(index_of(handle), found, 256), room = *n;
  for (int i = 0; i < count && i < room; i++) running[i] = (RunningV1){found[i].pid, found[i].bytes};
  *n = count;
  return count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned n) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "r");
  size_t read = file ? fread(text, 1, n - 1, file) : 0;
  if (file) fclose(file);
  text[read] = 0; // the first word of the command ends at its own 0
  return read ? SUCCESS : 6; // not found
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *handle, char *info) { memset(info + 4, 0, 24); return SUCCESS; }
