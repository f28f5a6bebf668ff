#include "base/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace artesian {
namespace {

constexpr const char* torch_size = "WORLD_SIZE";
// Set by Open MPI; by MPICH, Intel MPI and Slurm's PMI; and by MVAPICH2.
constexpr const char* mpi_sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
constexpr const char* slurm_size = "SLURM_STEP_NUM_TASKS";
constexpr const char* torchrun_mark = "TORCHELASTIC_RUN_ID";

std::optional<Launch> launch_of(const Environment& environment, const char* variable) {
  const char* text = environment(variable);
  if (text == nullptr) return std::nullopt;
  Launch launch{.variable = variable};
  const char* const end = text + std::strlen(text);
  const auto [after, error] = std::from_chars(text, end, launch.processes);
  if (error != std::errc() || after != end) return std::nullopt;
  return launch;
}

}  // namespace

std::optional<Launch> launched_together(const Environment& environment) {
  const auto torch = launch_of(environment, torch_size);
  if (torch.has_value() && torch->processes > 1) return torch;
  if (torch.has_value() && environment(torchrun_mark) != nullptr) return std::nullopt;
  bool has_mpi = false;
  for (const char* variable : mpi_sizes) {
    const auto mpi = launch_of(environment, variable);
    if (mpi.has_value() && mpi->processes > 1) return mpi;
    has_mpi = has_mpi || mpi.has_value();
  }
  const auto slurm = launch_of(environment, slurm_size);
  if (!has_mpi && slurm.has_value() && slurm->processes > 1) return slurm;
  return std::nullopt;
}

Result<void> check_one_process(const std::string& takes_group) {
  const auto launch = launched_together([](const char* name) {
    return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see the header
  });
  if (!launch.has_value()) return {};
  return make_error(
      ErrorCode::Unsupported,
      launch->variable + ": got " + std::to_string(launch->processes) + " processes, allowed 1" +
          (takes_group.empty() ? ": training with several ranks from Python is not supported yet; "
                                 "start one process"
                               : " without " + takes_group + "; set it") +
          ", or unset " + launch->variable + " where each is to train a model of its own");
}

}  // namespace artesian
