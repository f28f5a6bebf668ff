// Proves that a reader returns every bit that was saved, in each form, from one file or several, in
// any range and from several threads. Blocks that are damaged, exchanged or of another step are
// refused by file and block, 10,000 of them. Names decide which array belongs to which parameter.
#include "zero3/checkpoint/checkpoint_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/support/temporary_directory.h"
#include "tests/zero3/checkpoint/made_up_checkpoint.h"

namespace artesian::zero3 {
namespace {

using test_support::CrashFiles;

std::unique_ptr<CheckpointReader> open(FileSystem& files, const std::string& tag = "") {
  auto reader = CheckpointReader::open(files, "/disk/checkpoints", tag);
  EXPECT_TRUE(reader.has_value()) << reader.error().to_string();
  return reader.has_value() ? std::move(*reader) : nullptr;
}

void save(CrashFiles& files, const MadeUpTraining& training, std::uint64_t step) {
  LentBuffers buffers;
  auto saver = CheckpointSaver::open(files, options_on(files, 0));
  ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
  const auto saved = training.save(**saver, "global_step" + std::to_string(step), step, buffers,
                                   {{"client-a", "one"}, {"model/config.json", "{}"}});
  ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  EXPECT_EQ(buffers.out, 0);
}

TEST(CheckpointReader, GivesBackEveryBitOfEachForm) {
  for (const StateForm form : {StateForm::Whole, StateForm::Split}) {
    for (const std::uint32_t ranks : {1u, 2u, 3u}) {
      CrashFiles files;
      const DType frozen = ranks == 2 ? DType::Float16 : DType::BFloat16;
      const MadeUpTraining training(form, 9000, ranks, frozen);
      save(files, training, 5);
      const auto reader = open(files);
      ASSERT_NE(reader, nullptr);
      EXPECT_EQ(reader->tag(), "global_step5");
      training.expect_state(*reader, 5);
      const auto faults = reader->verify({});
      ASSERT_TRUE(faults.has_value());
      EXPECT_TRUE(faults->empty());
      const auto client = reader->read_side_file("client-a");
      ASSERT_TRUE(client.has_value());
      EXPECT_EQ(*client, "one");
      EXPECT_FALSE(reader->read_side_file("client-b").has_value());
      EXPECT_EQ(reader->find("tied"), reader->find(training.parameters()[1].name));
      EXPECT_FALSE(reader->find("none").has_value());
      EXPECT_EQ(reader->manifest().trainer, training.manifest_of(5).trainer);
      EXPECT_EQ(reader->manifest().groups, training.manifest_of(5).groups);
    }
  }
}

TEST(CheckpointReader, AnyRangeFromAnyThread) {
  CrashFiles files;
  const MadeUpTraining training(StateForm::Split, 20000, 2);
  save(files, training, 5);
  const auto reader = open(files);
  std::vector<std::thread> team;
  std::atomic<int> wrong{0};
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    team.emplace_back([&, thread] {
      std::mt19937_64 random(thread);
      for (int turn = 0; turn < 200; ++turn) {
        const auto parameter = static_cast<std::uint32_t>(random() % training.parameters().size());
        const std::uint64_t numel = training.parameters()[parameter].numel();
        const std::uint64_t first = random() % numel;
        const std::uint64_t count = 1 + random() % (numel - first);
        std::vector<float> master(count);
        std::vector<float> moment(random() % 2 == 0 ? count : 0);
        if (!reader->read(parameter, first, master, {}, moment).has_value()) ++wrong;
        for (std::uint64_t i = 0; i < count; ++i) {
          if (std::bit_cast<std::uint32_t>(master[i]) !=
              std::bit_cast<std::uint32_t>(training.master(5, parameter, first + i))) {
            ++wrong;
          }
          if (!moment.empty() && moment[i] != training.exp_avg_sq(5, parameter, first + i)) ++wrong;
        }
      }
    });
  }
  for (auto& thread : team) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CheckpointReader, TenThousandDamagesAreNamedByFileAndBlock) {
  CrashFiles files;
  const MadeUpTraining training(StateForm::Split, 3000, 2);
  save(files, training, 4);
  save(files, training, 5);
  const auto reader = open(files, "global_step5");
  ASSERT_NE(reader, nullptr);
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 10000; ++turn) {
    const std::size_t which = random() % 2;
    const SavedDataFile& file = reader->manifest().files[which];
    auto& bytes = files.bytes_of("/disk/checkpoints/global_step5/" + file.name);
    const std::uint64_t at = file.head_bytes + random() % (file.bytes - file.head_bytes);
    const std::vector<std::byte> good = bytes;
    std::uint64_t damaged = at;
    if (turn % 3 == 0) {
      bytes[at] ^= static_cast<std::byte>(1 << random() % 8);
    } else if (turn % 3 == 1) {  // a page of another step
      damaged = at / 4096 * 4096;
      const auto& other = files.bytes_of("/disk/checkpoints/global_step4/" + file.name);
      std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(damaged), 4096,
                  bytes.begin() + static_cast<std::ptrdiff_t>(damaged));
    } else {  // of another place
      damaged = at / 4096 * 4096;
      const std::uint64_t from =
          file.head_bytes + random() % ((file.bytes - file.head_bytes) / 4096) * 4096;
      std::copy_n(good.begin() + static_cast<std::ptrdiff_t>(from), 4096,
                  bytes.begin() + static_cast<std::ptrdiff_t>(damaged));
    }
    if (bytes == good) continue;
    std::uint64_t done = 0;
    std::uint64_t all = 1;
    const auto progress = [&](std::uint64_t of, std::uint64_t whole) {
      EXPECT_GT(of, done);
      done = of;
      all = whole;
    };
    const auto faults = reader->verify(progress, 3);
    ASSERT_TRUE(faults.has_value());
    ASSERT_EQ(faults->size(), 1u);
    const Error& error = faults->front();
    ASSERT_EQ(error.code, ErrorCode::Corrupt);
    ASSERT_TRUE(error.file.ends_with("global_step5/" + file.name)) << error.file;
    ASSERT_TRUE(error.offset <= damaged && damaged < error.offset + error.length);
    ASSERT_EQ(done, all);
    bytes = good;
  }
}

