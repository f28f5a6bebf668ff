// Proves that a machine profile is read as it was saved, that anything else is refused by the field
// at fault, and that a file is found by its disk and replaced as a whole.
#include "tiering/disk/profile.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace artesian::tiering {
namespace {

MachineProfile made_up() {
  return {.path = "/nvme/\xFF\"run\"",
          .file_system = "ext4",
          .measured_at = "2026-01-31T12:00:00Z",
          .direct = true,
          .duplex = true,
          .queue_depth = 32,
          .threads = 2,
          .engine = "io_uring",
          .best = aio::EngineOptions{.block_size = 262144,
                                     .queue_depth = 64,
                                     .threads = 2,
                                     .single_submit = true,
                                     .overlap_events = false,
                                     .polling = aio::Polling::Both},
          .rates = {{.block_size = 131072, .read_share = 1, .gb_per_s = 1.25},
                    {.block_size = 1048576, .read_share = 0.5, .gb_per_s = 1.0 / 3}}};
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), by);
}

void expect_same(const MachineProfile& one, const MachineProfile& other) {
  EXPECT_EQ(one.file_system, other.file_system);
  EXPECT_EQ(one.measured_at, other.measured_at);
  EXPECT_EQ(one.direct, other.direct);
  EXPECT_EQ(one.duplex, other.duplex);
  EXPECT_EQ(one.queue_depth, other.queue_depth);
  EXPECT_EQ(one.threads, other.threads);
  EXPECT_EQ(one.engine, other.engine);
  ASSERT_EQ(one.best.has_value(), other.best.has_value());
  if (one.best.has_value()) {
    EXPECT_EQ(one.best->block_size, other.best->block_size);
    EXPECT_EQ(one.best->queue_depth, other.best->queue_depth);
    EXPECT_EQ(one.best->threads, other.best->threads);
    EXPECT_EQ(one.best->single_submit, other.best->single_submit);
    EXPECT_EQ(one.best->overlap_events, other.best->overlap_events);
    EXPECT_EQ(one.best->polling, other.best->polling);
  }
  ASSERT_EQ(one.rates.size(), other.rates.size());
  for (std::size_t index = 0; index < one.rates.size(); ++index) {
    EXPECT_EQ(one.rates[index].block_size, other.rates[index].block_size);
    EXPECT_EQ(one.rates[index].read_share, other.rates[index].read_share);
    EXPECT_EQ(one.rates[index].gb_per_s, other.rates[index].gb_per_s);
  }
}

TEST(MachineProfile, ComesBackAsItWas) {
  auto back = parse_machine_profile(print_machine_profile(made_up()), "p.json");
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  expect_same(*back, made_up());
}

TEST(MachineProfile, OfBeforeTheBestSettingsWereKeptHasNone) {
  MachineProfile old = made_up();
  old.best.reset();
  const std::string text = print_machine_profile(old);
  EXPECT_EQ(text.find("\"aio\""), text.npos);
  EXPECT_EQ(text.find("\"polling\""), text.npos);
  auto back = parse_machine_profile(text, "p.json");
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  expect_same(*back, old);
}

TEST(MachineProfile, DescribesSettingsByWhatIsNotTheDefault) {
  EXPECT_EQ(describe({.block_size = 262144, .queue_depth = 64}),
            "block_size 256 KiB, queue_depth 64");
  EXPECT_EQ(describe(*made_up().best),
            "block_size 256 KiB, queue_depth 64, intra_op_parallelism 2, single_submit true, "
            "overlap_events false, polling both");
}

TEST(MachineProfile, IgnoresFieldsThatItDoesNotKnow) {
  const std::string text = replaced(print_machine_profile(made_up()), "\"direct\"",
                                    "\"later\": {\"a\": [1]}, \"direct\"");
  EXPECT_TRUE(parse_machine_profile(text, "p.json").has_value());
}

