// The simulated accelerator's device, streams, events and hooks.
#include "tests/support/simulated_accelerator/accelerator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>

namespace artesian::test_support {
namespace {

using c10::DeviceIndex;

std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

}  // namespace

Accelerator::Accelerator()
    : devices(static_cast<int>(number_in("ARTESIAN_SIMULATED_DEVICES", 1))),
      memory(number_in("ARTESIAN_SIMULATED_MEMORY", std::uint64_t{1} << 30)) {
  for (int device = 0; device < devices; ++device) queues.add_queue();
  if (const char* order = std::getenv("ARTESIAN_SIMULATED_ORDER")) set_order(order);
}

void Accelerator::set_order(const std::string& words) {
  const std::string name = words.substr(0, words.find(':'));
  TORCH_CHECK(name == "late" || name == "early" || name == "random", "order: got ", words);
  const std::uint64_t seed =
      name == words ? 1 : std::strtoull(words.c_str() + name.size() + 1, nullptr, 10);
  queues.set_order(name == "late"    ? Order::Late
                   : name == "early" ? Order::Early
                                     : Order::Random,
                   seed);
}

void Accelerator::count(const std::string& name, bool waited) {
  const std::lock_guard lock(mutex_);
  ++(waited ? waited_ : late_)[name];
}

std::map<std::string, std::uint64_t> Accelerator::counted(bool waited) {
  const std::lock_guard lock(mutex_);
  return waited ? waited_ : late_;
}

void Accelerator::forget_counts() {
  queues.forget_counts();
  const std::lock_guard lock(mutex_);
  late_.clear();
  waited_.clear();
}

Accelerator& accelerator() {
  static auto* const the = new Accelerator();
  return *the;
}

DeviceIndex& current_device() {
  thread_local DeviceIndex device = 0;
  return device;
}

c10::StreamId& current_stream(DeviceIndex device) {
  thread_local std::array<c10::StreamId, devices_most> streams{};
  return streams[static_cast<std::size_t>(device)];
}

std::size_t queue_of(c10::StreamId stream, DeviceIndex device) {
  return stream == 0 ? static_cast<std::size_t>(device) : static_cast<std::size_t>(stream);
}

namespace {

using Mark = LateQueues::Mark;

LateQueues& queues() {
  return accelerator().queues;
}

std::size_t queue_of(const c10::Stream& stream) {
  return test_support::queue_of(stream.id(), stream.device_index());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return simulated; }
  c10::Device exchangeDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < accelerator().devices, "there is no device ", device);
    return {simulated, std::exchange(current_device(), device.index())};
  }
  c10::Device getDevice() const override { return {simulated, current_device()}; }
  void setDevice(c10::Device device) const override {
    const bool exists = device.index() >= 0 && device.index() < accelerator().devices;
    TORCH_CHECK(exists, "there is no device ", device);
    current_device() = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device() = device.index();
  }
  static c10::Stream stream_of(c10::StreamId id, c10::Device device) {
    const DeviceIndex index = device.index() < 0 ? current_device() : device.index();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(simulated, index), id);
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::Stream stream = stream_of(0, device);
    return stream_of(current_stream(stream.device_index()), device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(0, device); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(static_cast<c10::StreamId>(queues().add_queue()), device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = std::exchange(current_stream(stream.device_index()), stream.id());
    return stream_of(before, stream.device());
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(queue_of(stream) + 1);
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(accelerator().devices);
  }
  void record(void** event, const c10::Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Mark();
    *static_cast<Mark*>(*event) = queues().record(queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) queues().wait(queue_of(stream), *static_cast<Mark*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || queues().passed(*static_cast<Mark*>(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return queues().idle(queue_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    queues().finish(queues().record(queue_of(stream)));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) queues().finish(*static_cast<Mark*>(event));
  }
  void synchronizeDevice(const DeviceIndex) const override { queues().finish_all(); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    tensor_memory().recordStream(data, stream);
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    const auto passed = static_cast<Mark*>(second)->when - static_cast<Mark*>(first)->when;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return accelerator().devices > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(accelerator().devices);
  }
  void setCurrentDevice(DeviceIndex device) const override { current_device() = device; }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device(), device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* at) const override { return is_pinned(at); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Device getDeviceFromPtr(void* at) const override {
    return accelerator().memory.holds(at) ? at::Device(simulated, current_device())
                                          : at::Device(c10::kCPU);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr fresh = tensor_memory().allocate(bytes);
    const std::size_t kept = std::min(bytes, impl->nbytes());
    if (kept > 0) tensor_memory().copy_data(fresh.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

/// As a GPU's: a seed and an offset.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex device)
      : GeneratorImpl(c10::Device(simulated, device),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(std::uint64_t given) override {
    seed_ = given;
    offset_ = 0;
  }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    const auto* numbers = static_cast<const std::uint64_t*>(state.data());
    seed_ = numbers[0];
    offset_ = numbers[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::detail::empty_cpu({16}, at::kByte, {}, {}, {}, {});
    auto* numbers = static_cast<std::uint64_t*>(state.mutable_data_ptr());
    numbers[0] = seed_;
    numbers[1] = offset_;
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* made = new Generator(device_.index());
    made->seed_ = seed_;
    made->offset_ = offset_;
    return made;
  }
  std::uint64_t next() {  // splitmix64
    const std::lock_guard lock(mutex_);
    std::uint64_t z = seed_ + 0x9e3779b97f4a7c15 * ++offset_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

}  // namespace

const at::Generator& default_generator(DeviceIndex device) {
  static const auto* const all = [] {
    auto* made = new std::array<at::Generator, devices_most>();
    for (int index = 0; index < accelerator().devices; ++index) {
      (*made)[static_cast<std::size_t>(index)] = new_generator(static_cast<DeviceIndex>(index));
    }
    return made;
  }();
  return (*all)[static_cast<std::size_t>(device < 0 ? current_device() : device)];
}

at::Generator new_generator(DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current_device() : device);
}

std::uint64_t next_seed(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->next();
}

void register_accelerator() {
  c10::SetAllocator(simulated, &tensor_memory(), 100);
  at::setHostAllocator(simulated, &pinned_memory(), 100);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}

}  // namespace artesian::test_support
