// Proves how ranks' GPUs are connected by NCCL, on a NCCL whose ranks are threads and whose streams
// are lists: bytes arrive, whatever NCCL is still doing on the host; ranks that cannot connect all
// pass their bytes through host memory; and a rank that is gone, or silent, is an error, whereupon
// what is enqueued ends.
#include "comm/nccl_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/support/local_group.h"

namespace artesian::comm {

struct NcclComm {
  int rank = 0;
  int polls = 0;  // until it is done with its part on the host
  NcclResult state = NcclResult::Success;
  bool aborted = false;
};

namespace {

using test_support::LocalGroup;
using test_support::LocalRanks;

/// What a stream still has to receive.
struct Stream {
  struct Incoming {
    NcclComm* comm;
    int peer;
    std::span<std::byte> target;
  };
  std::vector<Incoming> incoming;
};

/// What all ranks share, and how they behave.
struct World {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent;  // by sender, receiver
  int polls = 2;
  int fails_to_connect = -1;         // this rank
  std::atomic<bool> silent = false;  // calls never end
  std::vector<std::unique_ptr<NcclComm>> comms;
  int groups = 0;  // ids given
  int ended = 0;
  int aborted = 0;
};
World* world = nullptr;
thread_local int groups_open = 0;

NcclResult begin(NcclComm* comm) {
  comm->polls = world->polls;
  return NcclResult::InProgress;
}

Nccl made_up_nccl() {
  Nccl nccl;
  nccl.get_unique_id = [](NcclId* id) {
    const std::lock_guard lock(world->mutex);
    id->bytes[0] = static_cast<char>(++world->groups);
    return NcclResult::Success;
  };
  nccl.comm_init_rank_config = [](NcclComm** comm, int, NcclId id, int rank, NcclConfig* config) {
    EXPECT_EQ(id.bytes[0], 1) << "the id of rank 0";
    EXPECT_EQ(config->blocking, 0);
    {
      const std::lock_guard lock(world->mutex);
      *comm = world->comms.emplace_back(new NcclComm{.rank = rank}).get();
    }
    begin(*comm);
    if (world->fails_to_connect == rank) (*comm)->state = NcclResult{2};
    return NcclResult::InProgress;
  };
  nccl.comm_get_async_error = [](NcclComm* comm, NcclResult* state) {
    const bool busy = world->silent || comm->polls-- > 0;
    *state = busy ? NcclResult::InProgress : comm->state;
    return NcclResult::Success;
  };
  nccl.comm_abort = [](NcclComm* comm) {
    const std::lock_guard lock(world->mutex);
    ++world->aborted;
    comm->aborted = true;
    return NcclResult::Success;
  };
  nccl.comm_finalize = [](NcclComm* comm) { return begin(comm); };
  nccl.comm_destroy = [](NcclComm* comm) {
    const std::lock_guard lock(world->mutex);
    EXPECT_LE(comm->polls, 0) << "destroyed before it has ended";
    ++world->ended;
    return NcclResult::Success;
  };
  nccl.group_start = [] {
    ++groups_open;
    return NcclResult::Success;
  };
  nccl.group_end = [] {
    --groups_open;
    return NcclResult::InProgress;
  };
  nccl.send = [](const void* data, std::size_t size, int type, int peer, NcclComm* comm, void*) {
    EXPECT_EQ(type, Nccl::uint8);
    EXPECT_EQ(groups_open, 1);
    begin(comm);
    const auto* const bytes = static_cast<const std::byte*>(data);
    const std::lock_guard lock(world->mutex);
    world->sent[{comm->rank, peer}].emplace_back(bytes, bytes + size);
    return NcclResult::Success;
  };
  nccl.recv = [](void* data, std::size_t size, int, int peer, NcclComm* comm, void* stream) {
    EXPECT_EQ(groups_open, 1);
    static_cast<Stream*>(stream)->incoming.push_back(
        {comm, peer, {static_cast<std::byte*>(data), size}});
    return NcclResult::Success;
  };
  nccl.get_error_string = [](NcclResult) { return "made up"; };
  return nccl;
}

/// Receives what has been sent; false if something is missing and nobody has aborted.
bool run(Stream& stream) {
  const std::lock_guard lock(world->mutex);
  for (const auto& [comm, peer, target] : stream.incoming) {
    if (comm->aborted) continue;
    auto& queue = world->sent[{peer, comm->rank}];
    if (queue.empty()) return false;
    EXPECT_EQ(queue.front().size(), target.size());
    std::memcpy(target.data(), queue.front().data(), target.size());
    queue.pop_front();
  }
  stream.incoming.clear();
  return true;
}

class NcclGroupTest : public testing::Test {
 protected:
  NcclGroupTest() {
    world = &world_;
    set_log_sink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  ~NcclGroupTest() override { set_log_sink({}); }

  /// Connects all ranks with these GPUs; returns how many have a group, and runs `work` in those.
  int connect(const std::vector<std::string>& gpus,
              const std::function<void(LocalGroup&, DeviceGroup&, Stream&)>& work = {},
              int without_nccl = -1) {
    std::mutex mutex;
    int connected = 0;
    LocalRanks ranks(static_cast<std::uint32_t>(gpus.size()), {.deadline_seconds = 20});
    run_ranks(ranks, [&](Group& group) {
      Stream stream;
      const Result<Nccl> nccl = without_nccl == static_cast<int>(group.rank())
                                    ? Result<Nccl>(make_error(ErrorCode::Unsupported, "no NCCL"))
                                    : made_up_nccl();
      auto made = connect_nccl(group, {gpus[group.rank()], &stream}, nccl);
      ASSERT_TRUE(made.has_value()) << made.error().to_string();
      if (*made == nullptr) return;
      {
        const std::lock_guard lock(mutex);
        ++connected;
      }
      if (work) work(static_cast<LocalGroup&>(group), **made, stream);
    });
    return connected;
  }

  World world_;
  std::vector<std::string> lines_;
};

/// Rank r sends rank k r + 2k bytes, of value 10r + k: none from rank 0 to itself or to rank 0.
TEST_F(NcclGroupTest, BytesOfEachRankArrive) {
  const auto size = [](std::uint32_t from, std::uint32_t to) { return from + 2 * to; };
  const auto exchange = [&](LocalGroup& group, DeviceGroup& devices, Stream& stream) {
    const std::uint32_t own = group.rank();
    for (int time = 0; time < 2; ++time) {
      std::vector<std::vector<std::byte>> out(3);
      std::vector<std::vector<std::byte>> in(3);
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        out[peer].assign(size(own, peer), std::byte(10 * own + peer));
        if (peer != own) in[peer].resize(size(peer, own));
      }
      const std::vector<std::span<const std::byte>> sent(out.begin(), out.end());
      const std::vector<std::span<std::byte>> received(in.begin(), in.end());
      ASSERT_TRUE(devices.enqueue_all_to_all(sent, received, {"bytes"}).has_value());
      ASSERT_TRUE(devices.check().has_value());
      while (!run(stream)) std::this_thread::yield();
      for (std::uint32_t peer = 0; peer < 3; ++peer) {
        if (peer == own) continue;
        EXPECT_EQ(in[peer], std::vector(size(peer, own), std::byte(10 * peer + own)));
      }
    }
    static_cast<void>(group.exchange({}, {"end"}));
  };
  EXPECT_EQ(connect({"a", "b", "c"}, exchange), 3);
  EXPECT_EQ(world_.ended, 3);
  EXPECT_EQ(world_.aborted, 0);
  EXPECT_TRUE(lines_.empty());
}

TEST_F(NcclGroupTest, RanksThatCannotConnectAllPassBytesThroughHostMemory) {
  EXPECT_EQ(connect({"", ""}), 0);
  EXPECT_TRUE(lines_.empty()) << "no GPU is missed where none is";
  const auto expect_line = [&](const std::string& words) {
    ASSERT_EQ(lines_.size(), 1u) << "rank 0's alone";
    EXPECT_NE(lines_.front().find(words), std::string::npos) << lines_.front();
    lines_.clear();
  };
  EXPECT_EQ(connect({"a", ""}), 0);
  expect_line("rank 1 has no GPU");
  EXPECT_EQ(connect({"a", "b", "a"}), 0);
  expect_line("ranks 0 and 2 have the same GPU");
  EXPECT_EQ(connect({"a", "b"}, {}, /*without_nccl=*/1), 0);
  expect_line("rank 1: no NCCL");
  EXPECT_EQ(world_.groups, 0);
  world_.fails_to_connect = 1;
  EXPECT_EQ(connect({"a", "b"}), 0);
  expect_line("made up");
  EXPECT_EQ(world_.aborted, 2);
}

/// Rank 1 sends nothing: rank 0's stream waits, until NCCL notices and rank 0 aborts.
TEST_F(NcclGroupTest, ARankThatIsGoneIsAnErrorAndAbortingEndsWhatWaits) {
  const auto wait_for_1 = [&](LocalGroup& group, DeviceGroup& devices, Stream& stream) {
    if (group.rank() == 0) {
      std::vector<std::byte> bytes(8);
      const std::vector<std::span<const std::byte>> sent(2, bytes);
      const std::vector<std::span<std::byte>> received{{}, bytes};
      ASSERT_TRUE(devices.enqueue_all_to_all(sent, received, {"shares of", "h.3"}).has_value());
      EXPECT_FALSE(run(stream));
      EXPECT_TRUE(devices.check().has_value());
      stream.incoming.front().comm->state = NcclResult::RemoteError;
      const auto noticed = devices.check();
      ASSERT_FALSE(noticed.has_value());
      EXPECT_EQ(noticed.error().code, ErrorCode::PeerLost);
      devices.abort();
      EXPECT_TRUE(run(stream));
    }
    static_cast<void>(group.exchange({}, {"end"}));
  };
  EXPECT_EQ(connect({"a", "b"}, wait_for_1), 2);
  EXPECT_EQ(world_.aborted, 1);
  EXPECT_EQ(world_.ended, 1);
}

/// NCCL waits on the host for a rank: where it connects to it first.
TEST_F(NcclGroupTest, ARankThatNeverAnswersEndsACallAtTheDeadline) {
  LocalRanks ranks(2, {.deadline_seconds = 0.5});
  run_ranks(ranks, [&](Group& group) {
    Stream stream;
    auto made = connect_nccl(group, {group.rank() == 0 ? "a" : "b", &stream}, made_up_nccl());
    ASSERT_TRUE(made.has_value() && *made != nullptr);
    ASSERT_TRUE(group.exchange({}, {"connected"}).has_value());
    world_.silent = true;
    std::vector<std::byte> bytes(8);
    const std::vector<std::span<const std::byte>> sent(2, bytes);
    const std::vector<std::span<std::byte>> received(2);
    const auto late = (*made)->enqueue_all_to_all(sent, received, {"shares of", "h.3"});
    ASSERT_FALSE(late.has_value());
    EXPECT_EQ(late.error().code, ErrorCode::PeerLost);
    EXPECT_NE(late.error().message.find("shares of h.3"), std::string::npos);
    (*made)->abort();
  });
  EXPECT_EQ(world_.aborted, 2);
}

}  // namespace
}  // namespace artesian::comm
