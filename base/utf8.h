// UTF-8 by the bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace artesian {

/// Bytes of the UTF-8 sequence that `text` begins with, 0 if `text` begins with no valid sequence
/// (overlong forms, surrogates and values above U+10FFFF are invalid). A sequence cut off by the
/// end of `text` counts in full. `text` must not be empty.
std::size_t utf8_sequence(std::string_view text) noexcept;

/// The bytes of a path as UTF-8, for files that accept nothing else. Valid UTF-8 is returned
/// unchanged; otherwise each invalid byte becomes "\xE9" or the like, and each backslash "\\".
std::string as_utf8(std::string_view bytes);

}  // namespace artesian
