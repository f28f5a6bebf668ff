// UnitUses' functions for tables: large matrices whose gradients are never complete in memory.
// Their nodes have an edge to the parameter, like any reader, and return an undefined gradient
// there; they add their gradients themselves. If other code asks for the gradient, they return it
// as a whole tensor.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>
#include <vector>

#include "zero3/torch/matrix_tiles.h"
#include "zero3/torch/unit_use.h"
#include "zero3/torch/unit_uses.h"

namespace artesian::zero3 {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A table's parameter as its nodes refer to it; the nodes may outlive the engine.
struct UnitUses::Table final : torch::CustomClassHolder {
  Table(std::shared_ptr<Link> owner, std::uint32_t number)
      : link(std::move(owner)), parameter(number) {}

  static const char* key() { return "table"; }
  static const Table& of(const AutogradContext& context) {
    return static_cast<const Table&>(*context.saved_data.at(key()).toCapsule());
  }

  /// Passes the gradient to the engine, if it takes it. False: the gradient goes to autograd.
  template <typename Add>
  bool give(const Add& add) const {
    bool takes = true;
    const bool alive = link->with_uses([&](UnitUses& uses) {
      const bool failed = uses.has_failed(current_task());
      takes = failed || uses.takes_by_itself(parameter);
      if (takes && !failed) uses.raise(add(uses));
    });
    return alive && takes;
  }

  const std::shared_ptr<Link> link;
  const std::uint32_t parameter;
};

struct UnitUses::LookUp : torch::autograd::Function<LookUp> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& ids, std::int64_t padding, at::ScalarType dtype,
                            const c10::intrusive_ptr<Table>& table) {
    context->saved_data[Table::key()] = c10::IValue::make_capsule(table);
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["padding"] = padding;
    context->save_for_backward({ids});
    // Allows callers to change the result in place.
    const at::AutoDispatchBelowADInplaceOrView no_views;
    return at::embedding(weight, ids, padding).to(dtype);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor whole;
    if (context->needs_input_grad(0)) {
      const at::Tensor ids = context->get_saved_variables()[0];
      const std::int64_t padding = context->saved_data["padding"].toInt();
      const Table& table = Table::of(*context);
      const bool given = table.give([&](UnitUses& uses) {
        return uses.add_rows(table.parameter, ids, gradients[0], padding);
      });
      if (!given) {
        whole = at::embedding_dense_backward(gradients[0], ids, context->saved_data["rows"].toInt(),
                                             padding, /*scale_grad_by_freq=*/false);
      }
    }
    return {whole, {}, {}, {}, {}};
  }
};

struct UnitUses::Multiply : torch::autograd::Function<Multiply> {
  /// True if the matrix is expanded tile by tile. In 16 bit a sum over tiles would be rounded at
  /// each tile.
  static bool by_tiles(const at::Tensor& input, const at::Tensor& weight) {
    return input.scalar_type() == at::kFloat && weight.scalar_type() != at::kFloat;
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& added,
                            bool one_by_one, const c10::intrusive_ptr<Table>& table) {
    const at::Tensor bias = added.value_or(at::Tensor());
    context->saved_data[Table::key()] = c10::IValue::make_capsule(table);
    context->saved_data["bias"] = bias.defined();
    context->save_for_backward({input, weight});
    // Allows callers to change the result in place.
    const at::AutoDispatchBelowADInplaceOrView no_views;
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape.back() = weight.size(0);
    if (by_tiles(input, weight)) return times_transposed(rows_of(input), weight, bias).view(shape);
    const at::Tensor matrix = weight.to(input.scalar_type());
    if (input.dim() < 3 || (input.is_contiguous() && (bias.defined() || !one_by_one))) {
      return at::linear(input, matrix, bias);
    }
    at::Tensor product = at::empty(shape, input.options().requires_grad(false));
    const std::int64_t rows = one_by_one ? input.size(-2) : product.numel() / weight.size(0);
    const at::Tensor factors = input.reshape({-1, rows, input.size(-1)});
    const at::Tensor products = product.view({-1, rows, weight.size(0)});
    for (std::int64_t index = 0; index < factors.size(0); ++index) {
      at::Tensor part = products.select(0, index);
      at::mm_out(part, factors.select(0, index), matrix.t());
    }
    return bias.defined() ? product.add_(bias) : product;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor factor = rows_of(gradients[0]);
    at::Tensor of_input;
    if (context->needs_input_grad(0)) {
      of_input = by_tiles(input, weight) ? times(factor, weight)
                                         : at::mm(factor, weight.to(input.scalar_type()));
      of_input = of_input.view(input.sizes());
    }
    at::Tensor of_weight;
    if (context->needs_input_grad(1)) {
      const Table& table = Table::of(*context);
      const bool given = table.give(
          [&](UnitUses& uses) { return uses.add_tiles(table.parameter, factor, rows_of(input)); });
      if (!given) of_weight = at::mm(factor.t(), rows_of(input));
    }
    at::Tensor of_bias;
    const bool has_bias = context->saved_data["bias"].toBool();
    if (has_bias && context->needs_input_grad(2)) of_bias = factor.sum(0);
    return {of_input, of_weight, of_bias, {}, {}};
  }

