#include "tools/aio_bench/config_edit.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "base/file_system.h"
#include "base/log.h"
#include "zero3/config/text.h"

namespace artesian::bench {
namespace {

using zero3::JsonValue;

struct Setting {
  const char* name;
  std::string value;
};

/// The settings that are to stand in one section of a config.
struct Section {
  const char* name;
  std::vector<Setting> settings;
};

Section aio_section(const Settings& settings) {
  const auto boolean = [](bool value) { return std::string(value ? "true" : "false"); };
  return {"aio",
          {{"block_size", std::to_string(settings.block_size)},
           {"queue_depth", std::to_string(settings.queue_depth)},
           {"intra_op_parallelism", std::to_string(settings.threads)},
           {"single_submit", boolean(settings.single_submit)},
           {"overlap_events", boolean(settings.overlap_events)}}};
}

/// A key of ours, and the word that it is to have.
struct Word {
  const char* key;
  std::string value;
};

Section our_section(const std::vector<Word>& words) {
  Section section{"artesian", {}};
  for (const Word& word : words) section.settings.push_back({word.key, '"' + word.value + '"'});
  return section;
}

/// Returns what artesian.polling must say.
std::string polling_word(const Settings& settings) {
  const bool polls = settings.engine == aio::EngineKind::IoUring;
  return polling_name(polls ? settings.polling : aio::Polling::None);
}

struct Member {
  std::string key;  // as written, without its quotation marks
  std::size_t key_begin = 0;
  std::size_t begin = 0;  // of the value
  std::size_t end = 0;
};

/// Finds the members of an object in text that read_json has accepted, whose parser keeps no
/// places: so this needs to know no more than where strings and comments end.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  /// `at`: of the object's brace.
  std::vector<Member> members(std::size_t at) {
    std::vector<Member> found;
    at_ = at + 1;
    for (skip(); text_[at_] != '}'; skip()) {
      Member& member = found.emplace_back();
      member.key_begin = at_;
      skip_value();
      member.key = text_.substr(member.key_begin + 1, at_ - member.key_begin - 2);
      skip();  // to the colon
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
  /// The position of the closing brace of the object that `members` went through last.
  std::size_t closing_brace() const { return close_; }

  /// The place of what is next after blanks and comments.
  std::size_t next(std::size_t at) {
    at_ = at;
    skip();
    return at_;
  }

  std::size_t first_value() {
    at_ = text_.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    skip();
    return at_;
  }

 private:
  bool sees(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  void skip() {
    while (true) {
      if (sees("\xC2\xA0")) {
        at_ += 2;
      } else if (sees("#") || sees("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (sees("/*")) {
        at_ = text_.find("*/", at_ + 2) + 2;
      } else if (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != npos) {
        ++at_;
      } else {
        return;
      }
    }
  }

  void skip_value() {
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

  static constexpr std::size_t npos = std::string_view::npos;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t close_ = 0;
};

struct Edit {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string text;
};

std::string apply_edits(std::string_view text, std::vector<Edit> edits) {
  std::stable_sort(edits.begin(), edits.end(),
                   [](const Edit& left, const Edit& right) { return left.begin > right.begin; });
  std::string result(text);
  for (const Edit& edit : edits) result.replace(edit.begin, edit.end - edit.begin, edit.text);
  return result;
}

/// Returns what ends the line that begins the text: "\r\n" in files of Windows.
std::string newline_of(std::string_view text) {
  const std::size_t at = text.find('\n');
  return at != std::string_view::npos && at > 0 && text[at - 1] == '\r' ? "\r\n" : "\n";
}

std::string with_newlines(const std::string& text, const std::string& newline) {
  std::string result;
  for (const char c : text) result += c == '\n' ? newline : std::string(1, c);
  return result;
}

/// The blanks, U+00A0 among them, before the first thing of this line.
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

/// The text behind the last member of an object, on its line.
struct Tail {
  std::size_t line_end = std::string_view::npos;  // npos: the brace comes first
  bool comma = false;
};

/// A comment there is about that member: what is added comes behind it, on a line of its own.
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

/// Adds members behind the last one of an object, each on a line if the object is on several.
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

/// The text of a section whose first line starts behind `"aio": `.
std::string section_text(const Section& section, const std::string& indent) {
  std::string text = "{";
  const char* separator = "";
  for (const Setting& setting : section.settings) {
    text += std::string(separator) + "\n" + indent + "  \"" + setting.name + "\": " + setting.value;
    separator = ",";
  }
  return text + "\n" + indent + "}";
}

std::vector<Edit> edits_within(std::string_view text, std::size_t open, const Section& section) {
  Scanner scanner(text);
  const std::vector<Member> members = scanner.members(open);
  const std::size_t close = scanner.closing_brace();
  std::vector<Edit> edits;
  std::vector<std::string> added;
  for (const Setting& setting : section.settings) {
    bool there = false;
    for (const Member& member : members) {
      if (member.key != setting.name) continue;
      there = true;
      edits.push_back({.begin = member.begin, .end = member.end, .text = setting.value});
    }
    if (!there) added.push_back(std::string("\"") + setting.name + "\": " + setting.value);
  }
  if (added.empty()) return edits;
  for (Edit& edit : insertion(text, open, close, members, added)) edits.push_back(std::move(edit));
  return edits;
}

bool is_object(const JsonValue* value) {
  return value != nullptr && value->kind == JsonValue::Kind::Object;
}

const Member* find(const std::vector<Member>& members, const char* key) {
  for (const Member& member : members) {
    if (member.key == key) return &member;
  }
  return nullptr;
}

/// True if what a config's tree has under the section's name has its settings.
bool has_settings(const JsonValue& tree, const Section& section) {
  const auto& wanted = section.settings;
  return std::all_of(wanted.begin(), wanted.end(), [&](const Setting& setting) {
    const JsonValue* value = tree.find(setting.name);
    return value != nullptr && zero3::print_json(*value) == setting.value;
  });
}

Error refusal(const std::string& path, const std::string& what) {
  return make_error(ErrorCode::Invalid, path + ": " + what);
}

Error failure(const char* what, const std::string& path) {
  Error error = make_error(ErrorCode::Io, what, errno);
  error.file = path;
  return error;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad()) return failure("cannot read the config", path);
  return text.str();
}

/// Gives a new file the owner and the permissions of another one, as far as this user may. A group
/// that the other one did not have gets no more than all others.
Result<void> take_after(int descriptor, const struct stat& other, const std::string& path) {
  struct stat now {};
  if (fchown(descriptor, other.st_uid, other.st_gid) != 0) {
    (void)!fchown(descriptor, static_cast<uid_t>(-1), other.st_gid);
  }
  mode_t mode = other.st_mode & 07777;
  if (fstat(descriptor, &now) != 0) return failure("cannot look at a file", path);
  if (now.st_gid != other.st_gid) mode = (mode & ~mode_t{070}) | ((mode & 07) << 3);
  if (now.st_gid != other.st_gid || now.st_uid != other.st_uid) mode &= 0777;
  if (fchmod(descriptor, mode) != 0) return failure("cannot set the permissions of a file", path);
  return {};
}

/// A new file beside, complete and on the disk.
Result<void> write_new(const std::string& path, const std::string& text, const struct stat& old) {
  ARTESIAN_TRY(file,
               system_files().open(path, {.create = Create::Exclusive, .direct = Direct::Never}));
  auto done = file->write_at(text.data(), text.size(), 0);
  if (done) done = take_after(file->descriptor(), old, path);
  if (done) done = file->sync();
  if (!done) (void)!system_files().remove(path).has_value();
  return done;
}

Result<std::string> canonical_path(const std::string& given) {
  std::error_code failed;
  std::string path = std::filesystem::canonical(given, failed);
  if (!failed) return path;
  errno = failed.value();
  return failure("cannot find the config", given);
}

/// Returns the path of a file that is to take the other's place.
std::string path_beside(const std::string& path) {
  return fmt::format("{}.new.{}", path, getpid());
}

/// Writes into the file itself, where its name cannot be given to another: it is a mount of its
/// own, or in a sticky folder of somebody else's.
Result<void> write_over(const std::string& path, const std::string& text,
                        const std::string& backup) {
  const auto failed = [&] {
    Error error = failure("cannot write over the config", path);
    error.message += "; what it was is in " + backup;
    return error;
  };
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (descriptor < 0) return failed();
  std::size_t at = 0;
  ssize_t got = 0;
  while (at < text.size() && got >= 0) {
    got = ::write(descriptor, text.data() + at, text.size() - at);
    if (got > 0) at += static_cast<std::size_t>(got);
    if (got < 0 && errno == EINTR) got = 0;
  }
  const bool whole = at == text.size() && ::fsync(descriptor) == 0;
  const int why = errno;
  ::close(descriptor);
  errno = why;
  if (!whole) return failed();
  return {};
}

void note_other_owner(const std::string& path, const struct stat& old) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return;
  if (now.st_uid == old.st_uid && now.st_gid == old.st_gid) return;
  const auto owner = [](const struct stat& file) {
    return fmt::format("user {} and group {}", file.st_uid, file.st_gid);
  };
  log(LogLevel::Warning,
      path + ": its owner cannot be kept: was " + owner(old) + ", is " + owner(now));
}

void say_removed(const std::string& path, const std::vector<std::string>& removed) {
  std::string list;
  for (const std::string& key : removed) list += (list.empty() ? "" : ", ") + key;
  if (list.empty()) return;
  log(LogLevel::Info, path + ": removed " + list +
                          ", which DeepSpeed does not read: the settings are in aio, threads in "
                          "intra_op_parallelism");
}

Error not_found(const std::string& path, const std::string& name) {
  return refusal(path, name + ": cannot be found; write it by hand");
}

/// The end of what goes with a member that others follow: its comma, what else its line says of it,
/// and the blanks up to what comes next, which may be a comment.
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

/// Takes a member out of its object, with the comma that parted it from the others, and the line
/// that it leaves empty.
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

std::size_t index_of(const std::vector<Member>& members, std::string_view key) {
  const auto same = [&](const Member& member) { return member.key == key; };
  const auto found = std::find_if(members.begin(), members.end(), same);
  return static_cast<std::size_t>(found - members.begin());
}

/// An `aio` in zero_optimization, which DeepSpeed does not look at, moves to top level, or goes
/// where one is there.
Result<void> lift_section(OneForm& form, const std::string& path, bool keep) {
  Scanner scanner(form.text);
  const std::size_t open = scanner.first_value();
  const std::vector<Member> members = scanner.members(open);
  const std::size_t close = scanner.closing_brace();
  const Member* zero = find(members, "zero_optimization");
  if (zero == nullptr) return not_found(path, "zero_optimization");
  const std::vector<Member> inner = scanner.members(zero->begin);
  const std::size_t index = index_of(inner, "aio");
  if (index == inner.size()) return not_found(path, "aio");
  std::vector<Edit> edits = removal(form.text, inner, index);
  if (keep) {
    const std::string section =
        form.text.substr(inner[index].begin, inner[index].end - inner[index].begin);
    for (Edit& edit : insertion(form.text, open, close, members, {"\"aio\": " + section})) {
      edits.push_back(std::move(edit));
    }
  }
  form.text = apply_edits(form.text, std::move(edits));
  form.removed.emplace_back("zero_optimization.aio");
  return {};
}

/// The first of the other names takes the right one, if nobody has it; all others go.
Result<void> rename_threads(OneForm& form, const std::string& path, const char* other) {
  Scanner scanner(form.text);
  const std::vector<Member> members = scanner.members(scanner.first_value());
  const Member* section = find(members, "aio");
  if (section == nullptr) return not_found(path, "aio");
  const std::vector<Member> inner = scanner.members(section->begin);
  const std::size_t index = index_of(inner, other);
  if (index == inner.size()) return not_found(path, std::string("aio.") + other);
  const bool taken = index_of(inner, "intra_op_parallelism") != inner.size();
  const std::size_t key = inner[index].key_begin;
  const Edit renamed{
      .begin = key, .end = key + inner[index].key.size() + 2, .text = "\"intra_op_parallelism\""};
  form.text =
      apply_edits(form.text, taken ? removal(form.text, inner, index) : std::vector<Edit>{renamed});
  form.removed.push_back(std::string("aio.") + other);
  return {};
}

/// The config's text with the section's settings: in this section, else in a new one at the end.
Result<std::string> with_section(std::string_view text, const std::string& path,
                                 const Section& section) {
  const std::string name = section.name;
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  if (!is_object(&tree)) {
    return refusal(path, "got " + zero3::print_json(tree) + ", allowed an object {...}");
  }
  const JsonValue* there = tree.find(section.name);
  if (there != nullptr && !is_object(there)) {
    return refusal(path, name + ": got " + zero3::print_json(*there) +
                             ", allowed an object {...}; correct it first");
  }
  Scanner scanner(text);
  const std::size_t open = scanner.first_value();
  const std::vector<Member> members = scanner.members(open);
  const std::size_t close = scanner.closing_brace();
  std::vector<Edit> edits;
  if (there == nullptr) {
    const bool one_line = text.substr(open, close - open).find('\n') == std::string_view::npos;
    const std::string indent = members.empty() || one_line
                                   ? indentation(text, open) + "  "
                                   : indentation(text, members.back().key_begin);
    edits = insertion(text, open, close, members,
                      {'"' + name + "\": " + section_text(section, indent)});
  } else {
    const Member* inner = find(members, section.name);
    if (inner == nullptr) return not_found(path, name);
    edits = edits_within(text, inner->begin, section);
  }
  for (Edit& edit : edits) edit.text = with_newlines(edit.text, newline_of(text));
  std::string edited = apply_edits(text, std::move(edits));
  // What was written is what will be read, or nothing is written.
  auto again = zero3::read_json(edited, path);
  if (!again) return not_found(path, name);
  const JsonValue* got = again->find(section.name);
  if (!is_object(got) || !has_settings(*got, section)) return not_found(path, name);
  return edited;
}

/// Returns what the section of ours must say for these settings to be used; nothing where it says
/// so already, or says nothing and need not.
Result<std::vector<Word>> words_to_write(std::string_view text, const std::string& path,
                                         const Settings& settings, aio::EngineKind automatic) {
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  const JsonValue* section = is_object(&tree) ? tree.find("artesian") : nullptr;
  std::vector<Word> words;
  const auto want = [&](const char* key, const std::string& word, const std::string& absent,
                        const std::string& as_good) {
    const JsonValue* given = is_object(section) ? section->find(key) : nullptr;
    const std::string now = given == nullptr ? '"' + absent + '"' : zero3::print_json(*given);
    if (now != '"' + word + '"' && now != '"' + as_good + '"') words.push_back({key, word});
  };
  const std::string engine = engine_kind_name(settings.engine);
  want("engine", settings.engine == automatic ? "auto" : engine, "auto", engine);
  want("polling", polling_word(settings), "off", polling_word(settings));
  return words;
}

}  // namespace

std::string print_settings(const Settings& settings, aio::EngineKind automatic) {
  std::string text = "{\n  \"aio\": " + section_text(aio_section(settings), "  ");
  std::vector<Word> words;
  if (settings.engine != automatic) words.push_back({"engine", engine_kind_name(settings.engine)});
  if (polling_word(settings) != "off") words.push_back({"polling", polling_word(settings)});
  if (!words.empty()) text += ",\n  \"artesian\": " + section_text(our_section(words), "  ");
  return text + "\n}\n";
}

Result<OneForm> in_one_form(std::string_view text, const std::string& path) {
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  OneForm form{.text = std::string(text), .removed = {}};
  const JsonValue* zero = tree.find("zero_optimization");
  const JsonValue* nested = is_object(zero) ? zero->find("aio") : nullptr;
  const JsonValue* section = tree.find("aio");
  if (nested != nullptr) ARTESIAN_TRY_VOID(lift_section(form, path, section == nullptr));
  if (section == nullptr) section = nested;
  if (!is_object(section)) return form;
  for (const char* other : {"thread_count", "num_threads"}) {
    if (section->find(other) != nullptr) ARTESIAN_TRY_VOID(rename_threads(form, path, other));
  }
  return form;
}

Result<std::string> with_settings(std::string_view text, const std::string& path,
                                  const Settings& settings, aio::EngineKind automatic) {
  ARTESIAN_TRY(form, in_one_form(text, path));
  ARTESIAN_TRY(edited, with_section(form.text, path, aio_section(settings)));
  ARTESIAN_TRY(words, words_to_write(edited, path, settings, automatic));
  if (words.empty()) return edited;
  return with_section(edited, path, our_section(words));
}

Result<void> check_settings_alone(const std::string& path) {
  ARTESIAN_TRY(text, read_text(path));
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
  ARTESIAN_TRY(tree, zero3::read_json(text, path));
  if (!is_object(&tree)) return refusal(path, "got " + zero3::print_json(tree));
  const Section known[] = {aio_section({}), our_section({{"engine", ""}, {"polling", ""}})};
  for (const auto& member : tree.members) {
    const std::string& name = member.first;
    const JsonValue& value = member.second;
    const auto same = [&](const auto& each) { return name == each.name; };
    const auto* const section = std::find_if(std::begin(known), std::end(known), same);
    if (section == std::end(known) || !is_object(&value)) {
      return refusal(path, "got the key " + zero3::print_key(name));
    }
    const auto& settings = section->settings;
    for (const auto& inner : value.members) {
      const std::string& key = inner.first;
      const bool ours = std::any_of(settings.begin(), settings.end(),
                                    [&](const Setting& setting) { return key == setting.name; });
      if (!ours) return refusal(path, "got the key " + name + "." + zero3::print_key(key));
    }
  }
  return {};
}

Result<void> check_apply_settings(const std::string& given) {
  ARTESIAN_TRY(path, canonical_path(given));
  ARTESIAN_TRY(text, read_text(path));
  // With an engine to write, so that what forbids that is known too.
  ARTESIAN_TRY(edited, with_settings(text, given, {}, aio::EngineKind::Threads));
  ARTESIAN_CHECK(!edited.empty());
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return failure("cannot look at the config", path);
  const std::string beside = path_beside(path);
  auto written = write_new(beside, "", status);
  if (written) written = system_files().remove(beside);
  return written;
}

Result<std::string> apply_settings(const std::string& given, const Settings& settings,
                                   aio::EngineKind automatic) {
  ARTESIAN_TRY(path, canonical_path(given));
  ARTESIAN_TRY(text, read_text(path));
  ARTESIAN_TRY(form, in_one_form(text, given));
  ARTESIAN_TRY(edited, with_settings(form.text, given, settings, automatic));
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return failure("cannot look at the config", path);
  std::string backup = path + ".bak";
  for (int number = 1; system_files().exists(backup); ++number) {
    backup = fmt::format("{}.bak.{}", path, number);
  }
  ARTESIAN_TRY_VOID(write_new(backup, text, status));
  const std::string beside = path_beside(path);
  auto written = write_new(beside, edited, status);
  if (written) written = system_files().rename(beside, path);
  if (!written) {
    (void)!system_files().remove(beside).has_value();
    const int why = written.error().system_error;
    if (why == EBUSY || why == EPERM) {
      ARTESIAN_TRY_VOID(write_over(path, edited, backup));
      say_removed(given, form.removed);
      return backup;
    }
    (void)!system_files().remove(backup).has_value();
    return std::move(written).error();
  }
  note_other_owner(path, status);
  say_removed(given, form.removed);
  return backup;
}

}  // namespace artesian::bench
