// Findings of `artesian doctor`: one line each, with its meaning and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace artesian::tools {

/// Warn: training works, but slower or with reduced features. Fail: training cannot work.
enum class Level : std::uint8_t { Ok, Warn, Fail };

struct Finding {
  std::string name;  // "io_uring"; the same on every machine
  Level level = Level::Ok;
  std::string value = {};    // the value found
  std::string meaning = {};  // what it means for training
  std::string fix = {};      // empty if there is nothing to do
  std::string subject = {};  // the path or GPU concerned; empty for the machine
};
using Findings = std::vector<Finding>;

/// Moves failures first, then warnings; otherwise keeps the order.
void put_worst_first(Findings& findings);

const char* level_name(Level level) noexcept;
std::size_t count_of(const Findings& findings, Level level) noexcept;

/// As lines for people, with the fix on a separate line.
std::string to_text(const Findings& findings);
/// As one object: {"status", "findings": [{"name", "subject", "status", "value", "meaning",
/// "fix"}]}; the outer "status" is the worst of all.
std::string to_json(const Findings& findings);

}  // namespace artesian::tools
