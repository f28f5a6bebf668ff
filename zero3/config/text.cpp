#include "zero3/config/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/check.h"
#include "zero3/config/faults.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t text_size_max = 1 << 20;
constexpr int depth_max = 64;

/// A number that JSON cannot represent: Infinity, -Infinity, NaN, 1e999. In the text passed to the
/// parser it is replaced by a string of the same length, so that all offsets are unchanged.
struct Literal {
  std::size_t ordinal = 0;  // index among the text's strings, including keys
  std::size_t offset = 0;
  std::string_view text;
};

double number_of(std::string_view literal) {
  if (literal == "NaN") return std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return literal.starts_with('-') ? -infinity : infinity;
}

/// The bytes of a JSON number too large for a double at the start of the text; 0 if there is none.
std::size_t overflowing_number(std::string_view text) {
  const auto digits = [&](std::size_t from) {
    return std::min(text.find_first_not_of("0123456789", from), text.size()) - from;
  };
  std::size_t end = text.starts_with('-') ? 1 : 0;
  const std::size_t whole = digits(end);
  if (whole == 0 || (whole > 1 && text[end] == '0')) return 0;
  end += whole;
  if (end < text.size() && text[end] == '.') {
    if (digits(end + 1) == 0) return 0;
    end += 1 + digits(end + 1);
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    std::size_t exponent = end + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    if (digits(exponent) == 0) return 0;
    end = exponent + digits(exponent);
  }
  return std::isinf(std::strtod(std::string(text.substr(0, end)).c_str(), nullptr)) ? end : 0;
}

/// Formats "PATH: line 12, column 3: what". Columns count characters, not bytes; a BOM does not
/// count.
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
  return make_error(
      ErrorCode::Invalid,
      fmt::format("{}line {}, column {}: {}", path.empty() ? "" : path + ": ", line, column, what));
}

/// Converts the accepted extensions to plain JSON with the same length and the same line breaks.
class Cleaner {
 public:
  Cleaner(std::string_view text, const std::string& path)
      : text_(text), path_(path), clean_(text) {}

  /// The original numbers for the strings inserted into the clean text, in order.
  std::vector<Literal> literals;

  Result<std::string> run() {
    if (text_.starts_with("\xEF\xBB\xBF")) blank(3);
    while (at_ < text_.size()) {
      ARTESIAN_TRY(skipped, skip_unseen());
      if (!skipped) ARTESIAN_TRY_VOID(token());
    }
    ARTESIAN_CHECK(clean_.size() == text_.size(), clean_.size(), text_.size());
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

  /// Skips white space and comments. False: something else follows.
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
    } else if (c == '\'') {
      return fault(
          "a single quotation mark; JSON wants double quotes: \" (of a Python dict, "
          "json.dumps makes JSON)");
    } else if (sees("True") || sees("False") || sees("None")) {
      return fault(std::string("a word of Python's; JSON wants ") + (sees("True")    ? "true"
                                                                     : sees("False") ? "false"
                                                                                     : "null"));
    } else if (const std::size_t size = literal_size(); size != 0) {
      literals.push_back({.ordinal = strings_++, .offset = at_, .text = text_.substr(at_, size)});
      clean_.replace(at_, size, '"' + std::string(size - 2, '_') + '"');
      at_ += size;
    } else {
      ARTESIAN_TRY_VOID(bracket(c));
      comma_ = c == ',' && previous_ != ',' && previous_ != '{' && previous_ != '[' ? at_ : npos;
      ++at_;
    }
    if (c != ',') comma_ = npos;
    previous_ = c;
    return {};
  }

  /// The bytes of a number that JSON cannot represent; 0 if something else is here.
  std::size_t literal_size() const {
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (sees(name)) return name.size();
    }
    const bool inside = at_ > 0 && std::string_view("0123456789.eE+-").find(text_[at_ - 1]) != npos;
    return inside ? 0 : overflowing_number(text_.substr(at_));
  }

  Result<void> bracket(char c) {
    if ((c == '{' || c == '[') && ++depth_ > depth_max) {
      return fault(fmt::format("nested deeper than {} levels", depth_max));
    }
    if (c == '}' || c == ']') {
      --depth_;
      if (comma_ != npos) clean_[comma_] = ' ';  // a trailing comma
    }
    return {};
  }

  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_ + 1, text_.size());
    ++strings_;
  }

  static constexpr std::size_t npos = std::string_view::npos;
  std::string_view text_;
  const std::string& path_;
  std::string clean_;
  std::size_t at_ = 0;
  std::size_t comma_ = npos;  // position of a comma that nothing has followed yet
  char previous_ = '\0';      // the first character of the last token
  int depth_ = 0;
  std::size_t strings_ = 0;  // number of strings read so far
};

