#include "tools/aio_bench/outputs.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tools/aio_bench/config_edit.h"
#include "tools/aio_bench/plot.h"
#include "tools/shell/report_error.h"

namespace artesian::bench {
namespace {

namespace fs = std::filesystem;

/// Adds an error about a flag's file as one line in the form of a fault.
void add_refusal(const std::string& what, const std::string& flag, const Error& error,
                 const std::string& allowed, const std::string& fix, Faults& faults) {
  std::string text = error.to_string();
  text = text.substr(0, text.find('\n'));
  const bool complete = text.find(", allowed ") != text.npos;
  const bool begun = text.find(": got ") != text.npos;
  faults.add_line(what + ": " + flag + ": " + (complete || begun ? "" : "got ") + text +
                  (complete ? "" : ", allowed " + allowed + "; " + fix));
}

/// True if both paths lead to one file, which two outputs would overwrite.
bool is_one_file(const std::string& one, const std::string& other) {
  std::error_code failed;
  const auto type = fs::status(one, failed).type();
  const bool plain = type == fs::file_type::regular || type == fs::file_type::not_found;
  if (!plain) return false;  // such as /dev/null
  return write_target(one) == write_target(other) || fs::equivalent(one, other, failed);
}

void check_distinct(const TuneOutputs& outputs, Faults& faults) {
  const std::pair<const char*, const std::string*> files[] = {{"--json", &outputs.json},
                                                              {"--config-out", &outputs.config_out},
                                                              {"--apply", &outputs.apply},
                                                              {"--plot", &outputs.plot}};
  for (std::size_t second = 1; second < std::size(files); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const std::string& one = *files[first].second;
      const std::string& other = *files[second].second;
      if (one.empty() || other.empty() || one == "-" || !is_one_file(one, other)) continue;
      faults.add("contradiction", files[second].first,
                 '"' + other + "\", as for " + files[first].first, "a file of its own for each",
                 "name another file");
    }
  }
}

/// Refuses to overwrite a file that contains more than settings, such as a training's config.
void check_config_out(const std::string& path, Faults& faults) {
  std::error_code failed;
  if (path.empty() || !fs::is_regular_file(path, failed)) return;
  const auto alone = check_settings_alone(path);
  if (alone) return;
  add_refusal("would be lost", "--config-out", alone.error(),
              "a new file, or one that holds I/O settings alone",
              "use --apply to change them in a config", faults);
}

void check_apply(const std::string& path, Faults& faults) {
  if (path.empty()) return;
  std::error_code failed;
  if (!fs::exists(path, failed)) {
    faults.add("cannot be read", "--apply", '"' + path + '"', "a config", "name another file");
    return;
  }
  const auto can = check_apply_settings(path);
  if (can) return;
  const bool text = can.error().code == ErrorCode::Invalid;
  add_refusal("cannot be edited", "--apply", can.error(),
              text ? "a config that parses" : "a config beside which a copy of it can be made",
              text ? "correct it first" : "change the folder's permissions, or use --config-out",
              faults);
}

bool apply(const std::string& path, const TuneReport& report) {
  const Settings& winner = report.found.winner.settings;
  const auto backup = apply_settings(path, winner, report.automatic);
  if (!backup) {
    tools::report_error(program, tools::naming("--apply", backup.error()), 1);
    return false;
  }
  log(LogLevel::Info, "changed the I/O settings of " + path + " to those of " +
                          engine_kind_name(winner.engine) + "; what it was is in " + *backup);
  return true;
}

}  // namespace

void add_output_flags(CLI::App& command) {
  add_value(command, "--json", "FILE", "Write everything as JSON to a file, or - for stdout");
  add_value(command, "--config-out", "FILE",
            "Write the settings, as a config has them, to a new file (see --apply)");
  add_value(command, "--apply", "FILE",
            "Put the settings into this config; what it was is kept in FILE.bak");
  add_value(command, "--plot", "FILE", "Write a picture of the figures, FILE.svg or FILE.html");
}

TuneOutputs read_outputs(FlagReader& flags) {
  TuneOutputs outputs{.json = flags.output("--json", FlagReader::Dash::Yes),
                      .config_out = flags.output("--config-out", FlagReader::Dash::No),
                      .apply = {},
                      .plot = flags.output("--plot", FlagReader::Dash::No)};
  Faults& faults = flags.faults();
  if (!outputs.plot.empty() && !outputs.plot.ends_with(".svg") &&
      !outputs.plot.ends_with(".html")) {
    faults.add("wrong value", "--plot", '"' + outputs.plot + '"',
               "a file whose name ends in .svg or .html", "rename it");
  }
  outputs.apply = flags.output("--apply", FlagReader::Dash::No);
  check_apply(outputs.apply, faults);
  check_config_out(outputs.config_out, faults);
  check_distinct(outputs, faults);
  return outputs;
}

int hand_over(const TuneOutputs& outputs, const TuneReport& report) {
  bool done = true;
  const auto write = [&](const std::string& target, const std::string& text) {
    if (!target.empty()) done = write_output(target, text) && done;
  };
  const std::string json =
      to_json(report).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (!outputs.apply.empty()) done = apply(outputs.apply, report);
  write(outputs.config_out, print_settings(report.found.winner.settings, report.automatic));
  const bool page = outputs.plot.ends_with(".html");
  if (!outputs.plot.empty()) write(outputs.plot, page ? plot_html(report) : plot_svg(report));
  if (outputs.json != "-") write(outputs.json, json);
  for (const PathReport& path : report.paths) {
    if (path.profile_file.empty()) continue;
    const std::string was = path.replaced.empty() ? "" : ", in place of " + path.replaced;
    log(LogLevel::Info, "machine profile: " + path.profile_file + was);
  }
  write("-", outputs.json == "-" ? json : to_text(report));
  return done ? 0 : 1;
}

}  // namespace artesian::bench
