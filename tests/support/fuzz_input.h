// Shared by the fuzzers: bytes as a file that a reader can open, and checks that every error
// passes.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "base/check.h"
#include "base/result.h"

namespace artesian::test_support {

/// A file in memory with a path in this process, filled anew for each input.
class InputInMemory {
 public:
  InputInMemory() : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    ARTESIAN_CHECK(descriptor_ >= 0);
  }
  ~InputInMemory() { close(descriptor_); }
  InputInMemory(const InputInMemory&) = delete;
  InputInMemory& operator=(const InputInMemory&) = delete;

  void fill(std::span<const std::uint8_t> bytes) {
    ARTESIAN_CHECK(ftruncate(descriptor_, static_cast<off_t>(bytes.size())) == 0);
    if (bytes.empty()) return;
    const auto written = pwrite(descriptor_, bytes.data(), bytes.size(), 0);
    ARTESIAN_CHECK(written == static_cast<ssize_t>(bytes.size()), written);
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// Text for a terminal: valid UTF-8, no control character but line ends, at most `lines` lines,
/// none of them absurdly long.
inline void check_shown(const std::string& text, std::ptrdiff_t lines) {
  constexpr std::size_t size_max = 4096;
  ARTESIAN_CHECK(!text.empty() && text.size() <= size_max, text.size());
  ARTESIAN_CHECK(std::count(text.begin(), text.end(), '\n') < lines, text);
  const bool controls = std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f;
  });
  ARTESIAN_CHECK(!controls);
  static_cast<void>(nlohmann::json(text).dump());  // throws where it is not UTF-8
}

}  // namespace artesian::test_support
