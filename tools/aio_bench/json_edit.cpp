#include "tools/aio_bench/json_edit.h"

#include <algorithm>

namespace artesian::bench {
namespace {

/// Returns the line end of the text's first line: "\r\n" in Windows files.
std::string newline_of(std::string_view text) {
  const std::size_t at = text.find('\n');
  return at != std::string_view::npos && at > 0 && text[at - 1] == '\r' ? "\r\n" : "\n";
}

std::string with_newlines(const std::string& text, const std::string& newline) {
  std::string result;
  for (const char c : text) result += c == '\n' ? newline : std::string(1, c);
  return result;
}

/// The text after the last member of an object, on its line.
struct Tail {
  std::size_t line_end = std::string_view::npos;  // npos: the brace is on the same line
  bool comma = false;
};

/// A comment there belongs to that member: new members are added after it, on a new line.
Tail tail_of(std::string_view text, std::size_t at, std::size_t close) {
  Tail tail;
  while (at < close) {
    const std::string_view rest = text.substr(at);
    if (text[at] == '\n') {
      tail.line_end = text[at - 1] == '\r' ? at - 1 : at;
      return tail;
    }
    if (rest.starts_with("/*")) {
      at = text.find("*/", at + 2) + 2;
    } else if (rest.starts_with("#") || rest.starts_with("//")) {
      at = text.find('\n', at);
    } else {
      tail.comma = tail.comma || text[at] == ',';
      ++at;
    }
  }
  return tail;
}

/// The end of the text removed with a member that is not the last: its comma, the rest of its line,
/// and blanks up to the next token or comment.
std::size_t end_of_removal(std::string_view text, const Member& member, const Member& next) {
  constexpr const char* blanks = " \t\r\n";
  const std::size_t comma = Scanner(text).next(member.end);
  const std::size_t line_end = text.find('\n', comma);
  const bool last_of_line = line_end < next.key_begin;
  const bool long_comment =
      last_of_line && text.substr(comma, line_end - comma).find("/*") != text.npos;
  if (long_comment) return next.key_begin;
  return text.find_first_not_of(blanks, last_of_line ? line_end : comma + 1);
}

}  // namespace

std::vector<Member> Scanner::members(std::size_t at) {
  std::vector<Member> found;
  at_ = at + 1;
  for (skip(); text_[at_] != '}'; skip()) {
    Member& member = found.emplace_back();
    member.key_begin = at_;
    skip_value();
    member.key = text_.substr(member.key_begin + 1, at_ - member.key_begin - 2);
    skip();  // moves to the colon
    ++at_;
    skip();
    member.begin = at_;
    skip_value();
    member.end = at_;
    skip();
    if (text_[at_] == ',') ++at_;
  }
  close_ = at_;
  return found;
}

std::size_t Scanner::next(std::size_t at) {
  at_ = at;
  skip();
  return at_;
}

std::size_t Scanner::first_value() {
  at_ = text_.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  skip();
  return at_;
}

void Scanner::skip() {
  while (true) {
    if (sees("\xC2\xA0")) {
      at_ += 2;
    } else if (sees("#") || sees("//")) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (sees("/*")) {
      at_ = text_.find("*/", at_ + 2) + 2;
    } else if (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) {
      ++at_;
    } else {
      return;
    }
  }
}

void Scanner::skip_value() {
  int depth = 0;
  do {
    skip();
    const char c = text_[at_];
    if (c == '"') {
      for (++at_; text_[at_] != '"'; ++at_) {
        if (text_[at_] == '\\') ++at_;
      }
      ++at_;
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at_;
    } else if (c == '}' || c == ']') {
      --depth;
      ++at_;
    } else if (c == ',' || c == ':') {
      ++at_;
    } else {
      const std::size_t end = text_.find_first_of(" \t\r\n,:{}[]\"#/\xC2", at_);
      at_ = std::min(end, text_.size());
    }
  } while (depth > 0);
}

std::string apply_edits(std::string_view text, std::vector<Edit> edits) {
  std::stable_sort(edits.begin(), edits.end(),
                   [](const Edit& left, const Edit& right) { return left.begin > right.begin; });
  std::string result(text);
  for (const Edit& edit : edits) result.replace(edit.begin, edit.end - edit.begin, edit.text);
  return result;
}

void match_newlines(std::string_view text, std::vector<Edit>& edits) {
  const std::string newline = newline_of(text);
  for (Edit& edit : edits) edit.text = with_newlines(edit.text, newline);
}

std::string indentation(std::string_view text, std::size_t at) {
  const std::size_t line = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const std::size_t begin = line == std::string_view::npos ? 0 : line + 1;
  std::size_t end = begin;
  while (end < text.size()) {
    const bool wide = text.substr(end).starts_with("\xC2\xA0");
    if (!wide && text[end] != ' ' && text[end] != '\t') break;
    end += wide ? 2 : 1;
  }
  return std::string(text.substr(begin, end - begin));
}

std::vector<Edit> insertion(std::string_view text, std::size_t open, std::size_t close,
                            const std::vector<Member>& members,
                            const std::vector<std::string>& added) {
  const bool lines = text.substr(open, close - open).find('\n') != std::string_view::npos;
  const std::string outer = indentation(text, open);
  const std::string inner =
      members.empty() || !lines ? outer + "  " : indentation(text, members.back().key_begin);
  const std::string before = lines || members.empty() ? "\n" + inner : " ";
  std::string joined;
  for (const std::string& member : added) {
    joined += (joined.empty() ? "" : ",") + before + member;
  }
  if (members.empty()) return {{.begin = open + 1, .end = open + 1, .text = joined + "\n" + outer}};
  const std::size_t last = members.back().end;
  const Tail tail = tail_of(text, last, close);
  if (tail.line_end == std::string_view::npos) {
    return {{.begin = last, .end = last, .text = "," + joined}};
  }
  const std::size_t end = tail.line_end;
  if (tail.comma) return {{.begin = end, .end = end, .text = joined + ","}};
  if (end == last) return {{.begin = last, .end = last, .text = "," + joined}};
  return {{.begin = last, .end = last, .text = ","}, {.begin = end, .end = end, .text = joined}};
}

std::vector<Edit> removal(std::string_view text, const std::vector<Member>& members,
                          std::size_t index) {
  if (index + 1 < members.size()) {
    return {{.begin = members[index].key_begin,
             .end = end_of_removal(text, members[index], members[index + 1]),
             .text = ""}};
  }
  std::size_t begin = members[index].key_begin;
  while (begin > 0 && (text[begin - 1] == ' ' || text[begin - 1] == '\t')) --begin;
  if (begin > 0 && text[begin - 1] == '\n') --begin;
  if (begin > 0 && text[begin - 1] == '\r') --begin;
  std::vector<Edit> edits{{.begin = begin, .end = members[index].end, .text = ""}};
  if (index == 0) return edits;
  const std::size_t comma = Scanner(text).next(members[index - 1].end);
  if (comma < begin) edits.push_back({.begin = comma, .end = comma + 1, .text = ""});
  if (comma >= begin) edits.front().begin = comma;
  return edits;
}

}  // namespace artesian::bench
