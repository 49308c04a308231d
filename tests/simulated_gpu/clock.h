// The simulated device's time: what each stream has left to do, and what was done when.
//
// Results are computed on the CPU at once. Beside them runs this clock: a launch moves its stream's
// `busy_until` to max(now, busy_until) + cost; whatever synchronises sleeps until then.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstddef>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace simulated {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

inline void sleep_until(int64_t end_ns) {
  timespec t{time_t(end_ns / 1000000000), long(end_ns % 1000000000)};
  while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, nullptr) == EINTR) {
  }
}

// What the device is made of. The variable SIMULATED_GPU holds "name=value" pairs, separated by
// ";": the names below, or "kernel:<part of an operator's name>=<µs>" to plant a cost.
struct Settings {
  int devices = 1;
  double kernel_us = 5;                 // the shortest kernel
  double gflops = 200, gflops_low = 800;  // float32 products; TF32, bfloat16 and float16
  double gbytes_per_s = 100;            // the device's memory
  double pinned_gbytes_per_s = 4, pageable_gbytes_per_s = 1;
  double copy_us = 5;                   // what a copy costs before its first byte
  double launch_us = 0;                 // host time of a launch, beside the real one
  int queue = 1024;                     // launches and events that fit into a stream's queue
  bool profiler = true;                 // the profiler sees the device and its driver
  std::string names = "cuda";           // how the names of the driver's calls begin
  bool event_times = true;              // an event knows when the device came to it
  int64_t memory_mb = 1024;
  std::vector<std::pair<std::string, double>> planted_us;

  Settings() {
    const char* text = std::getenv("SIMULATED_GPU");
    std::stringstream all(text ? text : "");
    for (std::string pair; std::getline(all, pair, ';');) {
      auto at = pair.find('=');
      if (at == std::string::npos) continue;
      std::string name = pair.substr(0, at);
      double value = std::atof(pair.c_str() + at + 1);
      if (name.rfind("kernel:", 0) == 0) planted_us.emplace_back(name.substr(7), value);
      else if (name == "devices") devices = int(value);
      else if (name == "kernel_us") kernel_us = value;
      else if (name == "gflops") gflops = value;
      else if (name == "gflops_low") gflops_low = value;
      else if (name == "gbytes_per_s") gbytes_per_s = value;
      else if (name == "pinned_gbytes_per_s") pinned_gbytes_per_s = value;
      else if (name == "pageable_gbytes_per_s") pageable_gbytes_per_s = value;
      else if (name == "copy_us") copy_us = value;
      else if (name == "launch_us") launch_us = value;
      else if (name == "queue") queue = int(value);
      else if (name == "memory_mb") memory_mb = int64_t(value);
      else if (name == "profiler") profiler = value != 0;
      else if (name == "event_times") event_times = value != 0;
      else if (name == "names") names = pair.substr(at + 1);
    }
  }
};

inline Settings& settings() {
  static Settings* it = new Settings();
  return *it;
}

enum class Kind { kRuntime, kKernel, kMemcpy };

// One line of the profile and of the truth.
struct Activity {
  Kind kind;
  std::string name;
  int64_t begin_ns, end_ns;
  int device, stream;
  int64_t bytes;
  uint32_t correlation;
  uint64_t external;
  uint32_t thread;
};

// What the device counted since the process began: the truth that tests compare with.
struct Counts {
  std::atomic<int64_t> kernels{0}, copies{0}, synchronisations{0}, mallocs{0}, frees{0};
  std::atomic<int64_t> busy_ns{0}, copy_ns{0}, waited_ns{0};
};

class Device {
 public:
  Counts counts;

  // Put work of `cost_ns` into a stream, or an event (no cost); returns when it will have ended.
  int64_t enqueue(int stream, int64_t cost_ns, int64_t& begin_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& queue = queues_[stream];
    int64_t now = now_ns();
    while (!queue.empty() && queue.front() <= now) queue.pop_front();
    if (int(queue.size()) >= settings().queue) {  // the host waits for room in the queue
      int64_t room = queue[queue.size() - settings().queue];
      lock.unlock();
      sleep_until(room);
      lock.lock();
      now = now_ns();
    }
    int64_t& until = busy_until_[stream];
    begin_ns = std::max(now, until);
    until = begin_ns + cost_ns;
    queues_[stream].push_back(until);
    return until;
  }

  int64_t busy_until(int stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return busy_until_[stream];
  }

