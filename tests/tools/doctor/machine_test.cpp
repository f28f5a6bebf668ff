// Proves doctor's lines about machine and process, on invented /proc and /sys trees where this
// machine shows only one case, and the form in which findings are printed.
#include "tools/doctor/machine.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "aio/engine.h"
#include "tests/support/process.h"
#include "tests/support/seccomp.h"
#include "tests/support/temporary_directory.h"

namespace artesian::tools {
namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

TEST(Kernel, OneWithoutIoUringIsWarnedOf) {
  for (const char* release : {"5.7.0", "5.10.0-8-amd64", "6.1.0", "not a number"}) {
    EXPECT_EQ(examine_kernel(release).level, Level::Ok) << release;
  }
  for (const char* release : {"5.6.19", "4.18.0-553.el8", "3.10.0"}) {
    EXPECT_EQ(examine_kernel(release).level, Level::Warn) << release;
    EXPECT_FALSE(examine_kernel(release).fix.empty());
    EXPECT_EQ(examine_kernel(release).meaning.find("thread pool"), std::string::npos)
        << "that is libaio's place";
  }
}

TEST(IoUring, WhereItIsRefusedTheEngineInItsPlaceIsNamed) {
  // 0: as expected; 1: not; 100: no filters here.
  const auto takes = [](const char* engine, std::initializer_list<long> refused) {
    return test_support::run_in_child([&] {
      for (const long call : refused) {
        if (!test_support::refuse_call(call, EPERM)) return 100;
      }
      const Finding finding = examine_io_uring();
      const bool right =
          finding.level == Level::Warn && finding.fix.find("seccomp") != std::string::npos &&
          finding.meaning.starts_with(std::string("artesian.engine auto takes ") + engine);
      return right ? 0 : 1;
    });
  };
  const int pool = takes("the thread pool", {SYS_io_uring_setup, SYS_io_setup});
  EXPECT_TRUE(pool == 0 || pool == 100) << pool;
  if (!aio::make_engine(aio::EngineKind::Libaio, {.queue_depth = 32}).has_value()) {
    GTEST_SKIP() << "no libaio here";
  }
  const int libaio = takes("libaio", {SYS_io_uring_setup});
  EXPECT_TRUE(libaio == 0 || libaio == 100) << libaio;
}

TEST(Engines, TheFixIsThatOfTheError) {
  using aio::EngineKind;
  test_support::TemporaryDirectory root;
  const auto fix = [&](EngineKind kind, int system_error, ErrorCode code = ErrorCode::Unsupported) {
    return fix_of_engine(kind, make_error(code, "refused", system_error), root.path());
  };
  const auto has = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  EXPECT_TRUE(fix(EngineKind::IoUring, ENOMEM).starts_with("ulimit -l unlimited"));
  EXPECT_EQ(fix(EngineKind::IoUring, EMFILE), "ulimit -n 1024");
  EXPECT_TRUE(has(fix(EngineKind::IoUring, EOPNOTSUPP), "5.7"));
  EXPECT_EQ(fix(EngineKind::Libaio, EAGAIN), "sysctl fs.aio-max-nr=1048576");
  for (const EngineKind kind : {EngineKind::IoUring, EngineKind::Libaio, EngineKind::Threads}) {
    EXPECT_TRUE(fix(kind, EAGAIN, ErrorCode::Exhausted).starts_with("ulimit -u "));
  }
  for (const int system_error : {EPERM, ENOSYS}) {
    EXPECT_TRUE(
        has(fix(EngineKind::IoUring, system_error), "seccomp profile that allows io_uring"));
    EXPECT_FALSE(has(fix(EngineKind::IoUring, system_error), "sysctl"));
    EXPECT_TRUE(has(fix(EngineKind::Libaio, system_error), "io_submit"));
  }
  write(root.path() + "/proc/sys/kernel/io_uring_disabled", "2");
  EXPECT_EQ(fix(EngineKind::IoUring, EPERM), "sysctl kernel.io_uring_disabled=0");
  EXPECT_FALSE(has(fix(EngineKind::IoUring, ENOMEM), "sysctl"));
}

TEST(Engines, WithoutAThreadThereIsNone) {
  const int status = test_support::run_in_child([&] {
    for (const long call : {SYS_clone, SYS_clone3}) {
      if (!test_support::refuse_call(call, EAGAIN)) return 100;
    }
    const Finding finding = examine_io_uring();
    if (finding.level != Level::Fail || !finding.fix.starts_with("ulimit -u ")) return 1;
    return finding.value.find("aio-max-nr") == std::string::npos ? 0 : 2;
  });
  EXPECT_TRUE(status == 0 || status == 100) << status;
}

TEST(Memlock, LessThanTheDefaultBudgetIsWarnedOf) {
  constexpr std::uint64_t gib = 1 << 30;
  const auto level = [](std::uint64_t limit, bool exempt) {
    return examine_memlock({.limit = limit, .exempt = exempt, .memory_available = 16 * gib}).level;
  };
  EXPECT_EQ(level(8 << 20, false), Level::Warn);
  EXPECT_EQ(level(8 << 20, true), Level::Ok);
  EXPECT_EQ(level(8 * gib, false), Level::Ok);
  EXPECT_EQ(level(8 * gib - 1, false), Level::Warn);
  EXPECT_EQ(level(RLIM_INFINITY, false), Level::Ok);
}

TEST(Memlock, TheCapabilityIsReadFromTheProcess) {
  test_support::TemporaryDirectory root;
  write(root.path() + "/proc/self/status", "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000004000");
  EXPECT_TRUE(memlock_facts(root.path()).exempt);
  write(root.path() + "/proc/self/status", "CapEff:\t0000000000003fff");
  EXPECT_FALSE(memlock_facts(root.path()).exempt);
}

TEST(HugePages, WhatIsOffInTheSystemIsWarnedOf) {
  test_support::TemporaryDirectory root;
  const std::string folder = root.path() + "/sys/kernel/mm/transparent_hugepage/";
  const auto allowed = [&] { return huge_page_facts(root.path()).allowed; };
  EXPECT_EQ(allowed(), pinned::HugePages::OffInSystem) << "not in this kernel";
  write(folder + "enabled", "always madvise [never]");
  EXPECT_EQ(allowed(), pinned::HugePages::OffInSystem);
  const Finding off = examine_huge_pages(huge_page_facts(root.path()));
  EXPECT_EQ(off.level, Level::Warn);
  EXPECT_NE(off.fix.find("transparent_hugepage/enabled"), std::string::npos) << off.fix;
  write(folder + "hugepages-2048kB/enabled", "always inherit [madvise] never");
  EXPECT_NE(allowed(), pinned::HugePages::OffInSystem) << "of their own";
  write(folder + "enabled", "always [madvise] never");
  write(folder + "hugepages-2048kB/enabled", "always inherit madvise [never]");
  EXPECT_EQ(allowed(), pinned::HugePages::OffInSystem);
  write(folder + "hugepages-2048kB/enabled", "always [inherit] madvise never");
  EXPECT_NE(allowed(), pinned::HugePages::OffInSystem);
  write(root.path() + "/proc/meminfo", "HugePages_Total:     128");
  EXPECT_TRUE(examine_huge_pages(huge_page_facts(root.path()))
                  .value.starts_with("transparent: always [madvise] never; reserved: 128"));
}

TEST(HugePages, WhatIsOffInTheProcessOrNotGivenIsWarnedOf) {
  HugePageFacts facts{.mode = "always [madvise] never",
                      .reserved = "0",
                      .bytes_tried = 16 << 20,
                      .bytes_huge = 14 << 20};
  EXPECT_EQ(examine_huge_pages(facts).level, Level::Ok);
  facts.switched_on = true;
  const Finding allowed = examine_huge_pages(facts);
  EXPECT_EQ(allowed.level, Level::Ok);
  EXPECT_NE(allowed.meaning.find("prctl(PR_SET_THP_DISABLE, 0"), std::string::npos);
  facts.switched_on = false;
  facts.bytes_huge = 6 << 20;
  const Finding pieces = examine_huge_pages(facts);
  EXPECT_EQ(pieces.level, Level::Warn);
  EXPECT_NE(pieces.value.find("of 16.0 MiB taken just now, 6.00 MiB"), std::string::npos)
      << pieces.value;
  EXPECT_NE(pieces.fix.find("compact_memory"), std::string::npos);
  facts.allowed = pinned::HugePages::OffInProcess;
  const Finding off = examine_huge_pages(facts);
  EXPECT_EQ(off.level, Level::Warn);
  EXPECT_NE(off.value.find("off for this process"), std::string::npos) << off.value;
}

// The flag belongs to the process: a child process sets it, and clears it.
TEST(HugePages, TheFlagOfTheProcessIsSeenAndTakenBack) {
  const int status = test_support::run_in_child([] {
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return 100;
    const HugePageFacts off = huge_page_facts();
    if (off.allowed == pinned::HugePages::OffInSystem) return 100;
    if (off.allowed != pinned::HugePages::OffInProcess || off.bytes_huge != 0) return 1;
    if (!pinned::allow_huge_pages()) return 2;
    const HugePageFacts on = huge_page_facts();
    return on.allowed == pinned::HugePages::Allowed && on.switched_on ? 0 : 3;
  });
  EXPECT_TRUE(status == 0 || status == 100) << status;
}

TEST(Numa, CountsTheNodes) {
  test_support::TemporaryDirectory root;
  EXPECT_EQ(examine_numa(root.path()).value, "not known");
  for (const char* name : {"node0", "node1", "nodes_of_another_kind"}) {
    std::filesystem::create_directories(root.path() + "/sys/devices/system/node/" + name);
  }
  EXPECT_EQ(examine_numa(root.path()).value, "2 nodes");
}

TEST(HostMemory, TellsWhereItLiesAndWhatIsInTheWay) {
  EXPECT_TRUE(examine_host_memory({}).empty()) << "no choice, no line";
  const auto usable = pinned::machine_nodes().usable;
  const pinned::NodePolicy near{.nodes = usable, .near = pinned::Near::Gpu};
  const auto refused = [&] {
    if (!test_support::refuse_call(SYS_mbind, EPERM)) return 100;
    const Findings findings = examine_host_memory({.nodes = {1}}, "cuda:1");
    const bool right = findings.size() == 1 && findings[0].level == Level::Warn &&
                       findings[0].subject == "cuda:1" &&
                       findings[0].value.find("not permitted") != std::string::npos &&
                       findings[0].fix.find("SYS_NICE") != std::string::npos;
    return right ? 0 : 1;
  };
  const int status = test_support::run_in_child(refused);
  EXPECT_TRUE(status == 0 || status == 100) << status;
  if (usable.empty() || syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0) != 0) {
    GTEST_SKIP() << "no NUMA calls here";
  }
  const Findings findings = examine_host_memory(near);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::Ok) << findings[0].value;
  EXPECT_EQ(findings[0].value, describe(near));
}

