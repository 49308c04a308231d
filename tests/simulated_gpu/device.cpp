// A CUDA device that is simulated: the CPU build's free CUDA dispatch key, with kernels that compute
// on the CPU at once and a clock (clock.h) that says when a real device would have been done.
//
// Built against the installed torch's own headers by `build.py`; loaded before `import torch`.
#include "clock.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_unsafe_view.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <torch/library.h>

#include <set>

namespace simulated {

uint32_t thread_number() {
  static thread_local uint32_t number = uint32_t(syscall(SYS_gettid));
  return number;
}

// The same device is CUDA's, or that of a backend which torch has no code of its own for: any kind
// but "cuda" and "rocm".
const bool private_use = [] {
  const char* named = std::getenv("SIMULATED_ACCELERATOR");
  std::string kind = named ? named : "cuda";
  return kind != "cuda" && kind != "rocm";
}();
const auto kDevice = private_use ? c10::DeviceType::PrivateUse1 : c10::DeviceType::CUDA;
const auto kKey = private_use ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CUDA;
thread_local c10::DeviceIndex device_now = 0;
thread_local std::unordered_map<int, c10::StreamId> current_streams;
std::atomic<int> next_stream{1};
std::atomic<bool> initialised{false};

int stream_of(int index) { return int(current_streams[index]); }

// ---- memory -----------------------------------------------------------------------------------

struct Memory {
  std::mutex mutex;
  std::vector<c10::CachingDeviceAllocator::DeviceStats> stats{size_t(settings().devices)};
};
Memory& memory() {
  static Memory* it = new Memory();
  return *it;
}
constexpr size_t kAll = size_t(c10::CachingAllocator::StatType::AGGREGATE);
size_t capacity() { return size_t(settings().memory_mb) << 20; }

// Count bytes of the device as taken; memory that was free before is taken from a cache, as torch's
// own allocator does: only what never was reserved is a cudaMalloc.
void take(int index, size_t bytes) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto& stats = memory().stats[index];
  size_t used = size_t(stats.allocated_bytes[kAll].current);
  if (used + bytes > capacity()) {
    stats.num_alloc_retries++;
    stats.num_ooms++;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                     bytes >> 20, " MiB. GPU ", index, " has a total capacity of ",
                     capacity() >> 20, " MiB of which ", (capacity() - used) >> 20,
                     " MiB is free. (simulated)");
  }
  stats.allocated_bytes[kAll].increase(bytes);
  stats.active_bytes[kAll].increase(bytes);
  stats.requested_bytes[kAll].increase(bytes);
  stats.allocation[kAll].increase(1);
  stats.active[kAll].increase(1);
  int64_t more = stats.allocated_bytes[kAll].current - stats.reserved_bytes[kAll].current;
  if (more > 0) {
    stats.reserved_bytes[kAll].increase(size_t(more));
    stats.segment[kAll].increase(1);
    stats.num_device_alloc++;
    device(index).counts.mallocs++;
    RuntimeCall call("cudaMalloc", index);
  }
}

void give_back(int index, size_t bytes) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto& stats = memory().stats[index];
  stats.allocated_bytes[kAll].decrease(bytes);
  stats.active_bytes[kAll].decrease(bytes);
  stats.requested_bytes[kAll].decrease(bytes);
  stats.allocation[kAll].decrease(1);
  stats.active[kAll].decrease(1);
}

size_t used_bytes(int index) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  return size_t(memory().stats[index].reserved_bytes[kAll].current);
}

struct Held {  // memory of the device, or of a CPU tensor that became one of the device
  int index;
  size_t bytes;
  void* data;
  c10::Storage storage;
};

