#include "zero3/config_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "zero3/config_faults.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t text_size_max = 1 << 20;
constexpr int depth_max = 64;
// Infinity becomes a string of the same length, so that every offset stays what the user sees.
constexpr std::string_view infinity_literal = "Infinity";
constexpr std::string_view infinity_escaped = "\"\\uE000\"";
constexpr std::string_view infinity_marker = "\xEE\x80\x80";
static_assert(infinity_literal.size() == infinity_escaped.size());

/// "PATH: line 12, column 3: what". Columns count characters, not bytes; a BOM is none.
Error fault_at(std::string_view text, std::size_t offset, const std::string& path,
               const std::string& what) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < offset && i < text.size();
       ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0u) != 0x80u) {
      ++column;
    }
  }
  return make_error(ErrorCode::Invalid, (path.empty() ? "" : path + ": ") + "line " +
                                            std::to_string(line) + ", column " +
                                            std::to_string(column) + ": " + what);
}

/// Turns what only people write into plain JSON of the same length and the same line breaks.
class Cleaner {
 public:
  Cleaner(std::string_view text, const std::string& path)
      : text_(text), path_(path), clean_(text) {}

  Result<std::string> run() {
    if (text_.starts_with("\xEF\xBB\xBF")) blank(3);
    while (at_ < text_.size()) {
      ARTESIAN_TRY(skipped, skip_unseen());
      if (!skipped) ARTESIAN_TRY_VOID(token());
    }
    return std::move(clean_);
  }

 private:
  bool sees(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  Error fault(const std::string& what) const { return fault_at(text_, at_, path_, what); }

  void blank(std::size_t count) {
    for (std::size_t end = at_ + count; at_ < end; ++at_) {
      if (text_[at_] != '\n' && text_[at_] != '\r') clean_[at_] = ' ';
    }
  }

  /// White space and comments. False: something else is next.
  Result<bool> skip_unseen() {
    const char c = text_[at_];
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
      ++at_;
    } else if (sees("\xC2\xA0")) {
      blank(2);
    } else if (c == '#' || sees("//")) {
      const std::size_t end = text_.find('\n', at_);
      blank((end == text_.npos ? text_.size() : end) - at_);
    } else if (sees("/*")) {
      const std::size_t end = text_.find("*/", at_ + 2);
      if (end == text_.npos) return fault("a comment opened by /* is never closed");
      blank(end + 2 - at_);
    } else {
      return false;
    }
    return true;
  }

  Result<void> token() {
    const char c = text_[at_];
    if (c == '"') {
      skip_string();
    } else if (c == '\0') {
      return fault("a NUL byte");
    } else if (sees("\xE2\x80\x9C") || sees("\xE2\x80\x9D")) {
      return fault("a typographic quotation mark; use \"");
    } else if (sees("NaN") || sees("-Infinity")) {
      return fault("NaN and -Infinity are not allowed");
    } else if (sees(infinity_literal)) {
      clean_.replace(at_, infinity_literal.size(), infinity_escaped);
      at_ += infinity_literal.size();
    } else {
      ARTESIAN_TRY_VOID(bracket(c));
      comma_ = c == ',' && previous_ != ',' && previous_ != '{' && previous_ != '[' ? at_ : npos;
      ++at_;
    }
    if (c != ',') comma_ = npos;
    previous_ = c;
    return {};
  }

  Result<void> bracket(char c) {
    if ((c == '{' || c == '[') && ++depth_ > depth_max) {
      return fault("nested deeper than " + std::to_string(depth_max) + " levels");
    }
    if (c == '}' || c == ']') {
      --depth_;
      if (comma_ != npos) clean_[comma_] = ' ';  // trailing
    }
    return {};
  }

  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_ + 1, text_.size());
  }

  static constexpr std::size_t npos = std::string_view::npos;
  std::string_view text_;
  const std::string& path_;
  std::string clean_;
  std::size_t at_ = 0;
  std::size_t comma_ = npos;  // a comma with nothing after it yet
  char previous_ = '\0';      // the first character of the last token
  int depth_ = 0;
};