  void wait_for(int stream, int64_t time_ns) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t& until = busy_until_[stream];
    until = std::max(until, time_ns);
  }

  int64_t all_busy_until() {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t latest = 0;
    for (auto& [stream, until] : busy_until_) latest = std::max(latest, until);
    return latest;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int, int64_t> busy_until_;
  std::unordered_map<int, std::deque<int64_t>> queues_;
};

inline Device& device(int index) {
  static std::vector<Device>* all = new std::vector<Device>(settings().devices);
  return (*all)[index < 0 ? 0 : index];
}

// The profile while one is taken.
class Profile {
 public:
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::vector<Activity> activities;
  std::atomic<uint32_t> correlation{0};

  void add(Activity activity) {
    std::lock_guard<std::mutex> lock(mutex);
    activities.push_back(std::move(activity));
  }
};

inline Profile& profile() {
  static Profile* it = new Profile();
  return *it;
}

inline thread_local std::vector<uint64_t> external_ids;
inline uint64_t external_id() { return external_ids.empty() ? 0 : external_ids.back(); }
uint32_t thread_number();

// A call of the driver as the host sees it, from its making to the end of its scope.
class RuntimeCall {
 public:
  RuntimeCall(const char* name, int device)
      : name_(name), device_(device), correlation_(++profile().correlation), begin_ns_(now_ns()) {}
  ~RuntimeCall() {
    if (settings().launch_us > 0 && std::strncmp(name_, "cudaLaunch", 10) == 0)
      sleep_until(begin_ns_ + int64_t(settings().launch_us * 1e3));
    if (profile().on)
      profile().add({Kind::kRuntime, settings().names + (name_ + 4), begin_ns_, now_ns(), device_, 0, 0, correlation_,
                     external_id(), thread_number()});
  }
  uint32_t correlation() const { return correlation_; }

 private:
  const char* name_;
  int device_;
  uint32_t correlation_;
  int64_t begin_ns_;
};

// Tell the simulated NVML, which is in another process, what a device did since the last time;
// what is still queued is not done.
inline void tell_nvml(int index, size_t used_bytes) {
  static const char* path = std::getenv("SIMULATED_NVML");
  static std::mutex telling;
  static std::unordered_map<int, std::pair<int64_t, int64_t>> told;  // when, and ns done by then
  if (path == nullptr) return;
  std::lock_guard<std::mutex> lock(telling);
  int64_t now = now_ns(), queued_ns = device(index).all_busy_until() - now;
  int64_t done_ns = device(index).counts.busy_ns - std::max<int64_t>(queued_ns, 0);
  auto& [told_ns, told_done_ns] = told[index];
  if (now - told_ns < 5000000 || done_ns <= told_done_ns) return;
  static int out = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string name = std::string("simulated-nvml:") + path;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 2);
  char text[96];
  int length = snprintf(text, sizeof text, "%d %.9f %llu", index, (done_ns - told_done_ns) / 1e9,
                        static_cast<unsigned long long>(used_bytes));
  sendto(out, text, size_t(length), 0, reinterpret_cast<sockaddr*>(&address),
         socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
  told_ns = now;
  told_done_ns = done_ns;
}
size_t used_bytes(int index);

inline void run(Kind kind, const std::string& name, int index, int stream, double cost_us,
                int64_t bytes, const RuntimeCall& call) {
  int64_t begin_ns, cost_ns = int64_t(cost_us * 1e3);
  Device& it = device(index);
  int64_t end_ns = it.enqueue(stream, cost_ns, begin_ns);
  (kind == Kind::kMemcpy ? it.counts.copies : it.counts.kernels)++;
  (kind == Kind::kMemcpy ? it.counts.copy_ns : it.counts.busy_ns) += cost_ns;
  if (kind == Kind::kKernel) tell_nvml(index, used_bytes(index));
  if (profile().on)
    profile().add({kind, name, begin_ns, end_ns, index, stream, bytes, call.correlation(),
                   external_id(), thread_number()});
}

inline void synchronise(const char* name, int index, int64_t until_ns) {
  RuntimeCall call(name, index);
  Device& it = device(index);
  it.counts.synchronisations++;
  int64_t begin_ns = now_ns();
  if (until_ns > begin_ns) {
    it.counts.waited_ns += until_ns - begin_ns;
    sleep_until(until_ns);
  }
  tell_nvml(index, used_bytes(index));
}

}  // namespace simulated
