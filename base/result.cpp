#include "base/result.h"

#include <fmt/core.h>

#include <cstring>

namespace artesian {

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::Io: return "Io";
    case ErrorCode::NoSpace: return "NoSpace";
    case ErrorCode::Corrupt: return "Corrupt";
    case ErrorCode::Invalid: return "Invalid";
    case ErrorCode::Exhausted: return "Exhausted";
    case ErrorCode::Cancelled: return "Cancelled";
    case ErrorCode::Timeout: return "Timeout";
    case ErrorCode::Busy: return "Busy";
    case ErrorCode::Unsupported: return "Unsupported";
    case ErrorCode::PeerLost: return "PeerLost";
  }
  return "Unknown";
}

std::string system_error_text(int number) {
  // Not strerror, which uses a buffer shared by threads for unknown numbers.
  const char* text = strerrordesc_np(number);
  return text != nullptr ? text : fmt::format("error {}", number);
}

std::string Error::to_string() const {
  std::string text = message.empty() ? error_code_name(code) : message;
  if (!file.empty()) text += ": " + file;
  if (length != 0) {
    text += fmt::format(": at offset {}, length {}", offset, length);
  }
  if (system_error != 0) text += ": " + system_error_text(system_error);
  return text;
}

}  // namespace artesian
