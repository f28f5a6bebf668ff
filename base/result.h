// Result<T>: a value or an Error. Errors are values, because completions arrive on a progress
// thread where an exception has no caller, and a failed read is data of its request. The names are
// those of std::expected, so that a later switch is one alias (g++ 12 has it only under C++23,
// which nvcc 13 does not speak). Debug builds abort when a Result that holds an error is destroyed
// without having been checked.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"

namespace artesian {

/// The closed set of things that can go wrong.
enum class ErrorCode : std::uint8_t {
  Io,           // the device or the kernel failed a transfer or a call
  NoSpace,      // a disk or quota is full
  Corrupt,      // bytes differ from those written: checksum, generation, format
  Invalid,      // a value from the user or from a file is not allowed
  Exhausted,    // a budget or a limit is used up
  Cancelled,    // the caller withdrew the request
  Timeout,      // a deadline passed
  Busy,         // another process or caller holds the lock
  Unsupported,  // known, but not available here or not yet
  PeerLost,     // another rank has ended
};

/// The code's name as written above. Never null.
const char* error_code_name(ErrorCode code) noexcept;

/// "No space left on device" for 28. Unlike strerror it may be called from any thread.
std::string system_error_text(int number);

/// Says what failed. Fields that do not apply stay at their defaults; text is built by `to_string`.
struct Error {
  ErrorCode code = ErrorCode::Invalid;
  int system_error = 0;  // errno, or 0
  // what was tried, received and allowed, and what to do; one line per fault
  std::string message = {};
  std::string file = {};     // path concerned, or empty
  std::uint64_t offset = 0;  // bytes into `file`
  std::uint64_t length = 0;  // bytes; 0 = no range
  const char* source_file = __builtin_FILE();
  int source_line = __builtin_LINE();

  /// "message: file: at offset O, length L: strerror". Parts that are empty are left out.
  std::string to_string() const;
};

/// Makes an Error with a code and a one-line message; remembers the source line of the call.
inline Error make_error(ErrorCode code, std::string message, int system_error = 0,
                        const char* source_file = __builtin_FILE(),
                        int source_line = __builtin_LINE()) {
  Error error{.code = code, .system_error = system_error, .message = std::move(message)};
  error.source_file = source_file;
  error.source_line = source_line;
  return error;
}

template <typename T>
class [[nodiscard]] Result {
  using Value = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

 public:
  using value_type = T;

  Result() noexcept requires std::is_void_v<T> : storage_(Value{}) {}
  template <typename U = Value>
  requires(!std::is_void_v<T> && std::is_constructible_v<Value, U&&> &&
           !std::is_same_v<std::remove_cvref_t<U>, Result> &&
           !std::is_same_v<std::remove_cvref_t<U>, Error>) Result(U&& value)
      : storage_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Error error) : storage_(std::in_place_index<1>, std::move(error)) {}
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  Result(Result&& other) noexcept : storage_(std::move(other.storage_)), seen_(other.seen_) {
    other.seen_ = true;
  }
  Result& operator=(Result&& other) noexcept {
    expect_seen();
    storage_ = std::move(other.storage_);
    seen_ = other.seen_;
    other.seen_ = true;
    return *this;
  }
  ~Result() { expect_seen(); }

  bool has_value() const noexcept {
    seen_ = true;
    return storage_.index() == 0;
  }
  explicit operator bool() const noexcept { return has_value(); }

  Value& value() & {
    ARTESIAN_CHECK(has_value());
    return std::get<0>(storage_);
  }
  const Value& value() const& {
    ARTESIAN_CHECK(has_value());
    return std::get<0>(storage_);
  }
  Value&& value() && {
    ARTESIAN_CHECK(has_value());
    return std::get<0>(std::move(storage_));
  }
  Value& operator*() & { return value(); }
  const Value& operator*() const& { return value(); }
  Value&& operator*() && { return std::move(*this).value(); }
  Value* operator->() { return &value(); }
  const Value* operator->() const { return &value(); }

  Error& error() & {
    ARTESIAN_CHECK(!has_value());
    return std::get<1>(storage_);
  }
  const Error& error() const& {
    ARTESIAN_CHECK(!has_value());
    return std::get<1>(storage_);
  }
  Error&& error() && {
    ARTESIAN_CHECK(!has_value());
    return std::get<1>(std::move(storage_));
  }

  /// Calls `function` with the value and returns its Result, or returns the error.
  template <typename Function>
  auto and_then(Function&& function) && {
    if constexpr (std::is_void_v<T>) {
      using Next = std::remove_cvref_t<decltype(function())>;
      return has_value() ? function() : Next(std::move(*this).error());
    } else {
      using Next = std::remove_cvref_t<decltype(function(std::move(*this).value()))>;
      return has_value() ? function(std::move(*this).value()) : Next(std::move(*this).error());
    }
  }

 private:
  void expect_seen() const noexcept {
#ifndef NDEBUG
    ARTESIAN_CHECK(seen_ || storage_.index() == 0);
#endif
  }

  std::variant<Value, Error> storage_;
  mutable bool seen_ = false;
};

}  // namespace artesian

#define ARTESIAN_CONCAT_INNER(a, b) a##b
#define ARTESIAN_CONCAT(a, b) ARTESIAN_CONCAT_INNER(a, b)

/// ARTESIAN_TRY(name, expression): names the value, or returns the error to our caller.
#define ARTESIAN_TRY(name, expression) \
  ARTESIAN_TRY_INNER(name, expression, ARTESIAN_CONCAT(result_, __LINE__))
#define ARTESIAN_TRY_INNER(name, expression, result)         \
  auto result = (expression);                                \
  if (!result.has_value()) return std::move(result).error(); \
  auto name = std::move(result).value()

/// ARTESIAN_TRY_VOID(expression): returns the error, if any, to our caller.
#define ARTESIAN_TRY_VOID(expression)                                        \
  do {                                                                       \
    auto result_of_try = (expression);                                       \
    if (!result_of_try.has_value()) return std::move(result_of_try).error(); \
  } while (false)