TEST(CheckpointReader, EveryByteOfTheSmallFilesIsCovered) {
  CrashFiles files;
  const MadeUpTraining training(StateForm::Whole, 3000);
  save(files, training, 5);
  const std::string folder = "/disk/checkpoints/global_step5/";
  const auto manifest = open(files)->manifest();
  for (const std::string& name :
       {std::string("manifest.json"), std::string("rank0.sums"), std::string("client-a"),
        std::string("model/config.json"), std::string("rank0.safetensors")}) {
    auto& bytes = files.bytes_of(folder + name);
    const bool data = name == "rank0.safetensors";
    const std::uint64_t end = data ? manifest.files[0].head_bytes : bytes.size();
    for (std::uint64_t at = 0; at < end; at += data ? 7 : 1) {
      bytes[at] ^= std::byte{4};
      const auto opened = CheckpointReader::open(files, "/disk/checkpoints", "");
      ASSERT_FALSE(opened.has_value()) << name << " " << at;
      ASSERT_EQ(opened.error().code, ErrorCode::Corrupt) << opened.error().to_string();
      ASSERT_TRUE(opened.error().file.ends_with(name)) << opened.error().file;
      bytes[at] ^= std::byte{4};
    }
    const std::vector<std::byte> good = bytes;
    for (const std::uint64_t length : {std::uint64_t{0}, good.size() / 2, good.size() - 1}) {
      bytes.resize(length);
      EXPECT_FALSE(CheckpointReader::open(files, "/disk/checkpoints", "").has_value()) << name;
      bytes = good;
    }
  }
  EXPECT_NE(open(files), nullptr);
}