void release(void* context) {
  auto* held = static_cast<Held*>(context);
  give_back(held->index, held->bytes);
  if (held->data != nullptr) std::free(held->data);
  delete held;
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    initialised = true;
    c10::Device where(kDevice, device_now);
    if (bytes == 0) return {nullptr, nullptr, &release, where};
    take(device_now, bytes);
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) TORCH_CHECK(false, "the host's memory is full");
    return {data, new Held{device_now, bytes, data, {}}, &release, where};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return initialised; }
  void emptyCache(c10::MempoolId_t) override {
    for (int index = 0; index < settings().devices; index++) {
      int64_t until = device(index).all_busy_until();
      synchronise("cudaFree", index, until);
      device(index).counts.frees++;
      std::lock_guard<std::mutex> lock(memory().mutex);
      auto& stats = memory().stats[index];
      int64_t cached = stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
      stats.reserved_bytes[kAll].decrease(size_t(std::max<int64_t>(cached, 0)));
      stats.num_device_free++;
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory().mutex);
    return memory().stats[index];
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory().mutex);
    memory().stats[index].num_alloc_retries = memory().stats[index].num_ooms = 0;
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory().mutex);
    auto& stats = memory().stats[index];
    for (auto* all : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                      &stats.requested_bytes, &stats.allocation, &stats.active})
      (*all)[kAll].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> lock(memory().mutex);
    return {capacity() - size_t(memory().stats[index].reserved_bytes[kAll].current), capacity()};
  }
};
DeviceMemory* device_memory = new DeviceMemory();
bool memory_registered = (c10::SetAllocator(kDevice, device_memory), true);

// ---- pinned memory ----------------------------------------------------------------------------

struct Pinned {
  std::mutex mutex;
  std::map<const char*, size_t> blocks;
};
Pinned& pinned() {
  static Pinned* it = new Pinned();
  return *it;
}
bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(pinned().mutex);
  auto after = pinned().blocks.upper_bound(static_cast<const char*>(data));
  if (after == pinned().blocks.begin()) return false;
  auto& [begin, bytes] = *std::prev(after);
  return static_cast<const char*>(data) < begin + bytes;
}
void unpin(void* data) {
  {
    std::lock_guard<std::mutex> lock(pinned().mutex);
    pinned().blocks.erase(static_cast<const char*>(data));
  }
  std::free(data);
}
struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (posix_memalign(&data, 64, std::max<size_t>(bytes, 1)) != 0)
      TORCH_CHECK(false, "the host's memory is full");
    std::lock_guard<std::mutex> lock(pinned().mutex);
    pinned().blocks[static_cast<const char*>(data)] = std::max<size_t>(bytes, 1);
    return {data, data, &unpin, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
PinnedMemory* pinned_memory = new PinnedMemory();
bool pinned_registered = (at::setHostAllocator(kDevice, pinned_memory), true);

// ---- random numbers, hooks, guard -------------------------------------------------------------

struct DeviceGenerator final : c10::GeneratorImpl {
  at::Generator own = at::detail::createCPUGenerator();
  explicit DeviceGenerator(c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(kDevice, index), c10::DispatchKeySet(kKey)) {}
  void set_current_seed(uint64_t seed) override { own.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return own.current_seed(); }
  uint64_t seed() override { return own.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    own.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return own.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->own = own.clone();
    return copy;
  }
};

template <class Base>
struct HooksOf : Base {
  void init() const override { initialised = true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return settings().devices > 0; }
  const at::Generator& getDefaultGenerator(at::DeviceIndex index) const override {
    static auto* all = [] {
      auto* made = new std::vector<at::Generator>();
      for (int i = 0; i < settings().devices; i++)
        made->push_back(at::make_generator<DeviceGenerator>(i));
      return made;
    }();
    return (*all)[index < 0 ? device_now : index];
  }
  at::Generator getNewGenerator(at::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index < 0 ? device_now : index);
  }
  at::Device getDeviceFromPtr(void*) const override { return {kDevice, device_now}; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  bool hasPrimaryContext(at::DeviceIndex) const override { return initialised; }
  at::DeviceIndex getCurrentDevice() const override { return device_now; }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_memory; }
  at::DeviceIndex deviceCount() const override { return at::DeviceIndex(settings().devices); }
  void setCurrentDevice(at::DeviceIndex index) const override { device_now = index; }
  at::DeviceIndex exchangeDevice(at::DeviceIndex index) const override {
    return std::exchange(device_now, index);
  }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
};

struct CudaHooks final : HooksOf<at::CUDAHooksInterface> {
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  at::DeviceIndex current_device() const override { return device_now; }
  at::Allocator* getCUDADeviceAllocator() const override { return device_memory; }
  int getNumGPUs() const override { return settings().devices; }
  void deviceSynchronize(at::DeviceIndex index) const override {
    synchronise("cudaDeviceSynchronize", index, device(index).all_busy_until());
  }
};

