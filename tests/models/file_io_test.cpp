// Proves that a file written past the page cache has the bytes that were appended, in whatever
// pieces, on file systems with and without direct I/O; and that the page cache is spared.
#include "models/file_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/support/temporary_directory.h"

namespace artesian::models {
namespace {

std::string text_of(std::uint64_t length) {
  std::string text(static_cast<std::size_t>(length), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(random_word(3, length, i / 8) >> (i % 8 * 8));
  }
  return text;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_in_pieces(const std::string& path, const std::string& text, std::size_t piece) {
  auto file = OutputFile::create(path);
  ASSERT_TRUE(file.has_value()) << file.error().to_string();
  file->write_directly();
  for (std::size_t first = 0; first < text.size(); first += piece) {
    const auto appended = file->append(text.data() + first, std::min(piece, text.size() - first));
    ASSERT_TRUE(appended.has_value()) << appended.error().to_string();
  }
  EXPECT_EQ(file->size(), text.size());
  const auto finished = file->finish();
  ASSERT_TRUE(finished.has_value()) << finished.error().to_string();
}

TEST(OutputFile, WritesEveryByteDirectly) {
  constexpr std::uint64_t buffer = 4 << 20;
  const test_support::TemporaryDirectory folder;
  for (const std::string& place : {folder.path(), std::string("/dev/shm")}) {
    const std::string path = place + "/artesian-file-io-" + std::to_string(::getpid());
    for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096},
                                       buffer - 1, buffer, buffer + 4097, 2 * buffer + 4096}) {
      for (const std::size_t piece : {std::size_t{1000}, std::size_t{9} << 20}) {
        const std::string text = text_of(length);
        write_in_pieces(path, text, piece);
        EXPECT_TRUE(read_all(path) == text) << place << " " << length << " by " << piece;
        ::unlink(path.c_str());
      }
    }
  }
}

/// Pages of the file that are in memory.
std::size_t cached_pages(const std::string& path, std::size_t length) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) return length;
  std::vector<unsigned char> there(length / 4096);
  static_cast<void>(::mincore(mapped, length, there.data()));
  ::munmap(mapped, length);
  return static_cast<std::size_t>(
      std::count_if(there.begin(), there.end(), [](unsigned char page) { return page & 1; }));
}

TEST(OutputFile, LeavesThePageCacheAlone) {
  const test_support::TemporaryDirectory folder;
  const std::string text = text_of(16 << 20);
  const std::string path = folder.path() + "/large";
  const int probe = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
  if (probe < 0) GTEST_SKIP() << "no direct I/O on " << folder.path();
  ::close(probe);
  ::unlink(path.c_str());
  write_in_pieces(path, text, 1 << 20);
  EXPECT_LT(cached_pages(path, text.size()), text.size() / 4096 / 10);
}

}  // namespace
}  // namespace artesian::models
