// A simulated libnvidia-ml.so.1: what it says stands in a state file, and how busy the simulated
// device is comes from that device itself, through a socket (device.cpp sends, this reads).
//
// The variable SIMULATED_NVML names the file, of lines "name=value"; a name may begin with the
// device's index ("1.name=..."), else it holds for all. Names: devices, driver, name, memory,
// used, power_w, limit_w, sm_mhz, throttle (bits), utilization (percent; without it: the device's
// own), major, minor, uuid, compute_mode (3: a single process), pcie_generation, pcie_width, rx_kb,
// lost=1 (the device vanished), missing (functions that this driver lacks, blank-separated).
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, NO_FUNCTION = 13, LOST = 15 };
enum { MOST = 16 };
typedef unsigned long long u64;
typedef struct { int index; } Device;

static Device all[MOST];
static int listening = -1;
static double busy_s[MOST];                     // as the devices said
static double seen_busy_s[MOST], seen_s[MOST];  // at the last question
static u64 used_bytes[MOST];

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

// The value of a name in the state file; 0 if it is not there.
static int value(int index, const char* name, char* to, size_t room) {
  const char* path = getenv("SIMULATED_NVML");
  FILE* file = path ? fopen(path, "r") : NULL;
  char line[512], own[96];
  int rank = 0;
  if (!file) return 0;
  snprintf(own, sizeof own, "%d.%s", index, name);
  while (fgets(line, sizeof line, file)) {
    char* equals = strchr(line, '=');
    if (!equals) continue;
    *equals = 0;
    equals[strcspn(equals + 1, "\r\n") + 1] = 0;
    int mine = index >= 0 && strcmp(line, own) == 0 ? 2 : strcmp(line, name) == 0 ? 1 : 0;
    if (mine > rank) {
      rank = mine;
      snprintf(to, room, "%s", equals + 1);
    }
  }
  fclose(file);
  return rank > 0;
}
static int number(int index, const char* name, double* to) {
  char text[256];
  if (!value(index, name, text, sizeof text)) return 0;
  *to = atof(text);
  return 1;
}
static int is_missing(const char* function) {
  char text[256];
  if (!value(-1, "missing", text, sizeof text)) return 0;
  for (char* word = strtok(text, " "); word; word = strtok(NULL, " "))
    if (strcmp(word, function) == 0) return 1;
  return 0;
}
static int state(Device* it, const char* function) {
  double lost;
  if (!getenv("SIMULATED_NVML")) return 9;  // driver not loaded
  if (is_missing(function)) return NO_FUNCTION;
  if (it && number(it->index, "lost", &lost) && lost) return LOST;
  return SUCCESS;
}
#define CHECK(it)                                   \
  do {                                              \
    int problem = state((Device*)(it), __func__);   \
    if (problem) return problem;                    \
  } while (0)

static void listen_to_devices(void) {
  const char* path = getenv("SIMULATED_NVML");
  if (listening >= 0 || !path) return;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "simulated-nvml:%s", path);
  socklen_t length = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address.sun_path + 1);
  listening = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (bind(listening, (struct sockaddr*)&address, length)) {
    close(listening);
    listening = -1;
  }
}
static void hear(void) {
  char text[128];
  ssize_t length;
  while (listening >= 0 && (length = recv(listening, text, sizeof text - 1, 0)) > 0) {
    int index;
    double more_s;
    u64 bytes;
    text[length] = 0;
    if (sscanf(text, "%d %lf %llu", &index, &more_s, &bytes) == 3 && index >= 0 && index < MOST) {
      busy_s[index] += more_s;
      used_bytes[index] = bytes;
    }
  }
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  if (state(NULL, __func__)) return state(NULL, __func__);
  for (int i = 0; i < MOST; i++) all[i].index = i;
  listen_to_devices();
  return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char* nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "Not supported"; }
