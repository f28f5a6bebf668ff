// Edits JSON as people write it (zero3/config/text.h), as text: what is not edited keeps its order,
// its layout and its comments. All of it is for text that read_json has accepted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace artesian::bench {

struct Member {
  std::string key;  // as written, without its quotation marks
  std::size_t key_begin = 0;
  std::size_t begin = 0;  // the value's first byte
  std::size_t end = 0;
};

/// Finds the members of objects. The parser keeps no places: so this needs to know where strings
/// and comments end, and no more.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  /// `at`: of the object's brace.
  std::vector<Member> members(std::size_t at);
  /// The position of the closing brace of the object that `members` went through last.
  std::size_t closing_brace() const { return close_; }
  /// Returns the place of the next token after blanks and comments.
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
/// Gives added lines the line ends of the text: "\r\n" in files of Windows.
void match_newlines(std::string_view text, std::vector<Edit>& edits);
/// Returns the blanks, U+00A0 included, at the beginning of this line.
std::string indentation(std::string_view text, std::size_t at);

/// Adds members behind the last one of an object, each on a line if the object is on several.
/// `open`, `close`: its braces.
std::vector<Edit> insertion(std::string_view text, std::size_t open, std::size_t close,
                            const std::vector<Member>& members,
                            const std::vector<std::string>& added);
/// Takes a member out of its object, with the comma that parted it from the others, and the line
/// that it leaves empty.
std::vector<Edit> removal(std::string_view text, const std::vector<Member>& members,
                          std::size_t index);

}  // namespace artesian::bench
