#include "comm/launch.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

namespace artesian::comm {
namespace {

/// The variables set by one launcher.
struct Names {
  const char* ranks;
  const char* rank;
  const char* local_ranks;
  const char* local_rank;
};
constexpr Names launchers[] = {
    {"WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
};
constexpr std::uint64_t default_port = 29500;

Error wrong(const std::string& name, const std::string& got, const std::string& allowed) {
  return make_error(ErrorCode::Invalid, name + ": got " + got + ", allowed " + allowed);
}

/// The number at the beginning of a variable's value: 2 for Slurm's "2(x3)".
Result<std::uint64_t> number(const Environment& environment, const char* name,
                             std::uint64_t maximum) {
  const char* const text = environment(name);
  const std::string allowed =
      "a number up to " + std::to_string(maximum) + "; the launcher sets it";
  if (text == nullptr) return wrong(name, "nothing", allowed);
  std::uint64_t value = 0;
  const char* const end = text + std::strlen(text);
  const auto [after, error] = std::from_chars(text, end, value);
  const bool whole = after == end || *after == '(' || *after == ',';
  if (error != std::errc() || !whole || value > maximum) {
    return wrong(name, "\"" + std::string(text) + "\"", allowed);
  }
  return value;
}

/// As number(), with a default if the variable is missing.
Result<std::uint64_t> number_or(const Environment& environment, const char* name,
                                std::uint64_t maximum, std::uint64_t otherwise) {
  if (environment(name) == nullptr) return otherwise;
  return number(environment, name, maximum);
}

Result<Place> place_of(const Environment& environment, const std::string& ranks_variable) {
  for (const Names& names : launchers) {
    if (ranks_variable != names.ranks) continue;
    constexpr std::uint64_t ranks_max = 1'000'000;
    ARTESIAN_TRY(ranks, number(environment, names.ranks, ranks_max));
    ARTESIAN_TRY(rank, number(environment, names.rank, ranks - 1));
    ARTESIAN_TRY(local_ranks, number_or(environment, names.local_ranks, ranks, 1));
    ARTESIAN_TRY(local_rank, number_or(environment, names.local_rank, ranks - 1, 0));
    return Place{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(ranks),
                 static_cast<std::uint32_t>(local_rank),
                 static_cast<std::uint32_t>(std::max<std::uint64_t>(local_ranks, 1))};
  }
  return wrong(ranks_variable, "several processes", "one");
}

}  // namespace

Result<Launch> launch_of(const Environment& environment) {
  Launch launch;
  const auto together = launched_together(environment);
  if (!together.has_value()) return launch;
  ARTESIAN_TRY(place, place_of(environment, together->variable));
  launch.place = place;
  // Some launchers make only the rank's own GPU visible to it.
  const char* const shown = environment("CUDA_VISIBLE_DEVICES");
  const bool one = shown != nullptr && *shown != '\0' && std::strchr(shown, ',') == nullptr;
  launch.gpu = one ? 0 : place.local_rank;
  const char* const address = environment("MASTER_ADDR");
  const bool here = launch.place.local_ranks == launch.place.ranks;
  if (address == nullptr && !here) {
    return wrong("MASTER_ADDR", "nothing",
                 "the name or address of the machine where rank 0 runs; export it to all ranks");
  }
  launch.address = address == nullptr ? "127.0.0.1" : address;
  ARTESIAN_TRY(port, number_or(environment, "MASTER_PORT",
                               std::numeric_limits<std::uint16_t>::max(), default_port));
  launch.port = static_cast<std::uint16_t>(port);
  const char* const agent = environment("TORCHELASTIC_USE_AGENT_STORE");
  launch.store_is_there = agent != nullptr && std::strcmp(agent, "True") == 0;
  ARTESIAN_TRY(attempt, number_or(environment, "TORCHELASTIC_RESTART_COUNT",
                                  std::numeric_limits<std::uint32_t>::max(), 0));
  launch.attempt = attempt;
  return launch;
}

Result<Launch> this_launch() {
  return launch_of([](const char* name) {
    return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see the header
  });
}

}  // namespace artesian::comm
