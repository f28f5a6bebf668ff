// Proves on every engine and file system that a transfer may begin, end and lie in memory anywhere
// (reliability.md test 6). All 64 combinations of memory, length and offset mod {0, 1, 512, 4096}
// write and read the right bytes and no others, on the disk, in memory and on an ext4 image behind
// a loop device. Exactly the parts whose alignment the kernel asks for bypass the page cache, as
// the statistics count. So do large transfers with random ends, also cut short, interrupted and
// cancelled, and with neighbours in flight that share their pages.
#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>

#include "tests/aio/engine_fixture.h"
#include "tests/support/disks.h"
#include "tests/support/process.h"

namespace artesian::aio {
namespace {

constexpr std::uint64_t file_size = 256 << 10;
constexpr std::uint64_t block_size = 4096;

/// The kernel reports that the first call of a block moved little: one aligned unit.
class ShortParts final : public FaultSeam {
 public:
  std::int64_t answer(const Block& block, std::int64_t result) noexcept override {
    const auto most = static_cast<std::int64_t>(block.alignment + block.alignment / 2 + 1);
    return block.done == 0 ? std::min(result, most) : result;
  }
};

/// One piece of memory, of which transfers take parts at any address. The memory around them is
/// checked to stay as it was.
class Slab final : public BufferOwner {
 public:
  explicit Slab(std::uint64_t size)
      : size_(size), base_(static_cast<std::byte*>(std::aligned_alloc(4096, size))) {}
  ~Slab() { std::free(base_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  BufferLease part(std::uint64_t begin, std::uint64_t length) {
    ARTESIAN_CHECK(begin + length <= size_, begin, length);
    std::memset(base_, guard, size_);
    return {base_ + begin, length, this};
  }
  bool untouched_around(std::uint64_t begin, std::uint64_t length) const {
    return all_guard(0, begin) && all_guard(begin + length, size_);
  }
  void give_back(std::byte*, std::uint64_t) noexcept override {}

 private:
  // By memcmp, since sanitizers make a loop over bytes slow.
  bool all_guard(std::uint64_t from, std::uint64_t to) const {
    return from == to || (base_[from] == std::byte{guard} &&
                          std::memcmp(base_ + from, base_ + from + 1, to - from - 1) == 0);
  }

  static constexpr int guard = 0xa5;
  const std::uint64_t size_;
  std::byte* const base_;
};

/// The blocks of a transfer: those that bypass the page cache and those through it.
struct Blocks {
  std::uint64_t direct = 0;
  std::uint64_t misaligned = 0;
};

struct Case {
  std::uint64_t memory, length, offset;
  /// Page by page: a part of a page bypasses the page cache if it begins and ends at alignment
  /// boundaries, and its memory does. Neighbours of one kind are cut into blocks together.
  Blocks blocks(std::uint64_t alignment, std::uint64_t block) const {
    constexpr std::uint64_t page = 4096;
    Blocks found;
    std::uint64_t run = 0;
    bool run_direct = false;
    const auto end_run = [&] {
      (run_direct ? found.direct : found.misaligned) += round_up(run, block) / block;
      run = 0;
    };
    const std::uint64_t end = offset + length;
    for (std::uint64_t at = offset; at != end;) {
      const std::uint64_t next = std::min(end, round_down(at, page) + page);
      const bool together = memory % alignment == offset % alignment;
      const bool direct = together && at % alignment == 0 && next % alignment == 0;
      if (direct != run_direct) end_run();
      run_direct = direct;
      run += next - at;
      at = next;
    }
    end_run();
    return found;
  }
};

class Alignment : public EngineFixture {
 protected:
  /// A new file of `size` bytes of byte_at, and a model of its content.
  struct Disk {
    std::unique_ptr<File> file;
    std::vector<std::byte> model;
  };
  Disk make_disk(const std::string& folder, std::uint64_t size) {
    Disk disk{.file = open(folder + "/file", {.create = Create::Exclusive}),
              .model = std::vector<std::byte>(size)};
    fill_quickly(disk.model.data(), 0, size);
    EXPECT_TRUE(disk.file->write_at(disk.model.data(), size, 0));
    return disk;
  }

  /// All 64 combinations on one file. Returns how many blocks bypassed the page cache.
  std::uint64_t check_all(const std::string& folder) {
    auto engine = make({.block_size = block_size, .queue_depth = 4});
    Disk disk = make_disk(folder, file_size);
    Blocks expected;
    std::uint64_t number = 0;
    constexpr std::array<std::uint64_t, 4> rests{0, 1, 512, 4096};
    for (const std::uint64_t memory : rests) {
      for (const std::uint64_t length : rests) {
        for (const std::uint64_t offset : rests) {
          const Case each{memory, 3 * block_size + length, 65536 + offset};
          write_and_read(*engine, disk, each, ++number);
          add(expected, each, *disk.file, block_size);
        }
      }
    }
    expect_blocks(*engine, expected);
    EXPECT_EQ(engine->statistics().continued, 0u);
    EXPECT_EQ(expected.misaligned > 0, disk.file->direct());
    return expected.direct;
  }

  /// Large transfers that end at pages, at sectors or anywhere. Memory is aligned as the offset is,
  /// or lies anywhere.
  std::uint64_t check_large(const std::string& folder, FaultSeam* faults = nullptr) {
    constexpr std::uint64_t block = 64 << 10;
    auto engine = make({.block_size = block, .queue_depth = 4}, faults);
    Disk disk = make_disk(folder, large_size);
    const std::uint64_t seed = test_support::test_seed(6);
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint64_t below) { return random_word(seed, 6, drawn++) % below; };
    const auto draw_place = [&](std::uint64_t below) {
      constexpr std::uint64_t multiples[] = {4096, 512, 1, 1};
      return round_down(draw(below), multiples[draw(4)]);
    };
    Blocks expected;
    for (std::uint64_t round = 0; round < 48; ++round) {
      const std::uint64_t offset = draw_place(large_size);
      const std::uint64_t length = draw_place(large_size - offset + 1);
      const std::uint64_t memory = draw(4) == 0 ? draw(4096) : offset % 4096;
      const Case each{memory, length, offset};
      write_and_read(*engine, disk, each, round);
      add(expected, each, *disk.file, block);
    }
    EXPECT_EQ(engine->statistics().continued > 0, faults != nullptr);
    expect_blocks(*engine, expected);
    EXPECT_TRUE(disk.file->sync());
    return expected.direct;
  }

  /// Cuts the file at random places and writes all pieces at once. Then cuts it anew and reads all
  /// pieces at once.
  void check_neighbours(const std::string& folder) {
    auto engine = make({.block_size = 16384, .queue_depth = 8, .threads = 2});
    Disk disk = make_disk(folder, large_size);
    const std::uint64_t seed = test_support::test_seed(66);
    for (std::uint64_t round = 0; round < 8; ++round) {
      SCOPED_TRACE(testing::Message() << "round " << round);
      fill_quickly(disk.model.data(), round + 1, large_size);
      move_pieces(*engine, disk, Operation::Write, random_word(seed, round, 0));
      EXPECT_TRUE(equal(bytes_of(*disk.file, large_size), disk.model)) << "on the disk";
      move_pieces(*engine, disk, Operation::Read, random_word(seed, round, 1));
    }
    EXPECT_TRUE(disk.file->sync());
  }

  /// Reads the whole file by a descriptor of its own.
  static std::vector<std::byte> bytes_of(const File& file, std::uint64_t size) {
    std::ifstream stream(file.path(), std::ios::binary);
    std::vector<std::byte> bytes(size + 1);
    stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<std::size_t>(stream.gcount()));
    return bytes;
  }

