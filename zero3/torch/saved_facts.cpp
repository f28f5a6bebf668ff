#include "zero3/torch/saved_facts.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/safetensors_header.h"
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
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator()
                         : at::globalContext().defaultGenerator(device);
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

Result<std::map<std::string, std::string>> generator_states(c10::Device device) {
  return from_torch([&]() -> Result<std::map<std::string, std::string>> {
    std::map<std::string, std::string> states{{cpu_name, state_of(c10::kCPU)}};
    if (!device.is_cpu()) states.emplace(device.str(), state_of(device));
    return states;
  });
}

Result<void> restore_generators(const std::map<std::string, std::string>& states,
                                c10::Device device) {
  const auto on_cpu = states.find(cpu_name);
  if (on_cpu != states.end()) ARTESIAN_TRY_VOID(restore(cpu_name, on_cpu->second, c10::kCPU));
  const auto on_device = states.find(device.str());
  if (device.is_cpu() || on_device == states.end()) return {};
  return restore(on_device->first, on_device->second, device);
}

/// Logs once which facts differ from those of the saved training.
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

struct ElementType {
  const char* name;  // name in the safetensors format
  at::ScalarType type;
};
constexpr std::array<ElementType, 13> element_types{{{"BOOL", at::kBool},
                                                     {"U8", at::kByte},
                                                     {"I8", at::kChar},
                                                     {"I16", at::kShort},
                                                     {"U16", at::kUInt16},
                                                     {"F16", at::kHalf},
                                                     {"BF16", at::kBFloat16},
                                                     {"I32", at::kInt},
                                                     {"U32", at::kUInt32},
                                                     {"F32", at::kFloat},
                                                     {"C64", at::kComplexFloat},
                                                     {"F64", at::kDouble},
                                                     {"I64", at::kLong}}};

}  // namespace

std::map<std::string, std::string> facts_of_bits(c10::Device device, DType compute_dtype) {
  return {{"threads", std::to_string(at::get_num_threads())},
          {"instruction_set", at::get_cpu_capability()},
          {"compute_dtype", dtype_name(compute_dtype)},
          {"device", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
          {"torch", TORCH_VERSION}};
}

Result<void> add_facts(SaveRequest& request, c10::Device device, DType compute_dtype) {
  ARTESIAN_TRY(random, generator_states(device));
  request.random.merge(random);
  request.machine.merge(facts_of_bits(device, compute_dtype));
  return {};
}

Result<void> go_on_from(const LoadedCheckpoint& loaded, c10::Device device, DType compute_dtype) {
  ARTESIAN_TRY_VOID(restore_generators(loaded.manifest.state.random, device));
  note_other_facts(loaded.manifest.machine, facts_of_bits(device, compute_dtype));
  return {};
}

Result<BufferToSave> buffer_to_save(const std::string& name, const at::Tensor& tensor) {
  const auto found =
      std::find_if(element_types.begin(), element_types.end(),
                   [&](const ElementType& each) { return each.type == tensor.scalar_type(); });
  if (found == element_types.end() || !tensor.is_cpu() || !tensor.is_contiguous()) {
    return make_error(ErrorCode::Invalid,
                      "checkpoint: buffer \"" + name + "\": got " +
                          c10::toString(tensor.scalar_type()) + " on " + tensor.device().str() +
                          ", allowed contiguous numbers of a common type on the CPU");
  }
  BufferToSave buffer;
  buffer.buffer = {
      name, find_safetensors_type(found->name), {tensor.sizes().begin(), tensor.sizes().end()}};
  buffer.bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
  return buffer;
}

Result<at::Tensor> tensor_of(const LoadedBuffer& loaded) {
  const std::string_view name = loaded.buffer.type->name;
  const auto found = std::find_if(element_types.begin(), element_types.end(),
                                  [&](const ElementType& each) { return each.name == name; });
  if (found == element_types.end()) {
    return make_error(ErrorCode::Invalid, "checkpoint: buffer " + shown_name(loaded.buffer.name) +
                                              ": got elements of type " + std::string(name) +
                                              ", which LibTorch does not have");
  }
  return from_torch([&]() -> Result<at::Tensor> {
    const std::vector<std::int64_t> shape(loaded.buffer.shape.begin(), loaded.buffer.shape.end());
    at::Tensor tensor = at::empty(shape, found->type);
    ARTESIAN_CHECK(tensor.nbytes() == loaded.bytes.size(), tensor.nbytes(), loaded.bytes.size());
    std::memcpy(tensor.mutable_data_ptr(), loaded.bytes.data(), loaded.bytes.size());
    return tensor;
  });
}

}  // namespace artesian::zero3
