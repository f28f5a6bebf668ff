// Proves that a save, and cached tokens, are on the disk before they get their names: every call
// that makes bytes durable is watched, in order, and each is made to fail in turn. Data that could
// not be made durable has no name and leaves nothing. Space that cannot be reserved is refused
// before the first byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "models/checkpoint_writer.h"
#include "models/data/token_cache.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_calls.h"

namespace artesian::models {
namespace {

namespace fs = std::filesystem;
using test_support::TemporaryDirectory;
using test_support::WatchedCall;
using test_support::WatchedCalls;
using Kind = WatchedCall::Kind;

class DurabilityTest : public testing::Test {
 protected:
  ~DurabilityTest() override { WatchedCalls::all().end(); }

  std::string target() const { return folder_.path() + "/out"; }
  Result<CheckpointWriter> create() const {
    std::vector<TensorDeclaration> tensors;
    for (const char* name : {"a", "b", "c"}) tensors.push_back({name, {1000}});
    return CheckpointWriter::create({.target = target(),
                                     .files = {{"config.json", "{}"}, {"vocab.json", "{}"}},
                                     .shard_size_max = 8000},
                                    std::move(tensors));
  }
  /// Two shards, two files beside them and the index.
  Result<void> save() const {
    ARTESIAN_TRY(writer, create());
    const std::vector<std::byte> bytes(4000, std::byte{5});
    for (std::size_t tensor = 0; tensor < 3; ++tensor) {
      ARTESIAN_TRY_VOID(writer.append(tensor, bytes));
    }
    return writer.commit();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      found.push_back(entry.path().lexically_relative(folder_.path()));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  const TemporaryDirectory folder_;
};

/// Files that were written, with the positions in the list of the last write to each and of its
/// sync.
std::map<std::string, std::pair<int, int>> writes_and_syncs(const std::vector<WatchedCall>& calls) {
  std::map<std::string, std::pair<int, int>> found;
  for (int at = 0; at < static_cast<int>(calls.size()); ++at) {
    const WatchedCall& call = calls[static_cast<std::size_t>(at)];
    if (call.kind == Kind::Write) found[call.path] = {at, -1};
    if (call.kind == Kind::Sync && found.contains(call.path)) found[call.path].second = at;
  }
  return found;
}

int place_of(const std::vector<WatchedCall>& calls, Kind kind, const std::string& path) {
  const auto same = [&](const WatchedCall& call) { return call.kind == kind && call.path == path; };
  const auto found = std::find_if(calls.begin(), calls.end(), same);
  return found == calls.end() ? -1 : static_cast<int>(found - calls.begin());
}

/// Each file that was written is synced after that, and closed, before the folder is renamed.
void expect_synced(const std::vector<WatchedCall>& calls, int renamed) {
  ASSERT_GE(renamed, 0);
  EXPECT_FALSE(calls[static_cast<std::size_t>(renamed)].left_open);
  const auto files = writes_and_syncs(calls);
  EXPECT_EQ(files.size(), 5u);
  for (const auto& [path, places] : files) {
    EXPECT_GT(places.second, places.first) << path;
    EXPECT_LT(places.second, renamed) << path;
  }
}

TEST_F(DurabilityTest, AllOfASaveIsOnTheDiskBeforeItHasItsName) {
  WatchedCalls::all().begin();
  const auto saved = save();
  WatchedCalls::all().end();
  ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  const auto& calls = WatchedCalls::all().list();
  const int renamed = place_of(calls, Kind::Rename, target());
  expect_synced(calls, renamed);
  std::string partial;
  int last_name = -1;
  for (int at = 0; at < renamed; ++at) {
    const WatchedCall& call = calls[static_cast<std::size_t>(at)];
    if (call.kind == Kind::Link) partial = fs::path(call.path).parent_path();
    if (call.kind == Kind::Link || call.kind == Kind::Write) last_name = at;
  }
  const int folder_synced = place_of(calls, Kind::Sync, partial);
  EXPECT_GT(folder_synced, last_name) << partial;
  EXPECT_LT(folder_synced, renamed);
  EXPECT_GT(place_of(calls, Kind::Sync, folder_.path()), renamed);
}

TEST_F(DurabilityTest, ASyncThatFailsIsTheSavesErrorAndLeavesNothing) {
  WatchedCalls::all().begin();
  ASSERT_TRUE(save().has_value());
  const int syncs = WatchedCalls::all().count(Kind::Sync);
  ASSERT_GE(syncs, 7);  // five files, their folder and the one above it
  fs::remove_all(target());
  for (int number = 0; number < syncs; ++number) {
    SCOPED_TRACE("sync " + std::to_string(number));
    WatchedCalls::all().begin({{Kind::Sync, number, EIO}});
    const auto saved = save();
    WatchedCalls::all().end();
    ASSERT_FALSE(saved.has_value());
    EXPECT_EQ(saved.error().code, ErrorCode::Io);
    EXPECT_EQ(saved.error().system_error, EIO);
    const bool named = number + 1 == syncs;  // whole, and perhaps not there after a power cut
    EXPECT_EQ(fs::exists(target()), named);
    if (named) fs::remove_all(target());
    EXPECT_EQ(names(), std::vector<std::string>());
  }
}

TEST_F(DurabilityTest, RoomThatIsRefusedIsToldBeforeTheFirstByte) {
  for (const bool unnamed : {true, false}) {
    for (int number = 0; number < (unnamed ? 3 : 2); ++number) {
      SCOPED_TRACE((unnamed ? "unnamed " : "named ") + std::to_string(number));
      std::vector<WatchedCalls::Failure> failures{{Kind::Reserve, number, ENOSPC}};
      // A file system that cannot name a file that was opened without a name.
      if (!unnamed) failures.push_back({Kind::Link, 0, EOPNOTSUPP});
      WatchedCalls::all().begin(failures);
      const auto writer = create();
      WatchedCalls::all().end();
      ASSERT_FALSE(writer.has_value());
      EXPECT_EQ(writer.error().code, ErrorCode::NoSpace);
      EXPECT_EQ(writer.error().system_error, ENOSPC);
      EXPECT_EQ(names(), std::vector<std::string>());
    }
  }
}

TEST_F(DurabilityTest, WithoutUnnamedFilesASaveIsAsDurable) {
  const auto saved = [&](std::vector<WatchedCalls::Failure> more) {
    more.push_back({Kind::Link, 0, EOPNOTSUPP});
    WatchedCalls::all().begin(more);
    const bool done = save().has_value();
    WatchedCalls::all().end();
    return done;
  };
  ASSERT_TRUE(saved({}));
  const auto calls = WatchedCalls::all().list();
  expect_synced(calls, place_of(calls, Kind::Rename, target()));
  fs::remove_all(target());
  for (int number = 0; number < 6; ++number) {  // all but that of the folder above
    EXPECT_FALSE(saved({{Kind::Sync, number, EIO}})) << number;
    EXPECT_EQ(names(), std::vector<std::string>());
  }
}

TEST_F(DurabilityTest, ANameThatIsRefusedIsAnErrorThatTellsWhereAllIs) {
  WatchedCalls::all().begin({{Kind::Rename, 0, EIO}});
  const auto saved = save();
  WatchedCalls::all().end();
  ASSERT_FALSE(saved.has_value());
  EXPECT_FALSE(fs::exists(target()));
  const std::string& text = saved.error().message;
  const std::string where = text.substr(text.rfind(' ') + 1);
  EXPECT_TRUE(fs::exists(where + "/model.safetensors.index.json")) << text;
  WatchedCalls::all().begin({{Kind::Link, 1, EIO}});  // of the first shard
  fs::remove_all(where);
  EXPECT_FALSE(save().has_value());
  WatchedCalls::all().end();
  EXPECT_EQ(names(), std::vector<std::string>());
}

TEST_F(DurabilityTest, KeptTokensAreOnTheDiskBeforeTheyHaveTheirName) {
  const TokenCache cache(folder_.path() + "/cache");
  const std::string tokens = folder_.write("tokens", std::string(3'000'000, 'x'));
  WatchedCalls::all().begin();
  ASSERT_TRUE(cache.keep("a", tokens).has_value());
  WatchedCalls::all().end();
  const auto& calls = WatchedCalls::all().list();
  const int renamed = place_of(calls, Kind::Rename, folder_.path() + "/cache/a.bin");
  const auto files = writes_and_syncs(calls);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_GT(files.begin()->second.second, files.begin()->second.first);
  EXPECT_LT(files.begin()->second.second, renamed);
  EXPECT_FALSE(calls[static_cast<std::size_t>(renamed)].left_open);
  for (const Kind kind : {Kind::Write, Kind::Sync, Kind::Rename}) {
    WatchedCalls::all().begin({{kind, 0, EIO}});
    EXPECT_FALSE(cache.keep("b", tokens).has_value());
    WatchedCalls::all().end();
    EXPECT_EQ(names(), (std::vector<std::string>{"cache", "cache/a.bin", "tokens"}));
  }
}

}  // namespace
}  // namespace artesian::models