struct PrivateHooks final : HooksOf<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage&, size_t) const override {
    TORCH_CHECK(false, "a storage of the simulated device has its size");
  }
};

bool hooks_registered = [] {
  if (private_use) at::RegisterPrivateUse1HooksInterface(new PrivateHooks());
  else at::CUDAHooksRegistry()->Register(
      "CUDAHooks", [](at::CUDAHooksArgs) { return std::make_unique<CudaHooks>(); });
  return true;
}();

struct Event {
  int64_t time_ns = 0;
  int device = -1;  // of the stream that it was first recorded in
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return {kDevice, std::exchange(device_now, to.index())};
  }
  c10::Device getDevice() const override { return {kDevice, device_now}; }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() < settings().devices, "CUDA error: invalid device ordinal");
    device_now = to.index();
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override { device_now = to.index(); }
  c10::Stream getStream(c10::Device of) const override {
    int index = of.index() < 0 ? device_now : of.index();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, c10::DeviceIndex(index)),
            current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::UNSAFE, of, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
    return getNewStream(of, 0);
  }
  c10::Stream getNewStream(c10::Device of, int) const override {
    if (of.index() < 0) of = {kDevice, device_now};
    return c10::Stream(c10::Stream::UNSAFE, of, next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    auto& now = current_streams[to.device_index()];
    return c10::Stream(c10::Stream::UNSAFE, to.device(), std::exchange(now, to.id()));
  }
  void* getStreamNativeHandle(const c10::Stream of) const override {
    return reinterpret_cast<void*>(of.id());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    int& own = static_cast<Event*>(*event)->device;
    TORCH_CHECK(own < 0 || own == stream.device_index(), "Event device ", own,
                " does not match recording stream's device ", int(stream.device_index()), ".");
    own = stream.device_index();
    RuntimeCall call("cudaEventRecord", stream.device_index());
    int64_t begin_ns;
    static_cast<Event*>(*event)->time_ns =
        device(stream.device_index()).enqueue(int(stream.id()), 0, begin_ns);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    RuntimeCall call("cudaStreamWaitEvent", stream.device_index());
    device(stream.device_index()).wait_for(int(stream.id()), static_cast<Event*>(event)->time_ns);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->time_ns <= now_ns();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return c10::DeviceIndex(settings().devices);
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
  bool queryStream(const c10::Stream& stream) const override {
    return device(stream.device_index()).busy_until(int(stream.id())) <= now_ns();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    int index = stream.device_index();
    synchronise("cudaStreamSynchronize", index, device(index).busy_until(int(stream.id())));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    synchronise("cudaEventSynchronize", device_now, static_cast<Event*>(event)->time_ns);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    synchronise("cudaDeviceSynchronize", index, device(index).all_busy_until());
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return (static_cast<Event*>(to)->time_ns - static_cast<Event*>(from)->time_ns) / 1e6;
  }
};
c10::impl::DeviceGuardImplRegistrar guard_registered(kDevice, new Guard());

// ---- tensors ----------------------------------------------------------------------------------

at::Tensor with_storage(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

// A CPU tensor over the same memory.
at::Tensor on_cpu(const at::Tensor& tensor) {
  auto* owner = new c10::Storage(tensor.storage());
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
      c10::DataPtr(tensor.storage().mutable_data(), owner,
                   [](void* it) { delete static_cast<c10::Storage*>(it); }, c10::DeviceType::CPU),
      c10::GetAllocator(c10::DeviceType::CPU), true);
  auto alias = with_storage(std::move(storage), tensor, c10::DispatchKey::CPU);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  return alias;
}

// A tensor of the device made of a CPU tensor's own memory, without a copy.
at::Tensor on_device(const at::Tensor& tensor) {
  size_t bytes = tensor.storage().nbytes();
  if (bytes == 0) return at::empty_strided(tensor.sizes(), tensor.strides(),
                                           tensor.options().device(kDevice, device_now));
  take(device_now, bytes);
  auto* held = new Held{device_now, bytes, nullptr, tensor.storage()};
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), bytes,
      c10::DataPtr(tensor.storage().mutable_data(), held, &release,
                   c10::Device(kDevice, device_now)),
      device_memory, true);
  return with_storage(std::move(storage), tensor, kKey);
}

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

