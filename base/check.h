// Checks for programmer errors. On in release builds: a broken invariant stops the process with the
// values that broke it. Never use a check on anything that a file, the kernel, a peer or a user can
// cause: those are `Result` errors (base/result.h).
#pragma once

#include <cstdint>
#include <string>

namespace artesian {

/// Prints "CHECK failed: expression at file:line (values)" to stderr and aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& values) noexcept;

namespace detail {
inline std::string check_value(bool value) {
  return value ? "true" : "false";
}
inline std::string check_value(const void* value) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(value));
}
template <typename T>
std::string check_value(const T& value) {
  if constexpr (requires { std::to_string(value); }) {
    return std::to_string(value);
  } else {
    return "?";
  }
}
template <typename... Values>
std::string check_values(const Values&... values) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + check_value(values)), ...);
  return text;
}
}  // namespace detail
}  // namespace artesian

/// ARTESIAN_CHECK(condition, values...): aborts with the values when the condition is false.
#define ARTESIAN_CHECK(condition, ...)                            \
  (static_cast<bool>(condition)                                   \
       ? void(0)                                                  \
       : ::artesian::check_failed(#condition, __FILE__, __LINE__, \
                                  ::artesian::detail::check_values(__VA_ARGS__)))

/// For element loops only: checked in debug builds.
#ifdef NDEBUG
#define ARTESIAN_DCHECK(condition, ...) void(0)
#else
#define ARTESIAN_DCHECK(condition, ...) ARTESIAN_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
