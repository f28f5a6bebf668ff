// The `artesian` program: its subcommands. Flags are described in docs and --help.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <string>
#include <vector>

#include "models/data/python_script.h"
#include "tools/checkpoint/export.h"
#include "tools/checkpoint/inspect.h"
#include "tools/doctor/doctor.h"
#include "tools/plan/plan.h"
#include "tools/plan/run_memory.h"
#include "tools/shell/command_line.h"
#include "tools/shell/process_setup.h"
#include "tools/shell/report_error.h"
#include "tools/train/flags.h"
#include "tools/train/train.h"
#include "zero3/torch/engine.h"

namespace {

constexpr const char* program = "artesian";

int fail(const std::string& message) {
  return artesian::tools::report_error(program, message, 2);
}

int run_train(const CLI::App& command) {
  const auto options = artesian::tools::read_train_flags(command);
  if (!options.has_value()) return fail(options.error().message);
  artesian::zero3::track_activations();
  return artesian::tools::train(*options, artesian::tools::check_run_memory);
}

int run_plan(const CLI::App& command) {
  const auto options = artesian::tools::read_plan_flags(command);
  if (!options.has_value()) return fail(options.error().message);
  artesian::zero3::track_activations();  // measurements must compute like a run
  return artesian::tools::run_plan(*options);
}

/// Returns exit code 2 for an impossible request, and 1 for any other error.
int exit_code_of(const artesian::Error& error) {
  using artesian::ErrorCode;
  if (error.code == ErrorCode::Cancelled) return artesian::tools::stop_exit_code();
  const bool refused = error.code == ErrorCode::Invalid || error.system_error == ENOENT;
  return artesian::tools::report_error(program, error, refused ? 2 : 1);
}

int run_inspect(const CLI::App& command) {
  const auto options = artesian::tools::read_inspect_flags(command);
  if (!options.has_value()) return fail(options.error().message);
  const auto outcome = artesian::tools::inspect(*options);
  return outcome.has_value() ? *outcome : exit_code_of(outcome.error());
}

int run_export(const CLI::App& command) {
  const auto options = artesian::tools::read_export_flags(command);
  if (!options.has_value()) return fail(options.error().message);
  const auto outcome = artesian::tools::export_checkpoint(*options);
  return outcome.has_value() ? 0 : exit_code_of(outcome.error());
}

/// matplotlib draws the page: the Python script replaces this process.
int run_report(const CLI::App& command) {
  std::vector<std::string> words{artesian::models::script_python(),
                                 artesian::models::script_folder() + "/artesian/report.py"};
  for (const std::string& word : command.remaining()) words.push_back(word);
  const std::vector<char*> arguments = artesian::models::pointers_to(words);
  ::execvp(arguments[0], arguments.data());
  return fail("report: cannot run " + words[0] + ": " + artesian::system_error_text(errno) +
              "; set ARTESIAN_PYTHON to a Python that has matplotlib");
}

int run_doctor(const CLI::App& command) {
  const auto exit_code = artesian::tools::run_doctor(command);
  if (exit_code.has_value()) return *exit_code;
  return exit_code.error().code == artesian::ErrorCode::Invalid
             ? fail(exit_code.error().message)
             : artesian::tools::report_error(program, exit_code.error(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  artesian::tools::set_up_process();
  CLI::App app{"Artesian trains models whose state is larger than memory.", program};
  app.set_version_flag("--version", std::string(ARTESIAN_VERSION));
  app.require_subcommand(0, 1);
  CLI::App* train = app.add_subcommand("train", "Train a model");
  artesian::tools::add_train_flags(*train);
  CLI::App* doctor = app.add_subcommand("doctor", "What of this machine slows or stops training");
  artesian::tools::add_doctor_flags(*doctor);
  CLI::App* plan = app.add_subcommand("plan", "What a training job would be, before it runs");
  artesian::tools::add_plan_flags(*plan);
  CLI::App* inspect =
      app.add_subcommand("inspect", "What checkpoints hold, and whether they are whole");
  artesian::tools::add_inspect_flags(*inspect);
  CLI::App* export_command =
      app.add_subcommand("export", "A checkpoint's weights as a Hugging Face directory");
  artesian::tools::add_export_flags(*export_command);
  CLI::App* report = app.add_subcommand("report", "The steps of a run as one HTML page");
  report->prefix_command();
  report->set_help_flag();
  for (const char* later : {"generate", "config", "run"}) {
    app.add_subcommand(later, "not supported yet")->group("")->prefix_command();
  }
  const auto exit_code = artesian::tools::parse_command_line(app, program, argc, argv);
  if (exit_code.has_value()) return *exit_code;
  if (*train) return run_train(*train);
  if (*doctor) return run_doctor(*doctor);
  if (*plan) return run_plan(*plan);
  if (*inspect) return run_inspect(*inspect);
  if (*export_command) return run_export(*export_command);
  if (*report) return run_report(*report);
  for (const CLI::App* chosen : app.get_subcommands()) {
    return fail("not supported yet: " + chosen->get_name());
  }
  return fail(
      "missing command: got nothing, allowed train, plan, doctor, inspect, export or report; see "
      "artesian --help");
}