// ---- what an operator costs -------------------------------------------------------------------

bool is_low_precision(at::ScalarType type) {
  if (type == at::kHalf || type == at::kBFloat16) return true;
  return type == at::kFloat && at::globalContext().allowTF32CuBLAS();
}

// Twice the multiplications of a product or a convolution; 0 of anything else.
double operations(const std::string& name, const std::vector<at::Tensor>& in) {
  auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("slow_conv") || has("convolution") || has("conv_depthwise")) {
    if (in.size() < 2) return 0;
    bool backward = has("backward");  // gradient, input, weight; forward: input, weight
    const auto& weight = in[backward ? 2 : 1];
    const auto& positions = in[0];
    if (!weight.defined() || weight.dim() < 3 || positions.dim() < 3) return 0;
    double spatial = double(positions.numel()) / double(std::max<int64_t>(positions.size(1), 1));
    return (backward ? 4.0 : 2.0) * spatial * double(weight.numel());
  }
  if (!(has("::mm") || has("addmm") || has("bmm") || has("::linear") || has("matmul"))) return 0;
  std::vector<const at::Tensor*> matrices;
  for (const auto& tensor : in)
    if (tensor.defined() && tensor.dim() >= 2) matrices.push_back(&tensor);
  if (matrices.size() < 2) return 0;
  bool added = matrices.size() > 2 && (has("addmm") || has("baddbmm"));
  const auto& a = *matrices[added ? 1 : 0];
  const auto& b = *matrices[added ? 2 : 1];
  return 2.0 * double(a.numel()) * double(b.size(-1));
}

double cost_us(const std::string& name, const std::vector<at::Tensor>& in, double bytes) {
  for (const auto& [part, us] : settings().planted_us)
    if (name.find(part) != std::string::npos) return us;
  double us = std::max(settings().kernel_us, bytes / settings().gbytes_per_s / 1e3);
  double work = operations(name, in);
  if (work > 0) {
    bool low = !in.empty() && in[0].defined() && is_low_precision(in[0].scalar_type());
    us = std::max(us, work / (low ? settings().gflops_low : settings().gflops) / 1e3);
  }
  return us;
}

// The kernel's name, in the manner of cuBLAS, cuDNN and ATen.
std::string kernel_name(const std::string& name, const std::vector<at::Tensor>& in) {
  std::string plain = name.substr(name.find("::") + 2);
  plain = plain.substr(0, plain.find('.'));
  while (!plain.empty() && plain.front() == '_') plain.erase(0, 1);
  bool foreach = plain.rfind("foreach", 0) == 0 || plain.rfind("fused", 0) == 0;
  auto type = in.empty() || !in[0].defined() ? at::kFloat : in[0].scalar_type();
  if (operations(name, in) > 0) {
    if (name.find("conv") != std::string::npos)
      return type == at::kFloat && !is_low_precision(type) ? "cudnn_implicit_sgemm_128x64_nchw"
                                                           : "sm80_xmma_fprop_implicit_gemm_bf16";
    if (type == at::kHalf) return "ampere_fp16_s16816gemm_fp16_128x128_ldg8_nn";
    if (type == at::kBFloat16) return "ampere_bf16_s16816gemm_bf16_128x128_ldg8_nn";
    return is_low_precision(type) ? "ampere_s1688tf32gemm_128x128_nn" : "ampere_sgemm_128x64_nn";
  }
  if (foreach) return "void at::native::multi_tensor_apply_kernel<" + plain + ">";
  return "void at::native::" + plain + "_kernel_cuda";
}

// ---- every operator ---------------------------------------------------------------------------

const std::string& interned(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const void*, std::string> names;
  auto& name = names[&op.schema()];
  if (name.empty()) {
    name = op.schema().name();
    if (!op.schema().overload_name().empty()) name += "." + op.schema().overload_name();
  }
  return name;
}

