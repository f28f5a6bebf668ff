// Proves the errors for config files that cannot be read.
#include "zero3/step/config_file.h"

#include <gtest/gtest.h>

namespace artesian::zero3 {
namespace {

TEST(ConfigFile, FilesThatCannotBeRead) {
  const Result<Config> missing = read_config("/nonexistent/ds.json", {});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::Io);
  EXPECT_EQ(missing.error().to_string(),
            "cannot read the config: /nonexistent/ds.json: No such file or directory");
  const Result<Config> folder = read_config("/", {});
  ASSERT_FALSE(folder.has_value());
  EXPECT_EQ(folder.error().to_string(), "cannot read the config: /: Is a directory");
  const Result<Config> endless = read_config("/dev/zero", {});
  ASSERT_FALSE(endless.has_value());
  EXPECT_EQ(endless.error().message,
            "/dev/zero: got 1048577 bytes or more, allowed at most 1 MiB for a config");
}

}  // namespace
}  // namespace artesian::zero3
