#include "zero3/torch/saved_facts.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstring>
#include <mutex>

#include "base/log.h"
#include "zero3/torch/from_torch.h"

namespace artesian::zero3 {
namespace {

constexpr const char* cpu_name = "cpu";

std::string bytes_of(const at::Tensor& state) {
  const at::Tensor bytes = state.contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

at::Generator generator_of(c10::Device device) {
  return device.is_cuda() ? at::globalContext().defaultGenerator(device)
                          : at::detail::getDefaultCPUGenerator();
}

std::string state_of(c10::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  return bytes_of(generator.get_state());
}

Result<void> restore(const std::string& name, const std::string& bytes, c10::Device device) {
  auto restored = from_torch([&]() -> Result<void> {
    at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
    at::Generator generator = generator_of(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
    return {};
  });
  if (restored.has_value()) return restored;
  return make_error(ErrorCode::Corrupt, "checkpoint: its state of the generator \"" + name +
                                            "\" is none: " + restored.error().message);
}

}  // namespace

Result<std::map<std::string, std::string>> generator_states(c10::Device device) {
  return from_torch([&]() -> Result<std::map<std::string, std::string>> {
    std::map<std::string, std::string> states{{cpu_name, state_of(c10::kCPU)}};
    if (device.is_cuda()) states.emplace(device.str(), state_of(device));
    return states;
  });
}

Result<void> restore_generators(const std::map<std::string, std::string>& states,
                                c10::Device device) {
  const auto on_cpu = states.find(cpu_name);
  if (on_cpu != states.end()) ARTESIAN_TRY_VOID(restore(cpu_name, on_cpu->second, c10::kCPU));
  const auto on_device = states.find(device.str());
  if (!device.is_cuda() || on_device == states.end()) return {};
  return restore(on_device->first, on_device->second, device);
}

std::map<std::string, std::string> facts_of_bits(c10::Device device, DType compute_dtype) {
  return {{"threads", std::to_string(at::get_num_threads())},
          {"instruction_set", at::get_cpu_capability()},
          {"compute_dtype", dtype_name(compute_dtype)},
          {"device", device.is_cuda() ? "cuda" : "cpu"},
          {"torch", TORCH_VERSION}};
}

void note_other_facts(const std::map<std::string, std::string>& saved,
                      const std::map<std::string, std::string>& now) {
  std::string others;
  for (const auto& [name, value] : now) {
    const auto before = saved.find(name);
    if (before == saved.end() || before->second == value) continue;
    others += (others.empty() ? "" : ", ") + name + " was " + before->second + ", is " + value;
  }
  if (others.empty()) return;
  log(LogLevel::Warning, "checkpoint: the training goes on, but not to the same bits: " + others);
}

}  // namespace artesian::zero3