  static constexpr std::uint64_t large_size = 1 << 20;

 private:
  /// Bytes that depend on `number`, at most `large_size`.
  static void fill_quickly(std::byte* data, std::uint64_t number, std::uint64_t length) {
    static const std::vector<std::byte> pattern = [] {
      std::vector<std::byte> bytes(2 * large_size);
      fill(bytes.data(), 0, bytes.size());
      return bytes;
    }();
    std::memcpy(data, pattern.data() + number * 1'000'003 % large_size, length);
  }
  static bool equal(const std::vector<std::byte>& left, const std::vector<std::byte>& right) {
    return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size()) == 0;
  }
  static void add(Blocks& expected, const Case& each, const File& file, std::uint64_t block) {
    if (!file.direct()) return;
    const Blocks more = each.blocks(file.alignment(), block);
    expected.direct += 2 * more.direct;  // written and read
    expected.misaligned += 2 * more.misaligned;
  }
  static void expect_blocks(const Engine& engine, const Blocks& expected) {
    EXPECT_EQ(engine.statistics().blocks_direct, expected.direct);
    EXPECT_EQ(engine.statistics().blocks_misaligned, expected.misaligned);
  }

  void write_and_read(Engine& engine, Disk& disk, const Case& each, std::uint64_t number) {
    SCOPED_TRACE(testing::Message() << each.memory << " " << each.length << " " << each.offset);
    File& file = *disk.file;
    Completion write;
    BufferLease source = slab_.part(each.memory, each.length);
    fill_quickly(source.data(), number + 1, each.length);
    std::memcpy(disk.model.data() + each.offset, source.data(), each.length);
    write.prepare({.operation = Operation::Write,
                   .file = &file,
                   .offset = each.offset,
                   .length = each.length},
                  std::move(source));
    run(engine, write);
    expect_moved(write);
    EXPECT_TRUE(slab_.untouched_around(each.memory, each.length));
    EXPECT_TRUE(equal(bytes_of(file, disk.model.size()), disk.model)) << "on the disk";

    Completion read;
    read.prepare({.file = &file, .offset = each.offset, .length = each.length},
                 slab_.part(each.memory, each.length));
    run(engine, read);
    expect_moved(read);
    const BufferLease target = read.take_buffer();
    EXPECT_EQ(std::memcmp(target.data(), disk.model.data() + each.offset, each.length), 0);
    EXPECT_TRUE(slab_.untouched_around(each.memory, each.length)) << "a read beyond its target";
  }