TEST(Processor, NamesItsBf16) {
  test_support::TemporaryDirectory root;
  write(root.path() + "/proc/cpuinfo",
        "model name\t: Some CPU\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16");
  const std::string value = examine_processor(root.path()).value;
  EXPECT_TRUE(value.starts_with("Some CPU, ")) << value;
  EXPECT_NE(value.find("bf16: avx512_bf16, amx_bf16"), std::string::npos) << value;
}

TEST(Processor, SaysInWhatItComputes) {
  test_support::TemporaryDirectory root;
  const auto in_bf16 = [&](const std::string& vendor, const std::string& flags) {
    write(root.path() + "/proc/cpuinfo", "vendor_id\t: " + vendor + "\nflags\t\t: fpu " + flags);
    const std::string meaning = examine_processor(root.path()).meaning;
    EXPECT_NE(meaning.find("artesian.compute_dtype"), std::string::npos);
    return meaning.find("in bf16") != std::string::npos;
  };
  EXPECT_TRUE(in_bf16("GenuineIntel", "avx512_bf16 amx_bf16"));
  EXPECT_FALSE(in_bf16("GenuineIntel", "avx512_bf16")) << "it gains nothing there";
  EXPECT_TRUE(in_bf16("AuthenticAMD", "avx512_bf16"));
  EXPECT_FALSE(in_bf16("AuthenticAMD", "avx512f"));
}