/// Receives nlohmann's events; builds the tree and notices keys given twice.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return add({}); }
  bool boolean(bool value) { return add({.kind = JsonValue::Kind::Boolean, .boolean = value}); }
  bool number_integer(number_integer_t value) {  // has a minus sign
    return add({.kind = JsonValue::Kind::Number,
                .number = static_cast<double>(value),
                .exact = value == 0,  // "-0"
                .text = std::to_string(value)});
  }
  bool number_unsigned(number_unsigned_t value) {
    return add({.kind = JsonValue::Kind::Number,
                .number = static_cast<double>(value),
                .exact = true,
                .integer = value,
                .text = std::to_string(value)});
  }
  bool number_float(number_float_t value, const string_t& typed) {
    JsonValue number{.kind = JsonValue::Kind::Number, .number = value, .text = typed};
    number.exact = value >= 0 && value < 0x1p63 && std::floor(value) == value;
    if (number.exact) number.integer = static_cast<std::uint64_t>(value);
    return add(std::move(number));
  }
  bool string(string_t& value) {
    if (value == infinity_marker) {
      return add({.kind = JsonValue::Kind::Number,
                  .number = std::numeric_limits<double>::infinity(),
                  .text = std::string(infinity_literal)});
    }
    return add({.kind = JsonValue::Kind::String, .text = std::move(value)});
  }
  bool binary(binary_t&) { return false; }  // not in text
  bool start_object(std::size_t) { return open(JsonValue::Kind::Object); }
  bool start_array(std::size_t) { return open(JsonValue::Kind::Array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (!seen_.back().insert(name).second) {
      faults.invalid(names() + name + ": given twice; keep one");
    }
    open_.back()->members.emplace_back(name, JsonValue{});
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& exception) {
    // `token` is the whole token only for strings and numbers; else `position` counts its end.
    what = exception.what();
    const bool whole = what.find("unexpected string") != what.npos ||
                       what.find("unexpected number") != what.npos ||
                       what.find("number overflow") != what.npos;
    const std::size_t size = whole ? token.size() : 1;
    offset = position > size ? position - size : 0;
    return false;
  }

  JsonValue root;
  Faults faults;
  std::size_t offset = 0;
  std::string what;

 private:
  JsonValue& place() {
    if (open_.empty()) return root;
    JsonValue& parent = *open_.back();
    if (parent.kind == JsonValue::Kind::Array) return parent.elements.emplace_back();
    return parent.members.back().second;
  }
  bool add(JsonValue value) {
    place() = std::move(value);
    return true;
  }
  bool open(JsonValue::Kind kind) {
    JsonValue& value = place();
    value.kind = kind;
    seen_.emplace_back();
    open_.push_back(&value);  // stays where it is: its parent grows only after it is closed
    return true;
  }
  bool close() {
    open_.pop_back();
    seen_.pop_back();
    return true;
  }
  std::string names() const {
    std::string text;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i]->kind == JsonValue::Kind::Object) text += open_[i]->members.back().first + ".";
    }
    return text;
  }

  std::vector<JsonValue*> open_;                       // from the root to the innermost
  std::vector<std::unordered_set<std::string>> seen_;  // the keys of each
};

/// nlohmann's words without their numbering, place and quotation of what was read.
std::string plain_reason(const std::string& what) {
  std::size_t from = what.find("syntax error");
  if (from == what.npos) from = what.find("] ") == what.npos ? 0 : what.find("] ") + 2;
  std::string reason = what.substr(from);
  const std::size_t quotation = reason.find("; last read: '");
  const std::size_t rest = reason.rfind("; expected ");
  if (quotation != reason.npos) {
    const bool follows = rest != reason.npos && rest > quotation;
    reason = reason.substr(0, quotation) + (follows ? reason.substr(rest) : "");
  }
  if (reason.ends_with("unexpected string literal; expected '}'")) {
    reason += "; is there a comma missing before it?";
  }
  return reason;
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const noexcept {
  for (const auto& [member, value] : members) {
    if (member == name) return &value;
  }
  return nullptr;
}

Result<JsonValue> read_json(std::string_view text, const std::string& path) {
  if (text.size() > text_size_max) {
    return make_error(ErrorCode::Invalid, (path.empty() ? "config" : path) + ": got " +
                                              std::to_string(text.size()) +
                                              " bytes or more, allowed at most 1 MiB for a config");
  }
  ARTESIAN_TRY(clean, Cleaner(text, path).run());
  Builder builder;
  if (!nlohmann::json::sax_parse(clean, &builder)) {
    return fault_at(text, builder.offset, path, plain_reason(builder.what));
  }
  if (!builder.faults.empty()) return builder.faults.to_error();
  return std::move(builder.root);
}

namespace {
void print_into(const JsonValue& value, std::string& text) {
  constexpr std::size_t size_max = 60;
  if (text.size() > size_max) return;
  switch (value.kind) {
    case JsonValue::Kind::Null: text += "null"; return;
    case JsonValue::Kind::Boolean: text += value.boolean ? "true" : "false"; return;
    case JsonValue::Kind::Number: text += value.text; return;
    case JsonValue::Kind::String: text += nlohmann::json(value.text).dump(); return;
    case JsonValue::Kind::Array:
      text += "[";
      for (std::size_t i = 0; i < value.elements.size() && text.size() <= size_max; ++i) {
        if (i > 0) text += ", ";
        print_into(value.elements[i], text);
      }
      text += "]";
      return;
    case JsonValue::Kind::Object: text += value.members.empty() ? "{}" : "{...}";
  }
}
}  // namespace

std::string print_json(const JsonValue& value) {
  constexpr std::size_t size_max = 60;
  std::string text;
  print_into(value, text);
  if (text.size() <= size_max) return text;
  std::size_t end = size_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end) + "...";
}

}  // namespace artesian::zero3
