// aio_bench: measures how fast this machine moves bytes to and from files through our engines. This
// file selects the command; each command has its own file.
//
// stdout holds results only; notes and errors go to stderr. Exit codes: 0 done; 2 = knowable before
// the start; 1 = later; 129, 130, 143 = stopped by SIGHUP, SIGINT, SIGTERM.
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "pinned/huge_pages.h"
#include "tools/aio_bench/compare.h"
#include "tools/aio_bench/flags.h"
#include "tools/aio_bench/run.h"
#include "tools/aio_bench/tune.h"
#include "tools/shell/command_line.h"
#include "tools/shell/report_error.h"

int main(int argc, char** argv) {
  using namespace artesian;
  set_log_program(bench::program);
  pinned::allow_huge_pages();
  CLI::App app{"Measures file I/O through Artesian's engines.", bench::program};
  app.require_subcommand(0, 1);
  CLI::App* run = app.add_subcommand("run", "One measurement");
  bench::add_run_flags(*run);
  CLI::App* tune = app.add_subcommand("tune", "Finds the best settings for a disk");
  bench::add_tune_flags(*tune);
  CLI::App* compare = app.add_subcommand("compare", "Measures beside fio");
  bench::add_compare_flags(*compare);
  const auto exit_code = tools::parse_command_line(app, bench::program, argc, argv);
  if (exit_code.has_value()) return *exit_code;
  if (*run) return bench::run_command(*run);
  if (*tune) return bench::tune_command(*tune);
  if (*compare) return bench::compare_command(*compare);
  return tools::report_error(
      bench::program,
      "missing command: got nothing, allowed run, tune or compare; see aio_bench --help", 2);
}