/// Receives nlohmann's events, builds the tree and detects duplicate keys.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit Builder(const std::vector<Literal>& literals) : literals_(literals) {}

  bool null() { return add({}); }
  bool boolean(bool value) { return add({.kind = JsonValue::Kind::Boolean, .boolean = value}); }
  bool number_integer(number_integer_t value) {  // numbers with a minus sign
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
    if (const Literal* literal = next_literal(); literal != nullptr) {
      return add({.kind = JsonValue::Kind::Number,
                  .number = number_of(literal->text),
                  .text = std::string(literal->text)});
    }
    return add({.kind = JsonValue::Kind::String, .text = std::move(value)});
  }
  bool binary(binary_t&) { return false; }  // does not occur in text
  bool start_object(std::size_t) { return open(JsonValue::Kind::Object); }
  bool start_array(std::size_t) { return open(JsonValue::Kind::Array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (const Literal* literal = next_literal(); literal != nullptr) {
      what =
          "syntax error while parsing object key - unexpected number literal; expected string "
          "literal";
      offset = literal->offset;
      return false;
    }
    if (!seen_.back().insert(name).second) {
      faults.invalid(names() + print_key(name) + ": given twice; keep one");
    }
    open_.back()->members.emplace_back(name, JsonValue{});
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& exception) {
    // For other tokens than strings and numbers `token` is incomplete; `position` counts to its
    // end.
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
  /// The original number for the current string, or null.
  const Literal* next_literal() {
    const std::size_t ordinal = strings_++;
    if (literals_read_ == literals_.size()) return nullptr;
    if (literals_[literals_read_].ordinal != ordinal) return nullptr;
    return &literals_[literals_read_++];
  }
  JsonValue& place() {
    if (open_.empty()) return root;
    JsonValue& parent = *open_.back();
    if (parent.kind == JsonValue::Kind::Array) return parent.elements.emplace_back();
    ARTESIAN_CHECK(parent.kind == JsonValue::Kind::Object && !parent.members.empty());
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
    open_.push_back(&value);  // its address is stable, as the parent grows only after it is closed
    return true;
  }
  bool close() {
    ARTESIAN_CHECK(!open_.empty() && open_.size() == seen_.size(), open_.size(), seen_.size());
    open_.pop_back();
    seen_.pop_back();
    return true;
  }
  std::string names() const {
    std::string text;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      if (open_[i]->kind == JsonValue::Kind::Object)
        text += print_key(open_[i]->members.back().first) + ".";
    }
    return text;
  }

  const std::vector<Literal>& literals_;
  std::size_t literals_read_ = 0;
  std::size_t strings_ = 0;
  std::vector<JsonValue*> open_;                       // path from the root to the innermost value
  std::vector<std::unordered_set<std::string>> seen_;  // the keys of each object on the path
};

/// Returns the part after the quotation in nlohmann's message, without the lexer's token names: ";
/// expected '}'"; or nothing.
std::string expected_by(const std::string& reason) {
  for (const char* name : {"true literal", "false literal", "null literal", "string literal",
                           "number literal", "'['", "'{'", "']'", "'}'", "':'", "','",
                           "end of input", "'[', '{', or a literal", "object key"}) {
    std::string end = std::string("; expected ") + name;
    if (reason.ends_with("'" + end)) return end;
  }
  return {};
}

/// nlohmann's message without number, position and quotation of the input.
std::string plain_reason(const std::string& what) {
  std::size_t from = what.find("syntax error");
  if (from == what.npos) from = what.find("] ") == what.npos ? 0 : what.find("] ") + 2;
  std::string reason = what.substr(from);
  const std::size_t quotation = reason.find("; last read: '");
  if (quotation != reason.npos) {
    const std::string expected = expected_by(reason);  // the input may contain anything
    reason = reason.substr(0, quotation) + expected;
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
    return make_error(ErrorCode::Invalid,
                      fmt::format("{}: got {} bytes or more, allowed at most 1 MiB for a config",
                                  path.empty() ? "config" : path, text.size()));
  }
  Cleaner cleaner(text, path);
  ARTESIAN_TRY(clean, cleaner.run());
  Builder builder(cleaner.literals);
  if (!nlohmann::json::sax_parse(clean, &builder)) {
    return fault_at(text, builder.offset, path, plain_reason(builder.what));
  }
  if (!builder.faults.empty()) return builder.faults.to_error();
  return std::move(builder.root);
}

namespace {
/// As JSON, with the one control character escaped that JSON allows unescaped.
std::string quoted(const std::string& text) {
  std::string json = nlohmann::json(text).dump();
  for (std::size_t at = json.find('\x7F'); at != json.npos; at = json.find('\x7F', at)) {
    json.replace(at, 1, "\\u007f");
  }
  return json;
}

void print_into(const JsonValue& value, std::string& text) {
  constexpr std::size_t size_max = 60;
  if (text.size() > size_max) return;
  switch (value.kind) {
    case JsonValue::Kind::Null: text += "null"; return;
    case JsonValue::Kind::Boolean: text += value.boolean ? "true" : "false"; return;
    case JsonValue::Kind::Number: text += value.text; return;
    case JsonValue::Kind::String: text += quoted(value.text); return;
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

std::string print_key(const std::string& name) {
  const std::string json = print_json({.kind = JsonValue::Kind::String, .text = name});
  const bool plain = json.size() == name.size() + 2 && !name.empty();
  return plain ? name : json;
}

}  // namespace artesian::zero3
