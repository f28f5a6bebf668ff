// UTF-8 by the bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace artesian {

/// Bytes of the UTF-8 sequence that `text` begins with, 0 if it is none: overlong forms, surrogates
/// and what is above U+10FFFF are none. One that the end cuts counts as if it went on. `text` is
/// not empty.
std::size_t utf8_sequence(std::string_view text) noexcept;

/// The bytes of a path as UTF-8, for files that take nothing else: as they are, if they are UTF-8;
/// else with "\xE9" for each byte that is not, and "\\" for each backslash.
std::string as_utf8(std::string_view bytes);

}  // namespace artesian