  /// True if PyTorch repeats a frozen weight and multiplies a batch's matrices one by one. It does
  /// so if the rows cannot be viewed as one matrix, as for `hidden[:, -1:]`. The result's bits
  /// differ from those of one product over all rows. Source: should_fold() in
  /// ATen/native/LinearAlgebra.cpp.
  static bool one_by_one(const at::Tensor& input) {
    if (input.dim() < 3 || input.numel() == 0) return false;
    for (std::int64_t axis = 0; axis < input.dim() - 2; ++axis) {
      if (input.stride(axis) != input.stride(axis + 1) * input.size(axis + 1)) return true;
    }
    return false;
  }

 private:
  static at::Tensor rows_of(const at::Tensor& tensor) {
    return tensor.reshape({-1, tensor.size(-1)});
  }
};

at::Tensor UnitUses::look_up(std::uint32_t parameter, const at::Tensor& ids, std::int64_t padding) {
  return LookUp::apply(tensors_.at(parameter), ids, padding, scalar_type(core_.compute_dtype()),
                       c10::make_intrusive<Table>(link_, parameter));
}

at::Tensor UnitUses::multiply(std::uint32_t parameter, const at::Tensor& input,
                              const at::Tensor& bias, FrozenBy frozen_by) {
  const auto device = input.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device);
  const auto dtype =
      casts ? at::autocast::get_autocast_dtype(device) : scalar_type(core_.compute_dtype());
  const auto added = bias.defined() ? std::optional(bias.to(dtype)) : std::nullopt;
  const at::Tensor factor = input.to(dtype);
  const at::Tensor& weight = tensors_.at(parameter);
  const bool is_frozen = !weight.requires_grad() && frozen_by == FrozenBy::Caller;
  return Multiply::apply(factor, weight, added, is_frozen && Multiply::one_by_one(factor),
                         c10::make_intrusive<Table>(link_, parameter));
}

/// False if autograd shall get the gradient of a tiled parameter as a tensor.
bool UnitUses::takes_by_itself(std::uint32_t parameter) const {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensors_.at(parameter));
  return accumulator != nullptr && accumulates_in_current_task(accumulator.get()) &&
         !has_hooks(*accumulator);
}

/// Adds the gradients of rows, [..., width]; gradients of one row are summed in fp32.
Result<void> UnitUses::add_rows(std::uint32_t parameter, const at::Tensor& ids,
                                const at::Tensor& gradient, std::int64_t padding) {
  ARTESIAN_TRY_VOID(check_added(parameter, gradient));
  ARTESIAN_TRY_VOID(ready_for_gradients());
  added_[parameter] = true;
  const std::int64_t width = gradient.size(-1);
  at::Tensor rows = ids.reshape(-1).to(at::kLong).contiguous();
  const at::Tensor values =
      as_part_of_mean(gradient).reshape({-1, width}).to(at::kFloat).contiguous();
  std::vector<std::int64_t> taken;
  std::vector<const float*> starts;
  const auto* row = rows.const_data_ptr<std::int64_t>();
  const auto* value = values.const_data_ptr<float>();
  for (std::int64_t index = 0; index < rows.numel(); ++index) {
    if (row[index] == padding) continue;
    taken.push_back(row[index]);
    starts.push_back(value + index * width);
  }
  core_.counters().bytes_to_host +=
      taken.size() * static_cast<std::uint64_t>(width) * core_.gradients().element_size();
  if (core_.gradients().holds()) {
    std::vector<float> held;
    for (const float* start : starts) held.insert(held.end(), start, start + width);
    core_.gradients().hold_rows(parameter, std::move(taken), std::move(held));
    return {};
  }
  return core_.remember(
      core_.gradients().add_rows(parameter, taken, starts, static_cast<std::uint64_t>(width)));
}

/// Adds factor^T input, each tile when it is computed. Shape: factor: [n, rows]; input: [n, width].
Result<void> UnitUses::add_tiles(std::uint32_t parameter, const at::Tensor& factor,
                                 const at::Tensor& input) {
  ARTESIAN_TRY_VOID(check_added(parameter, factor));
  ARTESIAN_TRY_VOID(ready_for_gradients());
  ARTESIAN_TRY_VOID(reopen(layout_.places[parameter].unit));
  added_[parameter] = true;
  Gradients& gradients = core_.gradients();
  ARTESIAN_TRY_VOID(core_.remember(gradients.begin_parts(parameter)));
  struct End {  // runs also if LibTorch throws
    ~End() { ended = gradients.end_parts(parameter); }
    Gradients& gradients;
    std::uint32_t parameter;
    Result<std::uint64_t>& ended;
  };
  Result<std::uint64_t> ended{std::uint64_t{0}};
  {
    const End end{gradients, parameter, ended};
    each_part_of_gradient(
        as_part_of_mean(factor), input, [&](std::int64_t first, const at::Tensor& part) {
          const at::Tensor values = part.to(at::kFloat);
          gradients.add_part(parameter, static_cast<std::uint64_t>(first * input.size(1)),
                             values.const_data_ptr<float>(),
                             static_cast<std::uint64_t>(part.numel()));
        });
  }
  ARTESIAN_TRY(added, core_.remember(std::move(ended)));
  core_.counters().bytes_to_host += added * gradients.element_size();
  return {};
}

}  // namespace artesian::zero3
