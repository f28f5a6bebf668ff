// Measures the cost of checkpoints for a training (bench/checkpoint.py): alternates windows of a
// few steps, one without a checkpoint, one whose first step is saved by a pass that reads all
// state, one in which state is copied during the update; then a load. Prints a JSON line for each
// window, and further lines.
//
//   checkpoint_bench MODEL_DIR CONFIG LENGTH FOLDER WARM_UP ROUNDS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/machine.h"
#include "bench/made_up_engine.h"
#include "tools/shell/process_setup.h"
#include "tools/train/made_up_tokens.h"

namespace artesian::bench {
namespace {

constexpr std::uint64_t window_steps = 3;
constexpr double wait_seconds = 600.0;
constexpr std::uint64_t piece_bytes = 8 << 20;

enum class Variant : std::uint8_t { None, Read, Copied };
constexpr Variant variants[] = {Variant::None, Variant::Read, Variant::Copied};
constexpr const char* words[] = {"none", "read", "copied"};

std::uint64_t swap_written(const zero3::Engine& engine) {
  std::uint64_t bytes = 0;
  for (const zero3::SwapPathUse& path : engine.path_use()) bytes += path.bytes_written;
  return bytes;
}

struct Free {
  void operator()(std::byte* data) const noexcept { std::free(data); }
};
using Piece = std::unique_ptr<std::byte, Free>;

Piece made_up_piece() {
  Piece piece(static_cast<std::byte*>(std::aligned_alloc(4096, piece_bytes)));
  for (std::uint64_t at = 0; at < piece_bytes; ++at) {
    piece.get()[at] = static_cast<std::byte>(random_word(3, 0, at / 8) >> (at % 8 * 8));
  }
  return piece;
}

class Run {
 public:
  Run(const models::ModelConfig& model, std::uint64_t length, std::string folder,
      zero3::Engine& engine)
      : folder_(std::move(folder)),
        engine_(engine),
        tokens_({.vocabulary = model.vocab_size,
                 .micro_batches = engine.config().accumulation_steps,
                 .samples = engine.config().micro_batch_size,
                 .length = length}) {}

  Result<void> run(std::uint64_t warm_up, std::uint64_t rounds) {
    ARTESIAN_TRY_VOID(engine_.open_checkpoints({.directory = folder_, .keep = 1}));
    for (std::uint64_t step = 0; step < warm_up; ++step) ARTESIAN_TRY_VOID(one_step(false));
    ARTESIAN_TRY_VOID(window(Variant::None));
    const std::uint64_t rss = process_memory().bytes_peak;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      ARTESIAN_TRY(write, disk_rate(/*writes=*/true));
      for (const Variant variant : variants) {
        const std::uint64_t begin = monotonic_ns();
        ARTESIAN_TRY_VOID(window(variant));
        std::printf("{\"variant\": \"%s\", \"seconds\": %.6f, \"write_rate\": %.0f}\n",
                    words[static_cast<int>(variant)], seconds_since(begin), write);
        std::fflush(stdout);
      }
    }
    ARTESIAN_TRY(digest, engine_.digest());
    std::printf(
        "{\"bytes\": %llu, \"planned\": %llu, \"rss_before\": %llu, \"rss\": %llu, "
        "\"digest\": \"%s\"}\n",
        static_cast<unsigned long long>(bytes_),
        static_cast<unsigned long long>(engine_.checkpoints().data_bytes()),
        static_cast<unsigned long long>(rss),
        static_cast<unsigned long long>(process_memory().bytes_peak), digest.c_str());
    for (std::uint64_t round = 0; round < rounds; ++round) ARTESIAN_TRY_VOID(load());
    return {};
  }

 private:
  Result<void> one_step(bool commits) {
    const std::vector<zero3::Batch> batches = tokens_.next();
    ARTESIAN_TRY_VOID(engine_.forward_backward(batches));
    if (commits) ARTESIAN_TRY_VOID(engine_.commit_checkpoint());
    ARTESIAN_TRY(result, engine_.step());
    return result.end.has_value() ? Result<void>(*std::move(result.end)) : Result<void>();
  }

