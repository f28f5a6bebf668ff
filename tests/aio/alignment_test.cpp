// Proves on every engine and file system that a transfer may begin anywhere, end anywhere and lie
// anywhere in memory (reliability.md test 6): all 64 combinations of memory, length and offset mod
// {0, 1, 512, 4096} write and read the right bytes and no others, on the disk, in memory and on an
// ext4 image behind a loop device; and that exactly those go past the page cache whose alignment is
// what the kernel states, which the statistics count.
#include <array>
#include <fstream>

#include "tests/aio/engine_fixture.h"
#include "tests/support/disks.h"

namespace artesian::aio {
namespace {

constexpr std::uint64_t file_size = 256 << 10;
constexpr std::uint64_t block_size = 4096;

/// One piece of memory of which transfers take parts, at any address; what lies around them is
/// checked to stay as it was.
class Slab final : public BufferOwner {
 public:
  ~Slab() { std::free(base_); }
  BufferLease part(std::uint64_t begin, std::uint64_t length) {
    std::memset(base_, guard, size);
    return {base_ + begin, length, this};
  }
  bool untouched_around(std::uint64_t begin, std::uint64_t length) const {
    for (std::uint64_t index = 0; index < size; ++index) {
      const bool inside = begin <= index && index < begin + length;
      if (!inside && base_[index] != std::byte{guard}) return false;
    }
    return true;
  }
  void give_back(std::byte*, std::uint64_t) noexcept override {}

 private:
  static constexpr std::uint64_t size = 64 << 10;
  static constexpr int guard = 0xa5;
  std::byte* base_ = static_cast<std::byte*>(std::aligned_alloc(4096, size));
};

struct Case {
  std::uint64_t memory, length, offset;
  bool aligned_to(std::uint64_t alignment) const {
    return (memory | length | offset) % alignment == 0;
  }
};

class Alignment : public EngineFixture {
 protected:
  /// All 64 on one file; returns how many transfers went past the page cache.
  std::uint64_t check_all(const std::string& folder) {
    auto engine = make({.block_size = block_size, .queue_depth = 4});
    const auto file = open(folder + "/file", {.create = Create::Exclusive});
    std::vector<std::byte> model(file_size);
    fill(model.data(), 0, file_size);
    EXPECT_TRUE(file->write_at(model.data(), file_size, 0));
    std::uint64_t expected_direct = 0;
    std::uint64_t expected_misaligned = 0;
    std::uint64_t number = 0;
    constexpr std::array<std::uint64_t, 4> rests{0, 1, 512, 4096};
    for (const std::uint64_t memory : rests) {
      for (const std::uint64_t length : rests) {
        for (const std::uint64_t offset : rests) {
          const Case each{memory, 3 * block_size + length, 65536 + offset};
          write_and_read(*engine, *file, each, ++number, model);
          const std::uint64_t blocks = 2 * round_up(each.length, block_size) / block_size;
          const bool aligned = each.aligned_to(file->alignment());
          if (file->direct()) (aligned ? expected_direct : expected_misaligned) += blocks;
        }
      }
    }
    const EngineStatistics statistics = engine->statistics();
    EXPECT_EQ(statistics.blocks_direct, expected_direct);
    EXPECT_EQ(statistics.blocks_misaligned, expected_misaligned);
    EXPECT_EQ(statistics.continued, 0u);
    EXPECT_EQ(expected_misaligned > 0, file->direct());
    return expected_direct;
  }

 private:
  void write_and_read(Engine& engine, File& file, const Case& each, std::uint64_t number,
                      std::vector<std::byte>& model) {
    SCOPED_TRACE(testing::Message() << each.memory << " " << each.length << " " << each.offset);
    Completion write;
    BufferLease source = slab_.part(each.memory, each.length);
    fill(source.data(), number * 1'000'003, each.length);
    std::memcpy(model.data() + each.offset, source.data(), each.length);
    write.prepare({.operation = Operation::Write,
                   .file = &file,
                   .offset = each.offset,
                   .length = each.length},
                  std::move(source));
    run(engine, write);
    expect_moved(write);
    EXPECT_TRUE(slab_.untouched_around(each.memory, each.length));
    EXPECT_EQ(bytes_of(file), model) << "on the disk";

    Completion read;
    read.prepare({.file = &file, .offset = each.offset, .length = each.length},
                 slab_.part(each.memory, each.length));
    run(engine, read);
    expect_moved(read);
    const BufferLease target = read.take_buffer();
    EXPECT_EQ(std::memcmp(target.data(), model.data() + each.offset, each.length), 0);
    EXPECT_TRUE(slab_.untouched_around(each.memory, each.length)) << "a read beyond its target";
  }

  /// The whole file, by a descriptor of the test's own.
  static std::vector<std::byte> bytes_of(const File& file) {
    std::ifstream stream(file.path(), std::ios::binary);
    std::vector<std::byte> bytes(file_size + 1);
    stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<std::size_t>(stream.gcount()));
    return bytes;
  }

  Slab slab_;
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

// What its path names by then is another file, or none.
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
