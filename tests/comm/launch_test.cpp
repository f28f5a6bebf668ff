// Proves that a process finds its rank, the number of ranks and their meeting point in the
// environments of torchrun, Open MPI, MPICH, MVAPICH2 and Slurm.
#include "comm/launch.h"

#include <gtest/gtest.h>

#include <map>

namespace artesian::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Launch> launch_with(const Variables& variables) {
  return launch_of([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_place(const Variables& variables, const Place& place) {
  const auto launch = launch_with(variables);
  ASSERT_TRUE(launch.has_value()) << launch.error().to_string();
  EXPECT_EQ(launch->place.rank, place.rank);
  EXPECT_EQ(launch->place.ranks, place.ranks);
  EXPECT_EQ(launch->place.local_rank, place.local_rank);
  EXPECT_EQ(launch->place.local_ranks, place.local_ranks);
}

std::string error_of(const Variables& variables) {
  const auto launch = launch_with(variables);
  return launch.has_value() ? "" : launch.error().message;
}

TEST(Launch, EachLauncherSaysWhichRankThisIs) {
  expect_place({}, {});
  expect_place({{"WORLD_SIZE", "4"},
                {"RANK", "3"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"LOCAL_RANK", "1"},
                {"MASTER_ADDR", "node-0"}},
               {3, 4, 1, 2});
  expect_place({{"OMPI_COMM_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
               {1, 2, 1, 2});
  expect_place({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"MASTER_ADDR", "h"}}, {0, 2, 0, 1});
  expect_place({{"SLURM_STEP_NUM_TASKS", "8"},
                {"SLURM_PROCID", "5"},
                {"SLURM_LOCALID", "1"},
                {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                {"MASTER_ADDR", "node-0"}},
               {5, 8, 1, 4});
}

TEST(Launch, TorchrunsStoreIsUsedAndOthersAreServedByRankZero) {
  const auto torchrun = launch_with({{"WORLD_SIZE", "2"},
                                     {"RANK", "0"},
                                     {"LOCAL_WORLD_SIZE", "2"},
                                     {"MASTER_ADDR", "::1"},
                                     {"MASTER_PORT", "4711"},
                                     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                     {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(torchrun.has_value());
  EXPECT_EQ(torchrun->address, "::1");
  EXPECT_EQ(torchrun->port, 4711);
  EXPECT_TRUE(torchrun->store_is_there);
  EXPECT_EQ(torchrun->attempt, 2u);
  const auto mpi = launch_with({{"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_RANK", "0"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(mpi.has_value());
  EXPECT_EQ(mpi->address, "127.0.0.1");  // all are on this machine
  EXPECT_EQ(mpi->port, 29500);
  EXPECT_FALSE(mpi->store_is_there);
}

TEST(Launch, EachRankOfAMachineHasAGpuOfItsOwn) {
  const auto gpu_of = [](Variables variables) {
    variables.insert({{"WORLD_SIZE", "4"},
                      {"RANK", "3"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"LOCAL_RANK", "1"},
                      {"MASTER_ADDR", "node-0"}});
    const auto launch = launch_with(variables);
    EXPECT_TRUE(launch.has_value());
    return launch.has_value() ? launch->gpu : 99;
  };
  EXPECT_EQ(gpu_of({}), 1u);
  EXPECT_EQ(gpu_of({{"CUDA_VISIBLE_DEVICES", "2,5"}}), 1u);
  EXPECT_EQ(gpu_of({{"CUDA_VISIBLE_DEVICES", "5"}}), 0u);  // as srun --gpus-per-task has it
}

TEST(Launch, WhatIsMissingOrWrongIsNamed) {
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}}),
            "RANK: got nothing, allowed a number up to 1; the launcher sets it");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}, {"RANK", "2"}}),
            "RANK: got \"2\", allowed a number up to 1; the launcher sets it");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}, {"RANK", "one"}}),
            "RANK: got \"one\", allowed a number up to 1; the launcher sets it");
  EXPECT_EQ(error_of({{"WORLD_SIZE", "2"}, {"RANK", "1"}}),
            "MASTER_ADDR: got nothing, allowed the name or address of the machine where rank 0 "
            "runs; export it to all ranks");
  EXPECT_EQ(
      error_of(
          {{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}}),
      "MASTER_PORT: got \"70000\", allowed a number up to 65535; the launcher sets it");
}

}  // namespace
}  // namespace artesian::comm