TEST(Limits, LowOnesAreWarnedOf) {
  EXPECT_EQ(examine_descriptors(64).level, Level::Warn);
  EXPECT_EQ(examine_descriptors(RLIM_INFINITY).level, Level::Ok);
  EXPECT_EQ(examine_memory(std::uint64_t{1} << 30).level, Level::Warn);
  EXPECT_EQ(examine_memory(std::uint64_t{64} << 30).level, Level::Ok);
}

TEST(Report, TheWorstComesFirst) {
  Findings findings{{.name = "a"},
                    {.name = "b", .level = Level::Warn},
                    {.name = "c", .level = Level::Fail},
                    {.name = "d", .level = Level::Warn},
                    {.name = "e"}};
  put_worst_first(findings);
  std::string names;
  for (const Finding& finding : findings) names += finding.name;
  EXPECT_EQ(names, "cbdae");
}

TEST(Memory, WhatLeavesLittleOfItIsNamed) {
  constexpr std::uint64_t gib = 1 << 30;
  const Finding alone = examine_memory(gib, gib);
  EXPECT_EQ(alone.value, "1.00 GiB available");
  EXPECT_TRUE(alone.fix.starts_with("end other programs")) << alone.fix;
  const Finding grouped = examine_memory(gib, 64 * gib);
  EXPECT_EQ(grouped.value, "1.00 GiB available within its control group, 64.0 GiB on the machine");
  EXPECT_TRUE(grouped.fix.starts_with("raise the control group's limit")) << grouped.fix;
  EXPECT_EQ(examine_memory(8 * gib, 64 * gib).level, Level::Ok);
}

TEST(Report, TheWorstDecides) {
  const Finding ok{.name = "a", .value = "1", .meaning = "well"};
  const Finding warn{.name = "b",
                     .level = Level::Warn,
                     .value = "2",
                     .meaning = "slow",
                     .fix = "do this",
                     .subject = "/x"};
  const Finding fail{.name = "c", .level = Level::Fail, .value = "\xff"};
  EXPECT_EQ(to_text({ok, warn}),
            "ok    a: 1; well\nwarn  b /x: 2; slow\n      fix: do this\n1 ok, 1 warn, 0 fail\n");
  const auto status = [](const Findings& findings) {
    return nlohmann::json::parse(to_json(findings))["status"].get<std::string>();
  };
  EXPECT_EQ(status({ok}), "ok");
  EXPECT_EQ(status({ok, warn}), "warn");
  EXPECT_EQ(status({fail, warn}), "fail") << "and what is no text is no fault of the object";
  EXPECT_EQ(nlohmann::json::parse(to_json({warn}))["findings"][0]["subject"], "/x");
}

}  // namespace
}  // namespace artesian::tools