  /// Writes the model, or compares the file with it. No piece ends at a sector within a page, since
  /// aio/engine.h forbids direct transfers that share a page.
  void move_pieces(Engine& engine, const Disk& disk, Operation operation, std::uint64_t seed) {
    std::deque<Completion> pieces;
    std::vector<Completion*> list;
    std::deque<std::vector<std::byte>> memory;
    std::atomic<std::uint64_t> called = 0;
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint64_t below) { return random_word(seed, 7, drawn++) % below; };
    for (std::uint64_t at = 0; at != large_size;) {
      std::uint64_t end = std::min(large_size, at + 1 + draw(60'000));
      if (draw(3) == 0) end = round_up(end, 4096);
      if (end % 512 == 0 && end % 4096 != 0) ++end;
      const std::uint64_t length = end - at;
      auto& bytes = memory.emplace_back(length + 2 * 4096);
      const auto base = reinterpret_cast<std::uintptr_t>(bytes.data());
      const std::uint64_t place = draw(4) == 0 ? draw(4096) : at % 4096;
      std::byte* const data = bytes.data() + (round_up(base, 4096) - base) + place;
      if (operation == Operation::Write) std::memcpy(data, disk.model.data() + at, length);
      pieces.emplace_back().prepare(
          {.operation = operation, .file = disk.file.get(), .offset = at, .length = length},
          BufferLease(data, length, nullptr),
          [](Completion&, void* context) noexcept {
            ++*static_cast<std::atomic<std::uint64_t>*>(context);
          },
          &called);
      list.push_back(&pieces.back());
      at = end;
    }
    engine.submit(list);
    ASSERT_TRUE(engine.drain(Deadline::after_seconds(patience_s)));
    EXPECT_EQ(called, pieces.size()) << "one end for each, whatever its parts";
    for (Completion& piece : pieces) {
      expect_moved(piece);
      const Request request = piece.request();
      const BufferLease lease = piece.take_buffer();
      EXPECT_EQ(std::memcmp(lease.data(), disk.model.data() + request.offset, request.length), 0)
          << request.offset << " " << request.length;
    }
  }

  Slab slab_{large_size + 3 * 4096};
};
ARTESIAN_EVERY_ENGINE(Alignment);

TEST_P(Alignment, All64OnTheDisk) {
  const std::uint64_t direct = check_all(directory_.path());
  const auto probe = create("probe", Direct::IfAligned);
  EXPECT_EQ(direct > 0, probe->direct());
}

TEST_P(Alignment, All64InMemory) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no writable /dev/shm";
  const test_support::TemporaryDirectory directory("/dev/shm");
  set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_EQ(check_all(directory.path()), 0u) << "tmpfs takes O_DIRECT, and means nothing by it";
  set_log_sink({});
}

TEST_P(Alignment, All64OnALoopDevice) {
  const auto disk = test_support::MountedImage::make(directory_.path(), 16 << 20);
  if (disk == nullptr) GTEST_SKIP() << "cannot mount an ext4 image here";
  EXPECT_GT(check_all(disk->path()), 0u);
}

TEST_P(Alignment, LargeOnesOnTheDisk) {
  const std::uint64_t direct = check_large(directory_.path());
  const auto probe = create("probe", Direct::IfAligned);
  EXPECT_EQ(direct > 0, probe->direct());
}

TEST_P(Alignment, LargeOnesInMemory) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no writable /dev/shm";
  const test_support::TemporaryDirectory directory("/dev/shm");
  set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_EQ(check_large(directory.path()), 0u);
  set_log_sink({});
}