TEST(CheckpointReader, NamesDecideWhatGoesWhere) {
  CrashFiles files;
  const MadeUpTraining training(StateForm::Whole);
  save(files, training, 5);
  const auto reader = open(files);
  std::vector<ParameterSpec> model = training.parameters();
  std::swap(model[1], model[2]);
  const auto match = match_names(model, *reader, Strict::Yes);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->saved, (std::vector<std::optional<std::uint32_t>>{0, 2, 1, 3, 4}));

  std::vector<ParameterSpec> more = training.parameters();
  more.back().name = "new";
  const auto refused = match_names(more, *reader, Strict::Yes);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("\"new\""), std::string::npos);
  const auto loose = match_names(more, *reader, Strict::No);
  ASSERT_TRUE(loose.has_value());
  EXPECT_EQ(loose->missing, std::vector<std::string>{"new"});
  EXPECT_EQ(loose->unexpected, std::vector<std::string>{training.parameters().back().name});
  EXPECT_FALSE(loose->saved.back().has_value());

  std::vector<ParameterSpec> fewer = training.parameters();
  fewer.pop_back();
  const auto too_many = match_names(fewer, *reader, Strict::Yes);
  ASSERT_FALSE(too_many.has_value());
  EXPECT_NE(too_many.error().message.find("1 parameters of it are not the model's"),
            std::string::npos);

  std::vector<ParameterSpec> other_shape = training.parameters();
  other_shape[1].shape = {1, other_shape[1].shape[0]};
  EXPECT_FALSE(match_names(other_shape, *reader, Strict::No).has_value());
  std::vector<ParameterSpec> by_alias = training.parameters();
  by_alias[1].name = "tied";
  EXPECT_TRUE(match_names(by_alias, *reader, Strict::Yes).has_value());
}

TEST(CheckpointReader, AParameterLeftOutMustBeSaidAndComesFromElsewhere) {
  for (const bool said : {true, false}) {
    CrashFiles files;
    MadeUpTraining training(StateForm::Split);
    training.left_out = training.parameters()[1].name;
    training.says_left_out = said;
    save(files, training, 5);
    const auto reader = CheckpointReader::open(files, "/disk/checkpoints", "");
    ASSERT_EQ(reader.has_value(), said);
    if (!said) {
      EXPECT_EQ(reader.error().code, ErrorCode::Corrupt);
      EXPECT_NE(reader.error().message.find("it has no weights"), std::string::npos);
      continue;
    }
    const auto match = match_names(training.parameters(), **reader, Strict::Yes);
    ASSERT_TRUE(match.has_value()) << match.error().to_string();
    for (std::uint32_t index = 0; index < training.parameters().size(); ++index) {
      EXPECT_EQ(match->saved[index].has_value(), index != 1) << index;
      EXPECT_EQ((*reader)->has_weights(index), index != 1) << index;
    }
    EXPECT_TRUE(match->missing.empty());
    EXPECT_TRUE(match->unexpected.empty());
  }
}

TEST(CheckpointReader, OnARealDisk) {
  const test_support::TemporaryDirectory directory;
  const MadeUpTraining training(StateForm::Split, 50000, 2);
  SaverOptions options;
  options.directory = directory.file("checkpoints");
  options.keep = 2;
  auto saver = CheckpointSaver::open(system_files(), options);
  ASSERT_TRUE(saver.has_value()) << saver.error().to_string();
  LentBuffers buffers;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const auto saved = training.save(**saver, "global_step" + std::to_string(step), step, buffers);
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  }
  ASSERT_TRUE((*saver)->close().has_value());
  const auto reader = CheckpointReader::open(system_files(), options.directory, "");
  ASSERT_TRUE(reader.has_value()) << reader.error().to_string();
  training.expect_state(**reader, 5);
  EXPECT_FALSE(
      CheckpointReader::open(system_files(), options.directory, "global_step3").has_value());
  const auto former = CheckpointReader::open(system_files(), options.directory, "global_step4");
  ASSERT_TRUE(former.has_value());
  training.expect_state(**former, 4);
  EXPECT_FALSE(
      CheckpointReader::open(system_files(), options.directory, "../checkpoints").has_value());
}

}  // namespace
}  // namespace artesian::zero3
