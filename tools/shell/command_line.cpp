#include "tools/shell/command_line.h"

#include <algorithm>
#include <vector>

#include "base/nearest.h"
#include "tools/shell/report_error.h"
#include "tools/shell/standard_output.h"

namespace artesian::tools {
namespace {

const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::string nearest(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) known.push_back(option->get_name());
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  return nearest_name(word, std::vector<std::string_view>(known.begin(), known.end()));
}

std::string describe_extra(const CLI::App& app, const std::string& full) {
  const CLI::App& command = innermost(app);
  const std::string word = full.substr(0, full.find('='));
  const bool flag = word.starts_with("-");
  std::string line = (word.empty() ? "\"\"" : word) + ": got an unknown " +
                     (flag ? "flag" : "argument") + ", allowed are those of " + app.get_name() +
                     (&command == &app ? "" : " " + command.get_name()) + " --help";
  const std::string near = nearest(command, word);
  if (!near.empty() && near == word)
    return line + "; write it after " + app.get_name() + " " + command.get_name();
  if (!near.empty()) line += "; did you mean " + near + "?";
  return line;
}

/// The first word that is not an option, which is the fault: values of unknown flags follow it.
std::optional<std::string> first_extra(const CLI::App& app) {
  if (innermost(app).get_prefix_command()) return std::nullopt;  // its words are refused as a whole
  const auto extras = app.remaining(true);
  return extras.empty() ? std::nullopt : std::optional(describe_extra(app, extras.front()));
}

/// The library's message puts the flag first: "--steps: 1 required N missing".
std::string describe_mismatch(const std::string& text) {
  const std::string name = text.substr(0, text.find_first_of(": "));
  const std::string flag = (name.starts_with("-") ? "" : "--") + name;
  const bool missing = text.find("missing") != std::string::npos;
  return flag + (missing ? ": got no value, allowed one; write it after the flag"
                         : ": got a value, allowed none; drop it");
}

/// The words in reverse, as the library expects. "--flag=" becomes a flag and an empty value, as
/// the library would otherwise use the next flag as the value.
std::vector<std::string> reversed_words(int argc, char** argv) {
  std::vector<std::string> words;
  for (int index = 1; index < argc; ++index) {
    std::string word = argv[index];
    const bool empty_value = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (empty_value) word.pop_back();
    words.push_back(std::move(word));
    if (empty_value) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

/// Prints text. Returns the exit code.
int print(const char* program, const std::string& text) {
  const auto printed = write_stdout(text + "\n");
  return printed.has_value() ? 0 : report_error(program, printed.error(), 1);
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, const char* program, int argc, char** argv) {
  app.allow_extras();
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    command->allow_extras();
  }
  try {
    app.parse(reversed_words(argc, argv));
  } catch (const CLI::CallForHelp&) {
    std::string help = app.help();  // help of the selected command
    help.erase(help.find_last_not_of('\n') + 1);
    return print(program, help);
  } catch (const CLI::CallForVersion& version) {
    return print(program, version.what());
  } catch (const CLI::ArgumentMismatch& error) {
    return report_error(program, first_extra(app).value_or(describe_mismatch(error.what())), 2);
  } catch (const CLI::ParseError& error) {
    return report_error(program, first_extra(app).value_or(error.what()), 2);
  }
  const auto extra = first_extra(app);
  if (extra.has_value()) return report_error(program, *extra, 2);
  return std::nullopt;
}

}  // namespace artesian::tools