TEST_P(Alignment, LargeOnesOnALoopDevice) {
  const auto disk = test_support::MountedImage::make(directory_.path(), 16 << 20);
  if (disk == nullptr) GTEST_SKIP() << "cannot mount an ext4 image here";
  EXPECT_GT(check_large(disk->path()), 0u);
}

TEST_P(Alignment, LargeOnesThatAreCutShortAndInterrupted) {
  ShortParts cut;
  check_large(directory_.path(), &cut);
  Interruptions interruptions(test_support::test_seed(16));
  interruptions.burst = 4;
  std::filesystem::remove(directory_.file("file"));
  check_large(directory_.path(), &interruptions);
}

TEST_P(Alignment, NeighboursShareTheirPagesOnTheDisk) {
  check_neighbours(directory_.path());
}

TEST_P(Alignment, NeighboursShareTheirPagesOnALoopDevice) {
  const auto disk = test_support::MountedImage::make(directory_.path(), 16 << 20);
  if (disk == nullptr) GTEST_SKIP() << "cannot mount an ext4 image here";
  check_neighbours(disk->path());
}

TEST_P(Alignment, PartsThatAreNotInTheKernelAreDroppedWhenCancelled) {
  DelayedAnswer delayed;
  auto engine = make({.queue_depth = 1}, &delayed);
  const auto file = filled("file", 65536, Direct::IfAligned);
  if (!file->direct()) GTEST_SKIP() << "no direct I/O here";
  Slab slab(65536);
  Completion read;
  read.prepare({.file = file.get(), .offset = 100, .length = 60'000}, slab.part(100, 60'000));
  submit(*engine, read);
  delayed.await();
  engine->cancel(read);
  EXPECT_FALSE(read.ready());
  delayed.release();
  await(*engine, read);
  EXPECT_EQ(error_of(read).code, ErrorCode::Cancelled);
  EXPECT_TRUE(slab.untouched_around(100, 4096 - 100)) << "its first page alone was read";
  EXPECT_EQ(engine->statistics().blocks, 1u);
}

// By then the path names another file, or none.
TEST_P(Alignment, AMisalignedTransferFindsAFileWithoutAName) {
  auto engine = make({});
  const auto file = filled("file", 8192, Direct::IfAligned);
  ASSERT_TRUE(system_files().remove(file->path()));
  const auto other = open(file->path(), {.create = Create::Exclusive, .direct = Direct::Never});
  Completion read;
  read.prepare({.file = file.get(), .offset = 1, .length = 4097}, read_lease(4097));
  run(*engine, read);
  expect_moved(read);
  EXPECT_TRUE(filled_right(read.take_buffer(), 1, 4097));
}

}  // namespace
}  // namespace artesian::aio
