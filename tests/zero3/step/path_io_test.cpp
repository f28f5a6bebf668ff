// When the settings of a machine profile apply, and when those of the config: each rule, its log
// line, and that the I/O engine has the settings chosen for its folder.
#include "zero3/step/path_io.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "tests/support/process.h"
#include "tests/support/seccomp.h"
#include "tests/support/temporary_directory.h"
#include "zero3/step/io_engine.h"

namespace artesian::zero3 {
namespace {

using Lines = std::vector<std::string>;

/// A config without an aio section.
Config undecided() {
  Config config;
  config.aio_from_profile = true;
  return config;
}

tiering::MachineProfile measured() {
  return {.path = "/nvme",
          .file_system = "ext4",
          .measured_at = "2026-01-31T12:00:00Z",
          .queue_depth = 64,
          .threads = 1,
          .engine = "io_uring",
          .best = aio::EngineOptions{.block_size = 262144, .queue_depth = 64},
          .rates = {}};
}

SavedProfile saved(tiering::MachineProfile profile) {
  return {.file = "/cache/disk.json", .profile = std::move(profile)};
}

/// Chooses for one folder.
PathIoChoice choose(const Config& config, tiering::MachineProfile profile) {
  return choose_path_io(config, {"/nvme"}, {saved(std::move(profile))});
}

void expect_defaults(const PathIo& io) {
  EXPECT_EQ(io.options.block_size, AioConfig().block_size);
  EXPECT_EQ(io.options.queue_depth, AioConfig().queue_depth);
  EXPECT_FALSE(io.engine.has_value());
}

/// Expects these settings and defaults for all others.
void expect_unlike_defaults(const PathIo& io, std::uint64_t block_size, std::uint32_t depth) {
  EXPECT_EQ(io.options.block_size, block_size);
  EXPECT_EQ(io.options.queue_depth, depth);
  EXPECT_EQ(io.options.threads, 2u);
  EXPECT_TRUE(io.options.single_submit);
  EXPECT_FALSE(io.options.overlap_events);
}

TEST(PathIo, OfAProfileIsTakenWhereTheConfigSaysNothing) {
  auto profile = measured();
  profile.best->threads = 2;
  profile.best->single_submit = true;
  profile.best->overlap_events = false;
  const PathIoChoice choice = choose(undecided(), profile);
  const PathIo& io = choice.paths.at(0);
  expect_unlike_defaults(io, 262144u, 64u);
  EXPECT_EQ(io.engine, aio::EngineKind::IoUring);
  EXPECT_EQ(choice.notes,
            Lines{"aio: block_size 256 KiB, queue_depth 64, intra_op_parallelism 2, single_submit "
                  "true, overlap_events false of the machine profile of /nvme (aio_bench tune, "
                  "2026-01-31T12:00:00Z)"});
}

TEST(PathIo, OfAConfigIsTakenWhereThatHasASection) {
  Config config;
  config.aio = {.block_size = 8192,
                .queue_depth = 3,
                .intra_op_parallelism = 2,
                .single_submit = true,
                .overlap_events = false};
  config.artesian.polling = PollingChoice::Completion;
  const PathIoChoice choice = choose(config, measured());
  const PathIo& io = choice.paths.at(0);
  expect_unlike_defaults(io, 8192u, 3u);
  EXPECT_EQ(io.options.polling, aio::Polling::Completion);
  EXPECT_FALSE(io.engine.has_value());
  EXPECT_TRUE(choice.notes.empty());
}

TEST(PathIo, IsTheDefaultWithoutAProfileAndOfOneWithoutSettings) {
  for (const auto& profiles : {std::vector<SavedProfile>(), std::vector<SavedProfile>(1)}) {
    const PathIoChoice none = choose_path_io(undecided(), {"/nvme"}, profiles);
    expect_defaults(none.paths.at(0));
    EXPECT_TRUE(none.notes.empty());
  }
  auto old = measured();
  old.best.reset();
  const PathIoChoice choice = choose(undecided(), old);
  expect_defaults(choice.paths.at(0));
  EXPECT_TRUE(choice.notes.empty());
}

TEST(PathIo, OfAProfileIsForTheEngineAndPollingThatItWasMeasuredWith) {
  Config config = undecided();
  config.artesian.engine = EngineChoice::IoUring;
  EXPECT_EQ(choose(config, measured()).paths.at(0).options.queue_depth, 64u);
  config.artesian.engine = EngineChoice::Threads;
  PathIoChoice choice = choose(config, measured());
  expect_defaults(choice.paths.at(0));
  EXPECT_EQ(choice.notes, Lines{"aio: defaults for /nvme, as its machine profile is of engine "
                                "io_uring, and artesian.engine is threads"});
  auto polling = measured();
  polling.best->polling = aio::Polling::Submission;
  choice = choose(undecided(), polling);
  expect_defaults(choice.paths.at(0));
  EXPECT_EQ(choice.notes, Lines{"aio: defaults for /nvme, as its machine profile is of polling "
                                "sqpoll, and artesian.polling is off"});
  config = undecided();
  config.artesian.polling = PollingChoice::Submission;
  EXPECT_EQ(choose(config, polling).paths.at(0).options.polling, aio::Polling::Submission);
  auto unknown = measured();
  unknown.engine = "io_uring2";
  choice = choose(undecided(), unknown);
  expect_defaults(choice.paths.at(0));
  EXPECT_EQ(choice.notes, Lines{"aio: defaults for /nvme, as its machine profile is of engine "
                                "\"io_uring2\", which is not known here"});
}

TEST(PathIo, IsOfEachFoldersOwnDiskAndSaidOnceForThoseOfOne) {
  auto other = measured();
  other.engine = "libaio";
  other.best->block_size = 1 << 20;
  const std::vector<std::string> folders{"/a", "/b", "/c", "/d", "/e"};
  const SavedProfile broken{.file = "/cache/e.json", .fault = make_error(ErrorCode::Io, "broken")};
  const PathIoChoice choice =
      choose_path_io(undecided(), folders,
                     {saved(measured()), saved(other), saved(measured()), SavedProfile(), broken});
  ASSERT_EQ(choice.paths.size(), folders.size());
  EXPECT_EQ(choice.paths[0].options.block_size, 262144u);
  EXPECT_EQ(choice.paths[1].options.block_size, 1u << 20);
  EXPECT_EQ(choice.paths[1].engine, aio::EngineKind::Libaio);
  EXPECT_EQ(choice.paths[2].options.block_size, 262144u);
  expect_defaults(choice.paths[3]);
  expect_defaults(choice.paths[4]);
  ASSERT_EQ(choice.notes.size(), 3u);
  EXPECT_EQ(choice.notes[0],
            "aio: block_size 256 KiB, queue_depth 64 of the machine profile of /a, /c (aio_bench "
            "tune, 2026-01-31T12:00:00Z)");
  EXPECT_EQ(choice.notes[1],
            "aio: block_size 1.00 MiB, queue_depth 64, libaio of the machine profile of /b "
            "(aio_bench tune, 2026-01-31T12:00:00Z)");
  EXPECT_TRUE(choice.notes[2].starts_with("aio: defaults for /e: broken")) << choice.notes[2];
}

TEST(SavedProfiles, ThatCannotBeUsedAreAFaultAndThoseThatAreMissingAreNone) {
  const test_support::TemporaryDirectory directory;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  ASSERT_EQ(setenv("XDG_CACHE_HOME", directory.path().c_str(), 1), 0);
  const std::vector<std::string> folders{directory.file("a"), directory.file("no/parent")};
  auto found = saved_profiles(folders);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_FALSE(found[0].file.empty());  // beside its parent, in which it will be made
  EXPECT_FALSE(found[0].profile.has_value() || found[0].fault.has_value());
  EXPECT_TRUE(found[1].file.empty());
  EXPECT_FALSE(found[1].profile.has_value() || found[1].fault.has_value());
  ASSERT_TRUE(tiering::save_machine_profile(found[0].file, measured()).has_value());
  found = saved_profiles(folders);
  ASSERT_TRUE(found[0].profile.has_value());
  EXPECT_EQ(found[0].profile->best->queue_depth, 64u);
  std::filesystem::resize_file(found[0].file, 100);
  found = saved_profiles(folders);
  EXPECT_FALSE(found[0].profile.has_value());
  ASSERT_TRUE(found[0].fault.has_value());
  EXPECT_EQ(found[0].fault->code, ErrorCode::Invalid);
}

/// Sizes of the blocks in which each of two engines writes a megabyte.
std::vector<std::uint64_t> blocks_of(aio::Engine& engine, const std::string& path) {
  constexpr std::uint64_t length = 1 << 20;
  const auto file =
      system_files().open(path, {.create = Create::Exclusive, .direct = Direct::Never}).value();
  std::vector<std::byte> memory(length);
  std::vector<std::uint64_t> blocks;
  for (std::uint32_t each : {0u, 1u}) {
    aio::Completion completion;
    const aio::Request request{
        .operation = aio::Operation::Write, .file = file.get(), .offset = 0, .length = length};
    completion.prepare(request, BufferLease(memory.data(), length, nullptr));
    aio::Completion* const list[] = {&completion};
    aio::Engine& own = engine.for_path(each);
    own.submit(list);
    EXPECT_TRUE(own.wait(completion, Deadline::after_seconds(60)).has_value());
    blocks.push_back(own.statistics().blocks);
  }
  return blocks;
}

TEST(IoEngine, MovesTheBytesOfEachFolderAsChosenForIt) {
  const test_support::TemporaryDirectory directory;
  const std::vector<PathIo> paths{
      {.options = {.block_size = 65536, .queue_depth = 2}, .engine = aio::EngineKind::Threads},
      {.options = {.block_size = 262144, .queue_depth = 2}, .engine = aio::EngineKind::Threads}};
  const auto engine = make_io_engine(undecided(), paths);
  ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
  EXPECT_EQ((*engine)->kind(), aio::EngineKind::Threads);  // preferred to what auto takes
  EXPECT_EQ(blocks_of(**engine, directory.file("a")), (std::vector<std::uint64_t>{16, 4}));
  EXPECT_TRUE(make_io_engine(Config(), {}).has_value());  // with nothing on NVMe
}

TEST(IoEngine, ThatTheKernelRefusesByNowIsReplaced) {
  const int status = test_support::run_in_child([] {
    if (!test_support::refuse_call(__NR_io_setup, EPERM)) return 77;
    Lines lines;
    set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
    const PathIo path{.options = {.queue_depth = 2}, .engine = aio::EngineKind::Libaio};
    const auto engine = make_io_engine(undecided(), {path});
    if (!engine.has_value() || (*engine)->kind() == aio::EngineKind::Libaio) return 1;
    if (lines.empty()) return 2;
    return lines[0].starts_with("aio: libaio of the machine profile is not available here: ") ? 0
                                                                                              : 3;
  });
  if (status == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace artesian::zero3
