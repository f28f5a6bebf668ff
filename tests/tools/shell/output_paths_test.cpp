// Proves which outputs of a run are refused, by any of their names: those that are one of its input
// files, or one another. Outputs that destroy nothing are not refused.
#include "tools/shell/output_paths.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace artesian::tools {
namespace {

class OutputPaths : public testing::Test {
 protected:
  OutputPaths() {
    for (const char* name : {"data.bin", "config.json", "model/config.json", "text/a/b.txt"}) {
      folder_.write(name, "input");
    }
  }
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  /// Returns the error for --log and --trace at these paths.
  std::string said(const std::string& log, const std::string& trace = "") const {
    const auto checked =
        check_outputs({{"--log", log}, {"--trace", trace}}, {{"--data", at("data.bin")},
                                                             {"--text", at("text")},
                                                             {"--config", at("config.json")},
                                                             {"--model", at("model")},
                                                             {"--save", at("out")}});
    return checked.has_value() ? "" : checked.error().message;
  }

  test_support::TemporaryDirectory folder_;
};

TEST_F(OutputPaths, NewFilesAndThoseOfEarlierRunsAreFine) {
  folder_.write("log", "of an earlier run");
  EXPECT_EQ(said(at("log"), at("trace")), "");
  EXPECT_EQ(said(at("model/log"), at("text/trace")), "");
  EXPECT_EQ(said(at("missing/log"), at("missing/trace")), "");
  EXPECT_EQ(said(""), "");
}

TEST_F(OutputPaths, WhereNothingCanBeWrittenIsKnownAtOnce) {
  folder_.write("log", "of an earlier run");
  const auto refused = [&](const std::string& path) {
    const auto checked = check_writable({{"--log", path}, {"--trace", ""}});
    return checked.has_value() ? "" : checked.error().message;
  };
  EXPECT_EQ(refused(at("log")), "");
  EXPECT_EQ(refused(at("new")), "");
  EXPECT_EQ(refused("/dev/null"), "");
  EXPECT_EQ(refused(at("missing/log")),
            "--log: cannot write: " + at("missing/log") + ": No such file or directory");
  EXPECT_EQ(refused(at("model")), "--log: cannot write: " + at("model") + ": Is a directory");
  EXPECT_EQ(refused(at("log/below")),
            "--log: cannot write: " + at("log/below") + ": Not a directory");
  EXPECT_FALSE(std::filesystem::exists(at("new")));
  ASSERT_EQ(::symlink("nowhere/new", at("soft").c_str()), 0);
  EXPECT_EQ(refused(at("soft")),
            "--log: cannot write: " + at("soft") + ": No such file or directory");
}

TEST_F(OutputPaths, AnInputIsNamed) {
  const std::string rest = ", allowed another one, as it is replaced; rename one of them";
  EXPECT_EQ(said(at("data.bin")), "--log: got the file of --data" + rest);
  EXPECT_EQ(said("", at("model/../config.json")), "--trace: got the file of --config" + rest);
  EXPECT_EQ(said(at("model/config.json")),
            "--log: got " + at("model/config.json") + ", a file of --model" + rest);
  EXPECT_EQ(said(at("text/a/../a/b.txt")),
            "--log: got " + at("text/a/b.txt") + ", a file of --text" + rest);
  EXPECT_EQ(said(at("out")), "--log: got the file of --save" + rest);
  EXPECT_EQ(said(at("data.bin"), at("config.json")),
            "--log: got the file of --data" + rest + "\n--trace: got the file of --config" + rest);
}

TEST_F(OutputPaths, LinksLeadToTheSameFile) {
  ASSERT_EQ(::symlink("model/config.json", at("soft").c_str()), 0);
  ASSERT_EQ(::link(at("data.bin").c_str(), at("hard").c_str()), 0);
  folder_.write("blob", "weights");
  ASSERT_EQ(::symlink("../blob", at("model/model.safetensors").c_str()), 0);
  EXPECT_NE(said(at("soft")).find("a file of --model"), std::string::npos);
  EXPECT_NE(said(at("hard")).find("the file of --data"), std::string::npos);
  EXPECT_NE(said(at("blob")).find("model.safetensors, a file of --model"), std::string::npos);
}

TEST_F(OutputPaths, TwoOutputsAreTwoFiles) {
  const auto both = "--trace: got the file of --log, ";
  folder_.write("old", "");
  EXPECT_TRUE(said(at("old"), at("./old")).starts_with(both));
  EXPECT_TRUE(said(at("new"), at("./model/../new")).starts_with(both));
  ASSERT_EQ(::symlink("new", at("leads_to_new").c_str()), 0);
  EXPECT_TRUE(said(at("new"), at("leads_to_new")).starts_with(both));
  std::filesystem::create_directory_symlink(folder_.path(), at("here"));
  EXPECT_TRUE(said(at("new"), at("here/new")).starts_with(both));
}

TEST_F(OutputPaths, WhatIsNoFileMayBeGivenTwice) {
  EXPECT_EQ(said("/dev/null", "/dev/null"), "");
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_EQ(said(at("pipe"), at("pipe")), "");
}

}  // namespace
}  // namespace artesian::tools