struct Aliases {
  std::vector<std::pair<at::Tensor, at::Tensor>> made;  // of the device, on the CPU
  at::Tensor cpu(const at::Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    for (auto& [ours, alias] : made)
      if (ours.is_same(tensor)) return alias;
    made.emplace_back(tensor, on_cpu(tensor));
    return made.back().second;
  }
  // What a result of the CPU kernel is on the device: an argument, a view of one, or new.
  at::Tensor device(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (auto& [ours, alias] : made)
      if (alias.is_same(result)) return ours;
    for (auto& [ours, alias] : made)
      if (alias.storage().is_alias_of(result.storage()) ||
          (result.storage().data() != nullptr && alias.storage().data() == result.storage().data()))
        return with_storage(ours.storage(), result, kKey);
    return on_device(result);
  }
  // Arguments that the kernel resized (`out=`) get their new size and memory.
  void follow() {
    for (auto& [ours, alias] : made) {
      if (ours.sizes() == alias.sizes() && ours.strides() == alias.strides() &&
          ours.storage().data() == alias.storage().data())
        continue;
      at::Tensor grown = on_device(alias);
      ours.unsafeGetTensorImpl()->set_storage_keep_dtype(grown.storage());
      ours.unsafeGetTensorImpl()->set_storage_offset(alias.storage_offset());
      ours.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides());
    }
  }
};

