// Converts LibTorch's exceptions to Errors, in this one place.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "base/result.h"

namespace artesian::zero3 {

/// LibTorch's message, and what to do if it concerns one of our settings.
inline std::string text_of(const c10::Error& error) {
  std::string text = std::string("LibTorch: ") + error.what_without_backtrace();
  if (text.find("does not have a deterministic implementation") == std::string::npos) return text;
  return "artesian.determinism: got required, allowed preferred for this operation of the model's, "
         "which then may give other bits in each run: " +
         text;
}

/// Calls `function`, which returns a Result, and converts exceptions of LibTorch to Errors.
template <typename Function>
auto from_torch(Function&& function) noexcept -> decltype(function()) {
  try {
    return function();
  } catch (const c10::OutOfMemoryError& error) {
    return make_error(ErrorCode::Exhausted,
                      std::string("LibTorch: ") + error.what_without_backtrace() +
                          " artesian.device_memory, which the engine has reserved, is not free to "
                          "LibTorch: lower it, or the micro-batch");
  } catch (const c10::Error& error) {
    return make_error(ErrorCode::Invalid, text_of(error));
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::Exhausted, "out of memory");
  } catch (const std::exception& error) {
    return make_error(ErrorCode::Invalid, std::string("LibTorch: ") + error.what());
  }
}

}  // namespace artesian::zero3
