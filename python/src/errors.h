// Converts Results to exceptions: artesian.Error and its subclasses, one for each code.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <type_traits>
#include <utility>

#include "base/result.h"

namespace artesian::python {

/// Raises the exception for the error's code (python/artesian/errors.py). Needs the GIL.
[[noreturn]] void raise(const Error& error);

/// Returns the value, or raises its exception. Needs the GIL.
template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.has_value()) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

/// The same for a call that may wait for the disk, and so runs without the GIL.
template <typename Call>
auto without_gil(Call&& call) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return call();
  }();
  return value_or_raise(std::move(result));
}

}  // namespace artesian::python