  /// Ends when the checkpoint of its first step is durable and its last update is complete.
  Result<void> window(Variant variant) {
    const bool copied = variant == Variant::Copied;
    if (copied) ARTESIAN_TRY_VOID(engine_.expect_checkpoint());
    ARTESIAN_TRY_VOID(one_step(false));
    if (variant == Variant::Read) {
      ARTESIAN_TRY_VOID(engine_.finish_update());
      ARTESIAN_TRY(saved, engine_.save_checkpoint({}));
      bytes_ = saved.bytes_written;
    }
    if (copied) ARTESIAN_TRY_VOID(engine_.begin_checkpoint({}));
    for (std::uint64_t step = 1; step < window_steps; ++step) {
      ARTESIAN_TRY_VOID(one_step(copied && step == 1));
    }
    ARTESIAN_TRY_VOID(engine_.finish_update());
    if (!copied) return {};
    ARTESIAN_TRY(saved, engine_.finish_checkpoint(wait_seconds));
    if (saved.has_value()) bytes_ = saved->bytes_written;
    return {};
  }

  /// Measures a file as long as a checkpoint, at least one piece, in one stream with direct I/O:
  /// bytes per second.
  Result<double> disk_rate(bool writes) {
    const std::uint64_t pieces = engine_.checkpoints().data_bytes() / piece_bytes;
    const std::uint64_t bytes = std::max<std::uint64_t>(pieces, 1) * piece_bytes;
    const std::string path = folder_ + "/../rate";
    ARTESIAN_TRY(file, system_files().open(path, {.create = Create::Exclusive}));
    ARTESIAN_TRY_VOID(file->allocate(bytes));
    std::uint64_t begin = monotonic_ns();
    for (std::uint64_t at = 0; at < bytes; at += piece_bytes) {
      ARTESIAN_TRY_VOID(file->write_at(piece_.get(), piece_bytes, at));
    }
    ARTESIAN_TRY_VOID(file->sync());
    double seconds = seconds_since(begin);
    if (!writes) {
      begin = monotonic_ns();
      for (std::uint64_t at = 0; at < bytes; at += piece_bytes) {
        ARTESIAN_TRY_VOID(file->read_at(piece_.get(), piece_bytes, at));
      }
      seconds = seconds_since(begin);
    }
    file.reset();
    ARTESIAN_TRY_VOID(system_files().remove(path));
    return static_cast<double>(bytes) / seconds;
  }

  Result<void> load() {
    ARTESIAN_TRY(read, disk_rate(/*writes=*/false));
    ARTESIAN_TRY(write, disk_rate(/*writes=*/true));
    const std::uint64_t written = swap_written(engine_);
    const std::uint64_t begin = monotonic_ns();
    ARTESIAN_TRY_VOID(engine_.load_checkpoint({.directory = folder_}));
    std::printf("{\"load\": %.6f, \"read_rate\": %.0f, \"write_rate\": %.0f, \"swap\": %llu}\n",
                seconds_since(begin), read, write,
                static_cast<unsigned long long>(swap_written(engine_) - written));
    std::fflush(stdout);
    return {};
  }

  const std::string folder_;
  zero3::Engine& engine_;
  tools::MadeUpTokens tokens_;
  const Piece piece_ = made_up_piece();  // allocated at the start, so that it does not count as the
                                         // checkpoints' memory
  std::uint64_t bytes_ = 0;
};

Result<void> measure(const std::vector<std::string>& arguments) {
  const auto number = [&](std::size_t index) {
    return std::strtoull(arguments[index].c_str(), nullptr, 10);
  };
  ARTESIAN_TRY(made, make_engine(arguments[0], arguments[1], {}));
  Run run(made.model, number(2), arguments[3], *made.engine);
  ARTESIAN_TRY_VOID(run.run(number(4), number(5)));
  return made.engine->close();
}

}  // namespace
}  // namespace artesian::bench

int main(int argc, char** argv) {
  artesian::tools::set_up_process();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 6) {
    std::fputs("checkpoint_bench: got another number of arguments; see its source\n", stderr);
    return 2;
  }
  artesian::zero3::track_activations();
  const auto done = artesian::bench::measure(arguments);
  if (done.has_value()) return 0;
  std::fprintf(stderr, "checkpoint_bench: %s\n", done.error().to_string().c_str());
  return 1;
}
