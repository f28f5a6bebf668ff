// PyTorch's operators on the simulated accelerator: one fallback for all. It gets the results'
// shapes from the operator's meta kernel at once, and enqueues its CPU kernel over the memory that
// kernels see. Only operators that return numbers, or shapes that depend on data, wait.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "tests/support/simulated_accelerator/kernel_tensors.h"
#include "tests/support/simulated_accelerator/plain_operators.h"

namespace artesian::test_support {
namespace {

using torch::jit::Stack;

at::Tensor as_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor made = at::detail::empty_strided_meta(
      tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, c10::Device(c10::kMeta), {});
  keep_wrapped(tensor, made);
  return made;
}

/// Borrows the CPU's default generator, for operators that are given none.
class BorrowedGenerator {
 public:
  explicit BorrowedGenerator(std::uint64_t seed) { own_.set_current_seed(seed); }
  ~BorrowedGenerator() { own_.set_state(before_); }
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;

 private:
  at::Generator own_ = at::detail::getDefaultCPUGenerator();
  at::Tensor before_ = own_.get_state();
};

void run_kernel(const c10::OperatorHandle& op, Stack& stack, std::optional<std::uint64_t> seed) {
  const Bare bare;
  std::optional<BorrowedGenerator> borrowed;
  if (seed.has_value()) borrowed.emplace(*seed);
  op.callBoxed(stack);
}

/// The CPU's kernel keeps mean and deviation in the dtype of the input. The meta kernel decides by
/// the device, so its answer is corrected here.
void keep_dtype_of_statistics(const c10::OperatorHandle& op, const Stack& arguments, Stack& made) {
  if (op.schema().name() != "aten::native_layer_norm") return;
  const auto dtype = arguments[0].toTensor().scalar_type();
  for (std::size_t i : {std::size_t{1}, std::size_t{2}}) made[i] = made[i].toTensor().to(dtype);
}

/// Returns the operator's results without values, or nothing if their shapes are not known before
/// it runs. No lock is held, as some meta kernels are written in Python.
std::optional<Stack> infer(const c10::OperatorHandle& op, const Stack& arguments) {
  if (op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape)) {
    return {};
  }
  for (const auto& result : op.schema().returns()) {
    const auto kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return {};
  }
  Stack stack;
  for (const c10::IValue& value : arguments) {
    stack.push_back(value.isDevice()      ? c10::IValue(c10::Device(c10::kMeta))
                    : value.isGenerator() ? c10::IValue()
                                          : map_tensors(value, as_meta));
  }
  try {
    const Bare bare;
    op.callBoxed(stack);
    keep_dtype_of_statistics(op, arguments, stack);
    return stack;
  } catch (const c10::Error&) {
    return {};
  } catch (const python_error&) {
    const pybind11::gil_scoped_acquire acquired;
    PyErr_Clear();
    return {};
  }
}

/// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack) : op_(op), schema_(op.schema()) {
    const std::size_t count = schema_.arguments().size();
    given_ = Stack(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    torch::jit::drop(*stack, count);
    device_ = current_device();
    for (const auto& value : given_) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (is_simulated(tensor)) device_ = tensor.device().index();
      });
    }
  }

  void run(Stack* stack) {
    const c10::DeviceGuard guard(c10::Device(simulated, device_));
    queue_ = current_queue();
    find_returned_arguments();
    std::optional<Stack> made;
    const bool needs_shapes = !all_returned_ || has_empty_out();
    if (needs_shapes) made = infer(op_, given_);
    if (made.has_value()) resize_empty_outs(*made);
    collect_arguments();
    const bool waits = needs_shapes && !made.has_value();
    accelerator().count(schema_.name(), waits);
    waits ? run_now(stack) : enqueue(stack, std::move(made));
  }

 private:
  /// Finds the results that are arguments themselves.
  void find_returned_arguments() {
    for (const auto& result : schema_.returns()) {
      returned_.emplace_back();
      if (result.alias_info() == nullptr) {
        all_returned_ = false;
        continue;
      }
      for (std::size_t i = 0; i < given_.size(); ++i) {
        const auto* info = schema_.arguments()[i].alias_info();
        if (info != nullptr && *info == *result.alias_info()) returned_.back() = i;
      }
      const bool known = returned_.back().has_value() && result.alias_info()->isWrite();
      TORCH_CHECK(known, "sim: ", schema_.operator_name(), " makes a view; register it");
    }
  }
  bool has_empty_out() const {
    bool found = false;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      if (!schema_.arguments()[i].is_out()) continue;
      each_tensor(given_[i], [&](const at::Tensor& tensor) { found |= tensor.numel() == 0; });
    }
    return found;
  }
  void resize_empty_outs(const Stack& made) {
    if (!has_empty_out()) return;
    for (std::size_t i = 0; i < returned_.size(); ++i) {
      if (!returned_[i].has_value() || !made[i].isTensor()) continue;
      given_[*returned_[i]].toTensor().resize_(made[i].toTensor().sizes());
    }
  }
  void collect_arguments() {
    const bool draws = op_.hasTag(at::Tag::nondeterministic_seeded);
    bool takes_generator = false;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const auto& argument = schema_.arguments()[i];
      const bool is_generator = argument.type()->str().find("Generator") != std::string::npos;
      if (is_generator && draws) {
        takes_generator = true;
        const at::Generator& generator =
            given_[i].isGenerator() ? given_[i].toGenerator() : default_generator(device_);
        TORCH_CHECK(generator.device().type() == simulated,
                    "Expected a 'sim' device type for generator but found '",
                    generator.device().type(), "'");
        seen_.push_back(at::detail::createCPUGenerator(next_seed(generator)));
        continue;
      }
      if (given_[i].isDevice()) {
        seen_.push_back(c10::Device(c10::kCPU));
        continue;
      }
      const auto* info = argument.alias_info();
      const bool written = info != nullptr && info->isWrite();
      seen_.push_back(
          map_tensors(given_[i], [&](const at::Tensor& tensor) { return seen(tensor, written); }));
    }
    if (draws && !takes_generator) seed_ = next_seed(default_generator(device_));
  }
  at::Tensor seen(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (is_simulated(tensor)) {
      ranges_.push_back(range_of(tensor, written));
      return for_kernels(tensor);
    }
    const bool indexes = schema_.name() == "aten::index" || schema_.name() == "aten::index_put_";
    TORCH_CHECK(tensor.dim() == 0 || indexes,
                "Expected all tensors to be on the same device, but got one on ", tensor.device(),
                ", different from other tensors on sim:", int{device_}, " (in ",
                schema_.operator_name(), ")");
    if (tensor.is_meta()) return tensor;
    at::Tensor value = tensor.detach().clone();
    keep_wrapped(tensor, value);
    return value;
  }

  /// The host waits, computes, and copies the results to the device.
  void run_now(Stack* stack) {
    LateQueues& queues = accelerator().queues;
    queues.finish(queues.record(queue_));
    queues.touch(queue_, schema_.name(), ranges_);
    run_kernel(op_, seen_, seed_);
    for (std::size_t i = 0; i < returned_.size(); ++i) {
      if (returned_[i].has_value()) {
        stack->push_back(given_[*returned_[i]]);
        continue;
      }
      stack->push_back(map_tensors(seen_[i], [&](const at::Tensor& made) {
        if (!made.defined()) return made;
        const at::Tensor out = empty_like_on(device_, made);
        queues.enqueue(queue_, schema_.name(), {range_of(out, true)},
                       [to = for_kernels(out), made] {
                         const Bare bare;
                         to.copy_(made);
                       });
        return out;
      }));
    }
  }

  void enqueue(Stack* stack, std::optional<Stack> made) {
    Stack results;  // as kernels see them; none where an argument is returned
    for (std::size_t i = 0; i < returned_.size(); ++i) {
      if (returned_[i].has_value()) {
        stack->push_back(given_[*returned_[i]]);
        results.emplace_back();
        continue;
      }
      const c10::IValue outs = map_tensors((*made)[i], [&](const at::Tensor& tensor) {
        return tensor.defined() ? empty_like_on(device_, tensor) : tensor;
      });
      results.push_back(map_tensors(outs, [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        ranges_.push_back(range_of(tensor, true));
        return for_kernels(tensor);
      }));
      stack->push_back(outs);
    }
    accelerator().queues.enqueue(
        queue_, schema_.name(), std::move(ranges_),
        [op = op_, seen = std::move(seen_), results = std::move(results), seed = seed_] {
          Stack values = seen;
          run_kernel(op, values, seed);
          copy_results(op, values, results);
        });
  }
  static void copy_results(const c10::OperatorHandle& op, const Stack& made, const Stack& results) {
    const Bare bare;
    for (std::size_t i = 0; i < results.size(); ++i) {
      std::vector<at::Tensor> from;
      std::vector<at::Tensor> to;
      each_tensor(results[i], [&](const at::Tensor& tensor) { to.push_back(tensor); });
      if (to.empty()) continue;
      each_tensor(made[i], [&](const at::Tensor& tensor) { from.push_back(tensor); });
      for (std::size_t j = 0; j < to.size(); ++j) {
        if (!to[j].defined() || !from[j].defined()) continue;
        TORCH_CHECK(to[j].sizes() == from[j].sizes(), "sim: ", op.schema().operator_name(),
                    ": its meta kernel says ", to[j].sizes(), ", its kernel ", from[j].sizes());
        to[j].copy_(from[j]);
      }
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack given_;
  c10::DeviceIndex device_ = 0;
  std::size_t queue_ = 0;
  std::vector<std::optional<std::size_t>> returned_;
  bool all_returned_ = true;
  Stack seen_;  // the arguments, as kernels see them
  std::vector<Range> ranges_;
  std::optional<std::uint64_t> seed_;
};

void run_on_queue(const c10::OperatorHandle& op, Stack* stack) {
  Call(op, stack).run(stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_queue>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // These have a composite kernel, which would precede the fallback, and whose bits differ from
  // those of the CPU's own kernel.
  for (const char* name : {"native_layer_norm", "silu_backward", "mish_backward",
                           "native_group_norm", "native_batch_norm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_queue>());
  }
}

}  // namespace
}  // namespace artesian::test_support
