#include "tools/doctor/doctor.h"

#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <hwy/highway.h>
#include <pwd.h>
#include <torch/version.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/split.h"
#include "tiering/host_nodes.h"
#include "tools/doctor/disk.h"
#include "tools/doctor/gpu.h"
#include "tools/doctor/limits.h"
#include "tools/doctor/machine.h"
#include "tools/shell/output_file.h"
#include "tools/shell/standard_output.h"

namespace artesian::tools {
namespace {

std::string three(unsigned major, unsigned minor, unsigned patch) {
  return fmt::format("{}.{}.{}", major, minor, patch);
}

Finding examine_versions() {
  const unsigned xxhash = XXH_versionNumber();  // 801 for 0.8.1
  std::string value = "artesian " ARTESIAN_VERSION ", torch " TORCH_VERSION ", highway ";
  value += three(HWY_MAJOR, HWY_MINOR, HWY_PATCH);
  value += ", xxhash " + three(xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
  value += ", nlohmann-json " + three(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                      NLOHMANN_JSON_VERSION_PATCH);
  value += ", CLI11 " CLI11_VERSION ", glibc ";
  value += gnu_get_libc_version();
  return {.name = "versions", .value = value, .meaning = "quote them in a report"};
}

NcclSettings nccl_settings() {
  const passwd* user = getpwuid(getuid());  // NOLINT(concurrency-mt-unsafe): as NCCL finds it
  return NcclSettings(
      [](const char* name) {
        return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing changes it
      },
      user == nullptr ? "" : user->pw_dir);
}

void append(Findings& all, Findings more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

void add_doctor_flags(CLI::App& doctor) {
  doctor
      .add_option("--path",
                  "Folder for swap files, as nvme_path, several with commas (default: the current "
                  "one)")
      ->type_name("DIR[,DIR]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  doctor
      .add_option("--json", "Write one JSON object to a file, or - for stdout, without the lines")
      ->type_name("FILE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

Result<int> run_doctor(const CLI::App& doctor) {
  std::string faults;
  std::vector<std::string> paths;
  for (const std::string& typed : doctor["--path"]->results()) {
    for (const std::string_view path : split(typed, ',')) {
      paths.emplace_back(path);
      if (!path.empty()) continue;
      faults += "--path: got \"" + typed + "\", allowed a folder; write it " +
                (typed.empty() ? "after the flag\n" : "on each side of a comma\n");
    }
  }
  const auto json = doctor["--json"]->results();
  const std::string file = json.empty() ? "" : json.front();
  if (json.size() > 1) faults += "--json: given twice; write it once\n";
  if (json.size() == 1 && file != "-" && (file.empty() || !may_write_file(file))) {
    faults += "--json: got \"" + file +
              "\", allowed - or a file in a folder that is there and writable\n";
  }
  if (!faults.empty()) {
    faults.pop_back();
    return make_error(ErrorCode::Invalid, faults);
  }
  Findings findings = examine_machine();
  append(findings, examine_thread_limit());
  append(findings, examine_aio_requests());
  if (paths.empty()) paths.emplace_back(".");
  for (const std::string& path : paths) append(findings, examine_path_in_time(path));
  if (paths.size() > 1) {
    std::vector<StripedPath> striped;
    striped.reserve(paths.size());
    for (const std::string& path : paths) striped.push_back(striped_path(path));
    findings.push_back(examine_striping(striped));
  }
  const DriverFacts driver = ask_driver();
  append(findings, examine_gpus(driver, ARTESIAN_CUDA_VERSION));
  append(findings, examine_host_memory(tiering::nodes_of_host({}, paths)));
  for (std::size_t index = 0; index < driver.gpus.size(); ++index) {
    append(findings,
           examine_host_memory(tiering::nodes_of_host(driver.gpus[index].numa_node, paths),
                               fmt::format("cuda:{}", index)));
  }
  append(findings, examine_nccl(nccl_settings()));
  findings.push_back(examine_versions());
  put_worst_first(findings);
  if (!file.empty() && file != "-") ARTESIAN_TRY_VOID(write_file(file, to_json(findings)));
  ARTESIAN_TRY_VOID(write_stdout(file == "-" ? to_json(findings) : to_text(findings)));
  return count_of(findings, Level::Fail) == 0 ? 0 : 1;
}

}  // namespace artesian::tools
