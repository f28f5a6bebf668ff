// Command-line parsing with our form of errors: one line per fault, unknown flags before missing
// ones.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

namespace artesian::tools {

/// Parses argv. Returns the exit code if the program must end now (--help and --version: 0, bad
/// flags: 2, stdout that cannot be written: 1), after printing; nothing if the program should
/// continue.
std::optional<int> parse_command_line(CLI::App& app, const char* program, int argc, char** argv);

}  // namespace artesian::tools