int nvmlDeviceGetCount_v2(unsigned* to) {
  double count = 1;
  CHECK(NULL);
  number(-1, "devices", &count);
  *to = (unsigned)count;
  return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** to) {
  if (index >= MOST) return INVALID;
  CHECK(&all[index]);
  *to = &all[index];
  return SUCCESS;
}
int nvmlDeviceGetIndex(Device* it, unsigned* to) { CHECK(it); *to = it->index; return SUCCESS; }
static int text_of(Device* it, const char* name, const char* usual, char* to, unsigned room) {
  if (!value(it ? it->index : -1, name, to, room)) snprintf(to, room, "%s", usual);
  return SUCCESS;
}
int nvmlDeviceGetName(Device* it, char* to, unsigned room) {
  CHECK(it);
  return text_of(it, "name", "NVIDIA A100-SIM", to, room);
}
int nvmlDeviceGetUUID(Device* it, char* to, unsigned room) {
  char usual[64];
  CHECK(it);
  snprintf(usual, sizeof usual, "GPU-00000000-0000-0000-0000-%012d", it->index);
  return text_of(it, "uuid", usual, to, room);
}
int nvmlDeviceGetComputeMode(Device* it, unsigned* to) {
  double mode = 0;
  CHECK(it);
  number(it->index, "compute_mode", &mode);
  *to = (unsigned)mode;
  return SUCCESS;
}
int nvmlSystemGetDriverVersion(char* to, unsigned room) {
  CHECK(NULL);
  return text_of(NULL, "driver", "570.00", to, room);
}
typedef struct { u64 total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device* it, Memory* to) {
  double total = 1024.0 * (1 << 20), used;
  CHECK(it);
  hear();
  number(it->index, "memory", &total);
  to->total = (u64)total;
  to->used = number(it->index, "used", &used) ? (u64)used : used_bytes[it->index];
  to->free = to->total - to->used;
  return SUCCESS;
}
typedef struct { unsigned gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(Device* it, Rates* to) {
  double percent;
  CHECK(it);
  hear();
  int i = it->index;
  if (!number(i, "utilization", &percent)) {
    double passed = now_s() - seen_s[i];
    percent = seen_s[i] > 0 && passed > 0 ? 100 * (busy_s[i] - seen_busy_s[i]) / passed : 0;
    seen_s[i] = now_s();
    seen_busy_s[i] = busy_s[i];
  }
  to->gpu = percent > 100 ? 100 : (unsigned)percent;
  to->memory = to->gpu / 2;
  return SUCCESS;
}
static int unsigned_of(Device* it, const char* name, double usual, double factor, unsigned* to) {
  number(it->index, name, &usual);
  *to = (unsigned)(usual * factor);
  return SUCCESS;
}
int nvmlDeviceGetPowerUsage(Device* it, unsigned* to) { CHECK(it); return unsigned_of(it, "power_w", 250, 1000, to); }
int nvmlDeviceGetEnforcedPowerLimit(Device* it, unsigned* to) { CHECK(it); return unsigned_of(it, "limit_w", 400, 1000, to); }
int nvmlDeviceGetClockInfo(Device* it, unsigned kind, unsigned* to) { CHECK(it); (void)kind; return unsigned_of(it, "sm_mhz", 1410, 1, to); }
int nvmlDeviceGetMaxClockInfo(Device* it, unsigned kind, unsigned* to) { CHECK(it); (void)kind; return unsigned_of(it, "max_sm_mhz", 1410, 1, to); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device* it, unsigned* to) { CHECK(it); return unsigned_of(it, "pcie_generation", 4, 1, to); }
int nvmlDeviceGetCurrPcieLinkWidth(Device* it, unsigned* to) { CHECK(it); return unsigned_of(it, "pcie_width", 16, 1, to); }
int nvmlDeviceGetPcieThroughput(Device* it, unsigned kind, unsigned* to) {
  CHECK(it);
  return unsigned_of(it, kind == 1 ? "rx_kb" : "tx_kb", 1000, 1, to);  // 0: sent, 1: received
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device* it, u64* to) {
  double bits = 0;
  CHECK(it);
  number(it->index, "throttle", &bits);
  *to = (u64)bits;
  return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(Device* it, int* major, int* minor) {
  double first = 8, second = 0;
  CHECK(it);
  number(it->index, "major", &first);
  number(it->index, "minor", &second);
  *major = (int)first;
  *minor = (int)second;
  return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(Device* it, unsigned kind, unsigned counter, u64* to) {
  double count = 0;
  CHECK(it);
  (void)kind;
  (void)counter;
  number(it->index, "ecc", &count);
  *to = (u64)count;
  return SUCCESS;
}
int nvmlDeviceGetMigMode(Device* it, unsigned* current, unsigned* pending) {
  double mode;
  CHECK(it);
  if (!number(it->index, "mig", &mode)) return NOT_SUPPORTED;
  *current = *pending = (unsigned)mode;
  return SUCCESS;
}
typedef struct { unsigned pid; u64 used; unsigned instance, compute; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device* it, unsigned* count, Process* to) {
  char text[256] = "";
  unsigned at = 0;
  CHECK(it);
  value(it->index, "pids", text, sizeof text);
  for (char* word = strtok(text, " "); word; word = strtok(NULL, " "), at++)
    if (to && at < *count) to[at] = (Process){(unsigned)atoi(word), 1 << 20, 0xFFFFFFFF, 0xFFFFFFFF};
  int fits = to && at <= *count;
  *count = at;
  return at == 0 || fits ? SUCCESS : TOO_SMALL;
}
