// Damages swap files, so that later reads fail their checksum.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace artesian::test_support {

/// Overwrites each file of the folder from that byte on, and waits until it is on the disk. Leaves
/// out files that have a superblock alone. Returns the number of files that were damaged.
inline int damage_files(const std::filesystem::path& folder, std::uint64_t from) {
  int damaged = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file() || file.file_size() <= 65536) continue;
    std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(from));
    const std::string noise(file.file_size() - from, 'x');
    stream.write(noise.data(), static_cast<std::streamsize>(noise.size()));
    stream.flush();
    EXPECT_TRUE(stream.good());
    ::sync();
    ++damaged;
  }
  return damaged;
}

}  // namespace artesian::test_support
