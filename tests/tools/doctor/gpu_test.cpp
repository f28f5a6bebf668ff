// Proves doctor's lines about GPUs, with a driver library that answers what the test says, and
// those about NCCL's variables.
#include "tools/doctor/gpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/support/temporary_directory.h"

namespace artesian::tools {
namespace {

class Driver : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void answers(const std::string& name, int value) {
    setenv(name.c_str(), std::to_string(value).c_str(), 1);
    set_.push_back(name);
  }
  static DriverFacts ask(const std::string& root = "") {
    return ask_driver(ARTESIAN_FAKE_DRIVER, ARTESIAN_FAKE_DRIVER, root);
  }

 private:
  std::vector<std::string> set_;
};

TEST_F(Driver, WithoutItsLibraryTheCpuComputes) {
  const DriverFacts facts = ask_driver("libno-such-driver.so.1", "libno-such-nvml.so.1");
  EXPECT_FALSE(facts.installed);
  const Findings findings = examine_gpus(facts, 13000);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::Ok);
  EXPECT_EQ(findings[0].value, "none; built with CUDA 13.0");
}

TEST_F(Driver, TellsOfEachGpu) {
  answers("FAKE_GPUS", 2);
  answers("FAKE_LINKS", 6);
  test_support::TemporaryDirectory root;
  const std::string device = root.path() + "/sys/bus/pci/devices/0000:4b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device + "/numa_node") << "1\n";
  const Findings findings = examine_gpus(ask(root.path()), 13000);
  ASSERT_EQ(findings.size(), 4u);
  EXPECT_EQ(findings[0].value, "13.0, 2 GPUs; built with CUDA 13.0");
  EXPECT_EQ(findings[1].subject, "cuda:0");
  EXPECT_EQ(findings[1].value, "Fake H200, 141 GiB, compute capability 9.0, 6 NVLinks");
  EXPECT_EQ(findings[2].value,
            "Fake H200, 141 GiB, compute capability 9.0, NUMA node 1, 6 NVLinks");
  EXPECT_EQ(findings[3].value, "NVLink");
  EXPECT_EQ(count_of(findings, Level::Ok), 4u);
}

TEST_F(Driver, SaysWhichGpusAreNoPeers) {
  answers("FAKE_GPUS", 3);
  answers("FAKE_PEERS", 0);
  const Findings findings = examine_gpus(ask(), 13000);
  ASSERT_EQ(findings.back().name, "gpu_links");
  EXPECT_EQ(findings.back().level, Level::Warn);
  EXPECT_EQ(findings.back().value, "no NVLink between all of them, 3 pairs without peer access");
  EXPECT_FALSE(findings.back().fix.empty());
}

struct DriverCase {
  std::map<std::string, int> answers;
  int built_version;
  std::string meaning;
};

TEST_F(Driver, EachFaultHasItsFix) {
  const DriverCase cases[] = {
      {{{"FAKE_INIT", 100}}, 13000, "there is a driver, but it shows no GPU"},
      {{{"FAKE_GPUS", 0}}, 13000, "there is a driver, but it shows no GPU"},
      {{{"FAKE_INIT", 804}}, 13000, "the driver does not work: no GPU can be used"},
      {{{"FAKE_VERSION", 12080}},
       13000,
       "older than the toolkit of this build: its kernels cannot "
       "run"},
      {{}, 0, "this build cannot use the GPUs"},
  };
  for (const DriverCase& each : cases) {
    for (const auto& [name, value] : each.answers) answers(name, value);
    const Findings findings = examine_gpus(ask(), each.built_version);
    EXPECT_EQ(findings[0].level, Level::Warn) << each.meaning;
    EXPECT_EQ(findings[0].meaning, each.meaning);
    EXPECT_FALSE(findings[0].fix.empty()) << each.meaning;
    TearDown();
  }
}

TEST_F(Driver, AnOldGpuIsNamed) {
  answers("FAKE_CAPABILITY", 7);
  const Findings findings = examine_gpus(ask(), 13000);
  EXPECT_EQ(findings[1].level, Level::Warn);
  EXPECT_NE(findings[1].meaning.find("bf16"), std::string::npos);
}

using Variables = std::map<std::string, std::string>;

Findings with_variables(const Variables& variables, const std::string& home = "",
                        const std::string& root = "/no/such/root") {
  const auto variable = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return examine_nccl(NcclSettings(variable, home, root));
}

TEST(Nccl, OnlyWhatSwitchesAPathOffIsNamed) {
  const Findings fine = with_variables({{"NCCL_P2P_DISABLE", "0"},
                                        {"NCCL_P2P_LEVEL", "NVL"},
                                        {"NCCL_DEBUG", "INFO"},
                                        {"NCCL_IB_DISABLE", ""}});
  ASSERT_EQ(fine.size(), 1u);
  EXPECT_EQ(fine[0].level, Level::Ok);
  const Findings off =
      with_variables({{"NCCL_P2P_DISABLE", "1"}, {"NCCL_P2P_LEVEL", "LOC"}, {"NCCL_ALGO", "Ring"}});
  ASSERT_EQ(off.size(), 3u);
  EXPECT_EQ(count_of(off, Level::Warn), 3u);
  EXPECT_EQ(off[0].value, "NCCL_P2P_DISABLE=1");
  EXPECT_EQ(off[1].value, "NCCL_P2P_LEVEL=LOC");
  EXPECT_EQ(off[2].value, "NCCL_ALGO=Ring");
  EXPECT_NE(off[0].fix.find("unset NCCL_P2P_DISABLE"), std::string::npos);
  EXPECT_EQ(with_variables({{"NCCL_NET", "Socket"}}).at(0).level, Level::Warn);
  EXPECT_EQ(with_variables({{"NCCL_NET", "IB"}}).at(0).level, Level::Ok);
}

TEST(Nccl, ItsFilesAreReadAfterTheEnvironment) {
  const test_support::TemporaryDirectory home;
  const test_support::TemporaryDirectory root;
  const std::string users = home.write(".nccl.conf",
                                       "#NCCL_ALGO=Tree\nNCCL_P2P_DISABLE=1\nnot a line\n"
                                       "NCCL_IB_DISABLE=0\nNCCL_PROTO =LL");
  std::filesystem::create_directory(root.path() + "/etc");
  root.write("etc/nccl.conf", "NCCL_IB_DISABLE=1\nNCCL_SHM_DISABLE=1\n");
  const auto values = [&](const Variables& variables) {
    std::vector<std::string> all;
    for (const Finding& each : with_variables(variables, home.path(), root.path())) {
      all.push_back(each.value);
    }
    return all;
  };
  using Values = std::vector<std::string>;
  EXPECT_EQ(values({}),
            (Values{"NCCL_P2P_DISABLE=1, in " + users, "NCCL_SHM_DISABLE=1, in /etc/nccl.conf"}))
      << "the first that sets it decides";
  EXPECT_EQ(with_variables({}, home.path(), root.path())[0].fix,
            "take the line out of " + users + ", unless it is set for a reason that still holds");
  EXPECT_EQ(values({{"NCCL_P2P_DISABLE", "0"}}), Values{"NCCL_SHM_DISABLE=1, in /etc/nccl.conf"});
  const std::string other = home.write("other", "NCCL_NET=Socket");
  EXPECT_EQ(values({{"NCCL_CONF_FILE", other}}),
            (Values{"NCCL_SHM_DISABLE=1, in /etc/nccl.conf", "NCCL_IB_DISABLE=1, in /etc/nccl.conf",
                    "NCCL_NET=Socket, in " + other}))
      << "in place of the one at home";
}

}  // namespace
}  // namespace artesian::tools