c10::IValue replaced(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& by) {
  if (value.isTensor()) return by(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(by(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(by(*tensor)) : std::nullopt);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kDevice) return c10::Device(c10::DeviceType::CPU);
  if (value.isGenerator() && value.toGenerator().device().type() == kDevice)
    return static_cast<DeviceGenerator*>(value.toGenerator().unsafeGetGeneratorImpl())->own;
  return value;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  initialised = true;
  const std::string& name = interned(op);
  size_t count = op.schema().arguments().size();
  Aliases aliases;
  std::vector<at::Tensor> in;
  double bytes = 0;
  int where = device_now;
  bool ours = false;
  auto note = [&](const at::Tensor& tensor) {
    if (is_ours(tensor)) {
      if (!ours) where = tensor.get_device();
      ours = true;
      bytes += double(tensor.nbytes());
    }
    if (tensor.defined()) in.push_back(tensor);
    return aliases.cpu(tensor);
  };
  for (size_t at = stack->size() - count; at < stack->size(); at++)
    (*stack)[at] = replaced((*stack)[at], note);
  auto before = std::exchange(device_now, c10::DeviceIndex(where));
  {
    at::DisableRecordFunctionGuard quiet;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  aliases.follow();
  auto back = [&](const at::Tensor& tensor) {
    at::Tensor result = aliases.device(tensor);
    if (result.defined()) bytes += double(result.nbytes());
    return result;
  };
  bool is_view = false;
  for (const auto& result : op.schema().returns())
    is_view |= result.alias_info() != nullptr && !result.alias_info()->isWrite();
  for (size_t at = stack->size() - op.schema().returns().size(); at < stack->size(); at++)
    if (!(*stack)[at].isDevice() && !(*stack)[at].isGenerator())
      (*stack)[at] = replaced((*stack)[at], back);
  if (!is_view) {
    RuntimeCall call("cudaLaunchKernel", where);
    run(Kind::kKernel, kernel_name(name, in), where, stream_of(where), cost_us(name, in, bytes),
        int64_t(bytes), call);
  }
  device_now = before;
}

// ---- copies -----------------------------------------------------------------------------------

void count_copy(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  bool to_device = is_ours(to), from_device = is_ours(from);
  int index = to_device ? to.get_device() : from.get_device();
  int stream = stream_of(index);
  double bytes = double(to.nbytes());
  if (to_device && from_device && to.get_device() == from.get_device()) {
    RuntimeCall call("cudaLaunchKernel", index);
    run(Kind::kKernel, "void at::native::direct_copy_kernel_cuda", index, stream,
        std::max(settings().kernel_us, 2 * bytes / settings().gbytes_per_s / 1e3), int64_t(bytes),
        call);
    return;
  }
  bool pins = to_device != from_device && is_pinned(to_device ? from.const_data_ptr() : to.const_data_ptr());
  double rate = pins || to_device == from_device ? settings().pinned_gbytes_per_s
                                                  : settings().pageable_gbytes_per_s;
  std::string name = to_device && from_device ? "Memcpy PtoP (Device -> Device)"
                     : to_device ? (pins ? "Memcpy HtoD (Pinned -> Device)" : "Memcpy HtoD (Pageable -> Device)")
                                 : (pins ? "Memcpy DtoH (Device -> Pinned)" : "Memcpy DtoH (Device -> Pageable)");
  {
    RuntimeCall call("cudaMemcpyAsync", index);
    run(Kind::kMemcpy, name, index, stream, settings().copy_us + bytes / rate / 1e3, int64_t(bytes), call);
    // The driver returns from a copy of pageable memory once it has been made.
    if (!pins && to_device != from_device) sleep_until(device(index).busy_until(stream));
  }
  if (to_device != from_device && !(non_blocking && pins))
    synchronise("cudaStreamSynchronize", index, device(index).busy_until(stream));
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  initialised = true;
  if (self.numel() == 0) return self;
  at::Tensor from = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
  {
    at::DisableRecordFunctionGuard quiet;
    at::Tensor to = is_ours(self) ? on_cpu(self) : self;
    to.copy_(is_ours(from) ? on_cpu(from) : from);
  }
  count_copy(self, from, non_blocking);
  return self;
}
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy(target, self, non_blocking);
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  at::Tensor target = to;
  target.resize_(self.sizes());
  return copy(target, self, false);
}
at::Scalar to_scalar(const at::Tensor& self) {
  int index = self.get_device();
  {
    RuntimeCall call("cudaMemcpyAsync", index);
    run(Kind::kMemcpy, "Memcpy DtoH (Device -> Pageable)", index, stream_of(index),
        settings().copy_us, int64_t(self.nbytes()), call);
  }
  synchronise("cudaStreamSynchronize", index, device(index).busy_until(stream_of(index)));
  at::DisableRecordFunctionGuard quiet;
  return on_cpu(self).item();
}

// ---- making, resizing and viewing -------------------------------------------------------------

c10::DeviceIndex index_of(std::optional<at::Device> where) {
  return where.has_value() && where->has_index() ? where->index() : device_now;
}
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> where, std::optional<bool>) {
  auto before = std::exchange(device_now, index_of(where));
  auto dtype = c10::scalarTypeToTypeMeta(type.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
  size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, device_memory->allocate(bytes),
                       device_memory, true);
  device_now = before;
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(kKey), dtype);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return made;
}
at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout> layout, std::optional<at::Device> where,
                 std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  // An empty tensor of the same strides as the CPU would give it.
  auto like = at::empty(sizes, type, std::nullopt, at::Device(at::kMeta), std::nullopt, format);
  return empty_strided(sizes, like.strides(), type, layout, where, pin);
}
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  auto like = at::empty(sizes, self.options().device(at::kMeta),
                        format.has_value() && *format != at::MemoryFormat::Preserve ? format : std::nullopt);
  auto* impl = self.unsafeGetTensorImpl();
  size_t bytes = (size_t(impl->storage_offset()) * impl->itemsize()) +
                 at::detail::computeStorageNbytes(sizes, like.strides(), impl->itemsize());
  if (bytes > self.storage().nbytes()) {
    auto before = std::exchange(device_now, self.device().index());
    auto grown = device_memory->allocate(bytes);
    device_now = before;
    if (self.storage().data() != nullptr)
      std::memcpy(grown.mutable_get(), self.storage().data(), self.storage().nbytes());
    auto* storage = self.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(std::move(grown));
    storage->set_nbytes(bytes);
  }
  impl->set_sizes_and_strides(sizes, like.strides());
  return self;
}
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(
      offset.has_value() ? offset->expect_int() : self.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes),
                                                    C10_AS_INTARRAYREF_SLOW(strides));
  return made;
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef wanted) {
  auto sizes = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(wanted), self.numel());
  auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
  TORCH_CHECK(strides.has_value(), "view size is not compatible with input tensor's size and stride");
  return as_strided(self, c10::fromIntArrayRefSlow(sizes), c10::fromIntArrayRefSlow(*strides),
                    std::nullopt);
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         c10::SymIntArrayRef strides) {
  return as_strided(self, sizes, strides, std::nullopt);
}
// Views that the CPU kernel makes of the alias: its sizes and strides over our memory.
at::Tensor viewed(const at::Tensor& self, const at::Tensor& alias) {
  return with_storage(self.storage(), alias, kKey);
}
at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return viewed(self, on_cpu(self).unfold(dim, size, step));
}
at::Tensor view_as_real(const at::Tensor& self) { return viewed(self, at::view_as_real(on_cpu(self))); }
at::Tensor view_as_complex(const at::Tensor& self) {
  return viewed(self, at::view_as_complex(on_cpu(self)));
}
at::Tensor& set_all(at::Tensor& self, at::Storage storage, c10::SymInt offset,
                    c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset.expect_int());
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
  return self;
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  int64_t length = int64_t(storage.nbytes()) / int64_t(self.itemsize());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({length});
  return self;
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& from) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(from.storage());
  impl->set_storage_offset(from.storage_offset());
  impl->set_sizes_and_strides(from.sizes(), from.strides());
  return self;
}
int64_t fused_sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;  // by hand: matrix products and a softmax
}
void record_stream(at::Tensor&, c10::Stream) {}

