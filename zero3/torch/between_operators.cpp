#include "zero3/torch/between_operators.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <utility>

namespace artesian::zero3 {
namespace {

thread_local const std::function<void()>* current = nullptr;

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction&) {
  if (current == nullptr || at::in_parallel_region()) return nullptr;
  const auto* const work = std::exchange(current, nullptr);
  (*work)();
  current = work;
  return nullptr;
}

}  // namespace

BetweenOperators::BetweenOperators(const std::function<void()>& work) : before_(current) {
  if (!work) return;
  current = &work;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_operator).scopes({at::RecordScope::FUNCTION}));
}

BetweenOperators::~BetweenOperators() {
  if (handle_ == 0) return;
  at::removeCallback(handle_);
  current = before_;
}

}  // namespace artesian::zero3
