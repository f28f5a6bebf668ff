// Edits JSON as people write it (zero3/config/text.h), as text: parts that are not edited keep
// their order, layout and comments. The text must have been accepted by read_json.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace artesian::bench {

struct Member {
  std::string key;  // as written, without quotation marks
  std::size_t key_begin = 0;
  std::size_t begin = 0;  // offset of the value's first byte
  std::size_t end = 0;
};

/// Finds the members of objects. The parser keeps no offsets, so this class scans the text again;
/// it only needs to recognise strings and comments.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  /// `at`: offset of the object's opening brace.
  std::vector<Member> members(std::size_t at);
  /// The offset of the closing brace of the object that `members` scanned last.
  std::size_t closing_brace() const { return close_; }
  /// Returns the offset of the next token after blanks and comments.
  std::size_t next(std::size_t at);
  std::size_t first_value();

 private:
  bool sees(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  void skip();
  void skip_value();

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t close_ = 0;
};

struct Edit {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string text;
};

std::string apply_edits(std::string_view text, std::vector<Edit> edits);
/// Gives added lines the line ends of the text: "\r\n" in Windows files.
void match_newlines(std::string_view text, std::vector<Edit>& edits);
/// Returns the blanks, U+00A0 included, at the beginning of this line.
std::string indentation(std::string_view text, std::size_t at);

/// Returns the edits that append members to an object, each on its own line if the object spans
/// several lines. `open`, `close`: offsets of its braces.
std::vector<Edit> insertion(std::string_view text, std::size_t open, std::size_t close,
                            const std::vector<Member>& members,
                            const std::vector<std::string>& added);
/// Returns the edits that remove a member from its object, with its separating comma and any empty
/// line left.
std::vector<Edit> removal(std::string_view text, const std::vector<Member>& members,
                          std::size_t index);

}  // namespace artesian::bench
