// Proves that a process which a launcher started as one of several is recognised, by the
// environments that torchrun, Open MPI, MPICH and Slurm give, and that environments of a single
// process are not mistaken for them.
#include "base/launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace artesian {
namespace {

using Variables = std::map<std::string, std::string>;

/// Returns the variable that says that there are several processes, or "".
std::string told_by(const Variables& variables) {
  const auto launch = launched_together([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  return launch.has_value() ? launch->variable : "";
}

TEST(Launcher, EachLauncherIsKnownByItsVariable) {
  EXPECT_EQ(told_by({{"WORLD_SIZE", "2"}, {"RANK", "1"}}), "WORLD_SIZE");
  EXPECT_EQ(told_by({{"WORLD_SIZE", "16"}, {"TORCHELASTIC_RUN_ID", "none"}}), "WORLD_SIZE");
  EXPECT_EQ(told_by({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(told_by({{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}}), "PMI_SIZE");
  EXPECT_EQ(told_by({{"MV2_COMM_WORLD_SIZE", "3"}}), "MV2_COMM_WORLD_SIZE");
  EXPECT_EQ(told_by({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NTASKS", "8"}}),
            "SLURM_STEP_NUM_TASKS");
}

TEST(Launcher, OneProcessIsOne) {
  EXPECT_EQ(told_by({}), "");
  EXPECT_EQ(told_by({{"WORLD_SIZE", "1"}}), "");
  EXPECT_EQ(told_by({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "8"}}), "");
  EXPECT_EQ(told_by({{"WORLD_SIZE", ""}, {"PMI_SIZE", "two"}, {"MV2_COMM_WORLD_SIZE", "2x"}}), "");
}

TEST(Launcher, ABatchScriptIsOneProcessOfAnAllocationOfMany) {
  EXPECT_EQ(told_by({{"SLURM_NTASKS", "8"},
                     {"SLURM_NPROCS", "8"},
                     {"SLURM_PROCID", "0"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_JOB_NUM_NODES", "2"},
                     {"SLURM_TASKS_PER_NODE", "4(x2)"}}),
            "");
}

TEST(Launcher, TheInnermostDecides) {
  EXPECT_EQ(
      told_by(
          {{"SLURM_STEP_NUM_TASKS", "4"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "none"}}),
      "");
  EXPECT_EQ(told_by({{"SLURM_STEP_NUM_TASKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), "");
  // No variable of torchrun says that there is one process.
  EXPECT_EQ(told_by({{"OMPI_COMM_WORLD_SIZE", "4"}, {"WORLD_SIZE", "1"}}), "OMPI_COMM_WORLD_SIZE");
}

TEST(Launcher, TheErrorNamesTheVariableAndTheWayOut) {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                           "SLURM_STEP_NUM_TASKS"}) {
    ::unsetenv(name);
  }
  EXPECT_TRUE(check_one_process().has_value());
  ::setenv("PMI_SIZE", "3", 1);
  const auto refused = check_one_process();
  ::unsetenv("PMI_SIZE");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
  EXPECT_EQ(refused.error().message,
            "PMI_SIZE: got 3 processes, allowed 1: training with several ranks from Python is not "
            "supported yet; start one process, or unset PMI_SIZE where each is to train a model of "
            "its own");
}

}  // namespace
}  // namespace artesian