// The cell of an LSTM, which the CPU build has no kernel of.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  auto gates = input_gates + hidden_gates;
  if (input_bias.has_value() && input_bias->defined()) gates = gates + *input_bias;
  if (hidden_bias.has_value() && hidden_bias->defined()) gates = gates + *hidden_bias;
  auto parts = gates.chunk(4, 1);
  auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), new_cell = parts[2].tanh(),
       out = parts[3].sigmoid();
  auto next = forget * cell + in * new_cell;
  return {out * next.tanh(), next, at::cat({in, forget, new_cell, out}, 1)};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hidden, const std::optional<at::Tensor>& grad_cell,
    const at::Tensor& cell, const at::Tensor& next, const at::Tensor& workspace, bool has_bias) {
  auto parts = workspace.chunk(4, 1);
  auto &in = parts[0], &forget = parts[1], &new_cell = parts[2], &out = parts[3];
  auto bent = next.tanh();
  auto of_hidden = grad_hidden.has_value() && grad_hidden->defined() ? *grad_hidden : at::zeros_like(next);
  auto of_next = of_hidden * out * (1 - bent * bent);
  if (grad_cell.has_value() && grad_cell->defined()) of_next = of_next + *grad_cell;
  auto gates = at::cat({of_next * new_cell * in * (1 - in), of_next * cell * forget * (1 - forget),
                        of_next * in * (1 - new_cell * new_cell), of_hidden * bent * out * (1 - out)}, 1);
  return {gates, of_next * forget, has_bias ? gates.sum(0) : at::Tensor()};
}

void add_fallback(torch::Library& m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
void add_operators(torch::Library& m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(to_scalar));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(unfold));
  m.impl("view_as_real", TORCH_FN(view_as_real));
  m.impl("view_as_complex", TORCH_FN(view_as_complex));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_all));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("_fused_sdp_choice", TORCH_FN(fused_sdp_choice));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  // Its own code asks a table of kernels by device for transposed ones.
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
using Init = torch::detail::TorchLibraryInit;
const Init fallback_added(torch::Library::IMPL, &add_fallback, "_", kKey, __FILE__, __LINE__);
const Init operators_added(torch::Library::IMPL, &add_operators, "aten", kKey, __FILE__, __LINE__);

// ---- the profiler -----------------------------------------------------------------------------