TEST(MachineProfile, IsRefusedByTheFieldAtFault) {
  const std::string good = print_machine_profile(made_up());
  const struct {
    const char* what;
    const char* by;
    const char* expected;
  } faults[] = {{"{", "[", "no JSON object"},
                {"artesian machine profile", "something else", "format: must be"},
                {"\"version\": 1", "\"version\": 0", "version: must be"},
                {"\"direct\": true", "\"direct\": 1", "direct: must be true or false"},
                {"\"queue_depth\": 32", "\"queue_depth\": -1", "queue_depth: must be"},
                {"\"engine\": \"io_uring\"", "\"engine\": null", "engine: must be a string"},
                {"\"threads\"", "\"thread\"", "threads: is missing"},
                {"\"aio\": {", "\"aio\": 7, \"other\": {", "aio: block_size: is missing"},
                {"262144", "262145", "aio: block_size: must be a multiple of 4096, at most"},
                {"\"queue_depth\": 64", "\"queue_depth\": 4097",
                 "aio: queue_depth: must be a multiple of 1, at most 4096"},
                {"\"intra_op_parallelism\": 2", "\"intra_op_parallelism\": 0",
                 "aio: intra_op_parallelism: must be a whole number above 0"},
                {"\"single_submit\": true", "\"single_submit\": \"true\"",
                 "aio: single_submit: must be true or false"},
                {"\"overlap_events\"", "\"overlap\"", "aio: overlap_events: is missing"},
                {"\"both\"", "\"all\"", "polling: must be off, sqpoll, iopoll or both"},
                {"\"rates\": [", "\"rates\": [7, ", "rates: block_size: is missing"},
                {"\"read_share\": 0.5", "\"read_share\": 1.5", "rates: read_share: must be"},
                {"\"gb_per_s\": 1.25", "\"gb_per_s\": \"fast\"", "rates: gb_per_s: must be"}};
  for (const auto& fault : faults) {
    auto refused = parse_machine_profile(replaced(good, fault.what, fault.by), "p.json");
    ASSERT_FALSE(refused.has_value()) << fault.expected;
    EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
    EXPECT_NE(refused.error().message.find(fault.expected), std::string::npos)
        << refused.error().message;
    EXPECT_EQ(refused.error().file, "p.json");
  }
  auto later = parse_machine_profile(replaced(good, "\"version\": 1", "\"version\": 2"), "p.json");
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().code, ErrorCode::Unsupported);
  EXPECT_FALSE(parse_machine_profile(std::string(2 << 20, ' '), "p.json").has_value());
  for (std::size_t size = 0; size + 2 < good.size(); ++size) {
    EXPECT_FALSE(parse_machine_profile(good.substr(0, size), "p.json").has_value()) << size;
  }
}

TEST(MachineProfile, TellsADuplexDiskFromASharedOne) {
  EXPECT_FALSE(is_duplex(2, 2, 2));
  EXPECT_TRUE(is_duplex(2, 2, 3.9));
  EXPECT_FALSE(is_duplex(3, 1, 1.5));  // one after the other: 1.5
  EXPECT_TRUE(is_duplex(3, 1, 1.95));  // simultaneously: 2
  EXPECT_FALSE(is_duplex(0, 1, 1));
}

TEST(MachineProfile, IsFoundByItsDiskAndReplaced) {
  const test_support::TemporaryDirectory folder;
  ASSERT_EQ(setenv("XDG_CACHE_HOME", folder.file("cache").c_str(), 1), 0);
  auto path = machine_profile_path(folder.path());
  ASSERT_TRUE(path.has_value()) << path.error().to_string();
  EXPECT_TRUE(path->starts_with(folder.file("cache") + "/artesian/disk-"));
  std::filesystem::create_directory(folder.file("below"));
  auto same = machine_profile_path(folder.file("below"));
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(*same, *path);

  auto none = load_machine_profile(*path);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().system_error, ENOENT);
  for (const std::uint64_t depth : {8, 64}) {
    MachineProfile profile = made_up();
    profile.queue_depth = depth;
    const auto saved = save_machine_profile(*path, profile);
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
    auto back = load_machine_profile(*path);
    ASSERT_TRUE(back.has_value()) << back.error().to_string();
    expect_same(*back, profile);
  }
  const auto entries = std::filesystem::directory_iterator(folder.file("cache/artesian"));
  EXPECT_EQ(std::distance(entries, {}), 1);
}

TEST(MachineProfile, SaysWhereItCannotBe) {
  const test_support::TemporaryDirectory folder;
  EXPECT_FALSE(machine_profile_path(folder.file("missing")).has_value());
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
  ASSERT_EQ(setenv("HOME", "relative", 1), 0);
  auto homeless = machine_profile_path(folder.path());
  ASSERT_FALSE(homeless.has_value());
  EXPECT_NE(homeless.error().message.find("HOME"), std::string::npos);
  std::ofstream(folder.file("file")) << "x";
  EXPECT_FALSE(save_machine_profile(folder.file("file/disk.json"), made_up()).has_value());
  EXPECT_FALSE(save_machine_profile("/proc/disk.json", made_up()).has_value());
}

TEST(MachineProfile, IsReplacedByOneThatIsWorthAsMuch) {
  const auto of = [](std::uint64_t size, double seconds) {
    MachineProfile profile;
    profile.size = size;
    profile.budget_seconds = seconds;
    return profile;
  };
  const std::uint64_t gib = std::uint64_t{1} << 30;
  EXPECT_TRUE(of(gib, 30).may_replace(of(gib, 30)));
  EXPECT_TRUE(of(2 * gib, 60).may_replace(of(gib, 30)));
  EXPECT_FALSE(of(gib / 2, 60).may_replace(of(gib, 30)));
  EXPECT_FALSE(of(2 * gib, 29).may_replace(of(gib, 30)));
  EXPECT_TRUE(of(2 * gib, 60).may_replace(of(0, 0))) << "an older one: what tune does by default";
  EXPECT_FALSE(of(gib, 60).may_replace(of(0, 0)));
  EXPECT_FALSE(of(2 * gib, 59).may_replace(of(0, 0)));
}

}  // namespace
}  // namespace artesian::tiering
