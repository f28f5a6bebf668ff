// Proves that a disk that fails while gradients spill, in the middle of a backward, ends the run
// with one error that names their shard, even if another transfer of the same file failed first.
#include <ATen/Parallel.h>
#include <fcntl.h>

#include "tests/support/diverted_files.h"
#include "tests/zero3/torch/equality.h"

namespace artesian::zero3 {
namespace {

class GradientsEngine : public Equality {
 protected:
  GradientsEngine() : Equality(tiny), batch(scale.samples, scale.length) { at::set_num_threads(1); }

  /// All on NVMe, the least budgets, two micro-batches; parameters are read for each stage.
  static constexpr Choice run{2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1};
  /// The file of parameters and gradients.
  std::string swap_file() const {
    for (const auto& file : std::filesystem::recursive_directory_iterator(directory_ / "param")) {
      if (file.is_regular_file() && file.file_size() > 65536) return file.path();
    }
    return "";
  }
  TokenBatch batch;
};

TEST_F(GradientsEngine, AWriteThatFailsEndsTheRunAndIsNamed) {
  for (const int micro_batch : {0, 1}) {  // the first writes, the second reads and writes
    SCOPED_TRACE(micro_batch);
    test_support::DivertedFiles files;
    auto made = create_patiently(module_of(run), config_of(run), {.files = &files});
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    Engine& engine = **made;
    ASSERT_EQ(engine.placement().units.front().grad, Tier::Nvme);
    RandomWeights weights(module_of(run).parameters(), 1);
    ASSERT_TRUE(engine.initialize(weights).has_value());
    ASSERT_TRUE(engine.forward(batch.batch()).has_value());
    if (micro_batch == 1) {
      ASSERT_TRUE(engine.backward().has_value());
      ASSERT_TRUE(engine.forward(batch.batch()).has_value());
    }
    const int reads_alone = ::open(swap_file().c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(reads_alone, 0);
    files.diverted = reads_alone;
    const auto failed = engine.backward();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().code, ErrorCode::Io);
    EXPECT_EQ(failed.error().message.find("writing shard "), 0u) << failed.error().message;
    EXPECT_NE(failed.error().message.find(" gradients: "), std::string::npos)
        << failed.error().message;
    const auto later = engine.forward(batch.batch());
    ASSERT_FALSE(later.has_value());
    EXPECT_EQ(later.error().to_string(), failed.error().to_string());
    files.diverted = -1;
    static_cast<void>(engine.close().has_value());
    made->reset();
    ::close(reads_alone);
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
}

TEST_F(GradientsEngine, AReadThatComesBackWrongEndsTheRunAndIsNamed) {
  auto made = create_patiently(module_of(run), config_of(run), {});
  ASSERT_TRUE(made.has_value()) << made.error().to_string();
  Engine& engine = **made;
  RandomWeights weights(module_of(run).parameters(), 1);
  ASSERT_TRUE(engine.initialize(weights).has_value());
  const auto gradients = [&] {  // one micro-batch's
    return engine.forward(batch.batch()).has_value() && engine.backward().has_value();
  };
  ASSERT_TRUE(gradients());
  ASSERT_TRUE(gradients());
  const std::string path = swap_file();
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  // It ends with the last unit's gradients.
  stream.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) - 4096));
  stream << std::string(4096, 'x');
  stream.close();
  ::sync();
  ASSERT_TRUE(engine.step().has_value());  // the norm was summed before they were written
  const auto failed = engine.forward(batch.batch());  // which runs the update
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, ErrorCode::Corrupt);
  EXPECT_NE(failed.error().message.find(" gradients, block "), std::string::npos)
      << failed.error().message;
  EXPECT_FALSE(engine.forward(batch.batch()).has_value());
  EXPECT_TRUE(engine.close().has_value());
}

}  // namespace
}  // namespace artesian::zero3