class Session final : public libkineto::IActivityProfilerSession {
 public:
  Session() {
    std::lock_guard<std::mutex> lock(profile().mutex);
    profile().activities.clear();
    profile().on = true;  // from the warm-up on: work that was queued then runs in the window
  }
  ~Session() override { profile().on = false; }
  void start() override {}
  void stop() override { profile().on = false; }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t begin, int64_t end) override {
    buffer_->span = libkineto::TraceSpan(begin, end, "simulated");
    buffer_->gpuOpCount = 0;
    std::lock_guard<std::mutex> lock(profile().mutex);
    for (const auto& it : profile().activities) {
      if (it.end_ns < begin || it.begin_ns > end) continue;
      add(it, linked);
    }
    for (auto& activity : buffer_->activities) activity->log(logger);
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  void pushCorrelationId(uint64_t id) override { external_ids.push_back(id); }
  void popCorrelationId() override {
    if (!external_ids.empty()) external_ids.pop_back();
  }
  std::string getDeviceProperties() override {
    std::string text;
    for (int index = 0; index < settings().devices; index++)
      text += (index ? ", " : "") +
              ("{\"id\": " + std::to_string(index) +
               ", \"name\": \"Simulated A100\", \"totalGlobalMem\": " + std::to_string(capacity()) +
               ", \"computeMajor\": 8, \"computeMinor\": 0, \"maxThreadsPerBlock\": 1024, "
               "\"maxThreadsPerMultiprocessor\": 2048, \"warpSize\": 32, \"numSms\": 108}");
    return text;
  }

 private:
  void add(const Activity& it, const libkineto::getLinkedActivityCallback& linked) {
    using libkineto::ActivityType;
    bool host = it.kind == Kind::kRuntime;
    auto type = host ? ActivityType::CUDA_RUNTIME
                     : it.kind == Kind::kMemcpy ? ActivityType::GPU_MEMCPY
                                                : ActivityType::CONCURRENT_KERNEL;
    buffer_->emplace_activity(buffer_->span, type, it.name);
    auto& made = *buffer_->activities.back();
    made.startTime = it.begin_ns;
    made.endTime = it.end_ns;
    made.id = int32_t(it.correlation);
    made.device = host ? int32_t(getpid()) : it.device;
    made.resource = host ? int32_t(it.thread) : it.stream + 7;
    made.threadId = int32_t(it.thread);
    made.flow.id = it.correlation;
    made.flow.type = libkineto::kLinkAsyncCpuGpu;
    made.flow.start = host;
    made.addMetadata("correlation", it.correlation);
    if (it.external != 0) {
      made.addMetadata("External id", it.external);
      made.linked = linked(int32_t(it.external));
    }
    if (!host) {
      made.addMetadata("device", it.device);
      made.addMetadata("stream", it.stream + 7);
      if (it.kind == Kind::kMemcpy) {
        made.addMetadata("bytes", it.bytes);
        made.addMetadata("memory bandwidth (GB/s)",
                         double(it.bytes) / double(std::max<int64_t>(it.end_ns - it.begin_ns, 1)));
      }
      buffer_->gpuOpCount++;
    }
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string it = "simulated";
    return it;
  }
  const std::set<libkineto::ActivityType>& availableActivities() const override {
    static const std::set<libkineto::ActivityType> it = {
        libkineto::ActivityType::GPU_MEMCPY, libkineto::ActivityType::CONCURRENT_KERNEL,
        libkineto::ActivityType::CUDA_RUNTIME};
    return it;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>& types, const libkineto::Config&) override {
    bool asked = types.count(libkineto::ActivityType::CONCURRENT_KERNEL) > 0;
    if (!asked || !settings().profiler) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<libkineto::ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};
bool profiler_registered = [] {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  return true;
}();

}  // namespace simulated

// ---- for Python (ctypes) ----------------------------------------------------------------------

extern "C" {
int simulated_devices() { return simulated::settings().devices; }
int64_t simulated_capacity() { return int64_t(simulated::capacity()); }
int simulated_initialised() { return simulated::initialised; }
double simulated_elapsed_ms(const void* from, const void* to) {
  using simulated::Event;
  return double(static_cast<const Event*>(to)->time_ns - static_cast<const Event*>(from)->time_ns) / 1e6;
}
// What is queued on a device and not done yet.
int64_t simulated_pending_ns(int index) {
  int64_t until = simulated::device(index).all_busy_until();
  return std::max<int64_t>(until - simulated::now_ns(), 0);
}
int simulated_event_device(const void* event) {
  return static_cast<const simulated::Event*>(event)->device;
}
int simulated_event_times() { return simulated::settings().event_times; }
void simulated_initialise() { simulated::initialised = true; }
// What a device counted since the process began, in this order: kernels, copies,
// synchronisations, mallocs, frees, busy ns, copy ns, waited ns.
void simulated_counts(int index, int64_t* to) {
  auto& counts = simulated::device(index).counts;
  int at = 0;
  for (auto* count : {&counts.kernels, &counts.copies, &counts.synchronisations, &counts.mallocs,
                      &counts.frees, &counts.busy_ns, &counts.copy_ns, &counts.waited_ns})
    to[at++] = *count;
}
}
