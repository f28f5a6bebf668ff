// Proves which names a folder of checkpoints may hold, and that names of unfinished files are
// parsed as they were made.
#include "zero3/plan/checkpoint_names.h"

#include <gtest/gtest.h>

#include <random>

#include "base/durable_folder.h"

namespace artesian::zero3 {
namespace {

TEST(CheckpointNames, TagsLeadNowhere) {
  for (const char* tag : {"global_step200", "pytorch_model", "a", "-1", "A.b-c_d", "0"}) {
    EXPECT_TRUE(is_checkpoint_tag(tag)) << tag;
  }
  EXPECT_TRUE(is_checkpoint_tag(std::string(200, 'a')));
  for (const std::string& tag :
       {std::string(), std::string("."), std::string(".."), std::string(".tmp-a"),
        std::string("a/b"), std::string("/a"), std::string("a\0", 2), std::string("a b"),
        std::string("\xc3\xa4"), std::string(201, 'a')}) {
    EXPECT_FALSE(is_checkpoint_tag(tag));
    EXPECT_FALSE(check_checkpoint_tag(tag).has_value());
    EXPECT_FALSE(is_client_name(tag));
  }
}

TEST(CheckpointNames, WhatIsUnfinishedComesBackAsItWasNamed) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 1000; ++run) {
    const auto kind = static_cast<DotName::Kind>(random() % 5);
    const bool tagged = kind != DotName::Kind::Spare && kind != DotName::Kind::Latest;
    const DotName made{kind, tagged ? "a-" + std::to_string(random() % 100) : "", random()};
    const auto parsed = parse_dot_name(made.name());
    ASSERT_TRUE(parsed.has_value()) << made.name();
    EXPECT_EQ(parsed->kind, made.kind);
    EXPECT_EQ(parsed->tag, made.tag);
    EXPECT_EQ(parsed->id, made.id);
    EXPECT_TRUE(is_component(made.name()));
    EXPECT_FALSE(is_checkpoint_tag(made.name()));
  }
  for (const char* foreign : {".tmp-a", ".tmp-0123456789abcdef", ".tmp--0123456789abcdef",
                              ".spare-0123456789abcdeg", ".spare-a-0123456789abcdef", ".lock",
                              ".gone-../a-0123456789abcdef", "tmp-a-0123456789abcdef"}) {
    EXPECT_FALSE(parse_dot_name(foreign).has_value()) << foreign;
  }
}

TEST(CheckpointNames, FilesOfACheckpoint) {
  EXPECT_EQ(rank_file_name(12), "rank12.safetensors");
  EXPECT_EQ(sums_file_name("rank12.safetensors"), "rank12.sums");
  for (const char* name : {"rank0.safetensors", "rank12.safetensors", "frozen.safetensors"}) {
    EXPECT_TRUE(is_data_file(name)) << name;
  }
  for (const char* name : {"rank.safetensors", "rank01.safetensors", "rank-1.safetensors",
                           "rank1.sums", "../rank1.safetensors", "rank1/2.safetensors", ""}) {
    EXPECT_FALSE(is_data_file(name)) << name;
  }
  for (const char* name : {"client-a", "model/config.json", "model/tokenizer.model"}) {
    EXPECT_TRUE(is_side_file(name)) << name;
  }
  for (const char* name : {"client-", "client-../a", "model/", "model/..", "model/a/b", "model/.a",
                           "manifest.json", "latest", "rank0.safetensors", "/etc/passwd"}) {
    EXPECT_FALSE(is_side_file(name)) << name;
  }
}

TEST(CheckpointNames, Utf8IsWhatUnicodeSays) {
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good));
  }
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xff"}) {
    EXPECT_FALSE(is_utf8(bad));
  }
}

}  // namespace
}  // namespace artesian::zero3
