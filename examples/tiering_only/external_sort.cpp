// Sorts more numbers than fit in memory, as an example of the tiering layer without a trainer and
// without PyTorch. Sorted runs are written to shards on NVMe, a merge reads all of them in parallel
// and writes the result, and a last pass checks it. Every block read is verified by its checksum.
// The pool is a hard limit: all memory for numbers is leased from it.
//
// Usage: external_sort DIRECTORY [MIB_OF_NUMBERS [MIB_OF_MEMORY]]
#include <base/random.h>
#include <tiering/shard_stream.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <queue>

namespace {

using namespace artesian;
using tiering::ShardId;
using Number = std::uint64_t;

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t block_bytes = 64 << 10;  // the unit with its own checksum

/// A piece of a shard as numbers. Shape: [bytes / 8].
std::span<const Number> numbers(std::span<const std::byte> piece) {
  return {reinterpret_cast<const Number*>(piece.data()), piece.size() / sizeof(Number)};
}
std::span<Number> numbers(std::span<std::byte> piece) {
  return {reinterpret_cast<Number*>(piece.data()), piece.size() / sizeof(Number)};
}

/// Properties that sorting does not change: how many numbers there are, and their sum.
struct Census {
  std::uint64_t count = 0;
  std::uint64_t sum = 0;
  void add(std::span<const Number> values) {
    count += values.size();
    for (const Number value : values) sum += value;
  }
  bool operator==(const Census&) const = default;
};

class ExternalSort {
 public:
  ExternalSort(tiering::TierStore& store, pinned::Pool& memory, std::uint32_t runs)
      : store_(store), memory_(memory), runs_(runs) {}

  Result<Census> write_runs() {
    Census census;
    for (std::uint32_t run = 0; run < runs_; ++run) {
      // One piece as large as the run, so that it can be sorted in place before it is written.
      const std::uint64_t bytes = store_.shard(ShardId{run}).bytes;
      ARTESIAN_TRY(writer, tiering::ShardWriter::open(store_, ShardId{run}, memory_,
                                                      {.piece_bytes = bytes, .buffers = 1}));
      ARTESIAN_TRY(piece, writer.next());
      const std::span<Number> values = numbers(piece);
      for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = random_word(1, run, i);
      census.add(values);
      std::sort(values.begin(), values.end());
      ARTESIAN_TRY_VOID(writer.close());
    }
    return census;
  }

  Result<void> merge() {
    // Two pieces of each run and of the result fill the memory: one in use, one in flight.
    const std::uint64_t share = memory_.range().size() / (2 * (runs_ + 1));
    const std::uint64_t piece_bytes = share - share % block_bytes;  // whole blocks
    std::vector<Source> sources;
    std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
    for (std::uint32_t run = 0; run < runs_; ++run) {
      ARTESIAN_TRY(reader, tiering::ShardReader::open(store_, ShardId{run}, memory_,
                                                      {.piece_bytes = piece_bytes}));
      sources.push_back({std::move(reader), {}});
      ARTESIAN_TRY(first, sources.back().next());
      heads.push({*first, run});
    }
    ARTESIAN_TRY(writer, tiering::ShardWriter::open(store_, ShardId{runs_}, memory_,
                                                    {.piece_bytes = piece_bytes}));
    for (;;) {
      ARTESIAN_TRY(piece, writer.next());
      if (piece.empty()) break;
      for (Number& number : numbers(piece)) {
        const Head least = heads.top();
        heads.pop();
        number = least.number;
        ARTESIAN_TRY(following, sources[least.run].next());
        if (following != nullptr) heads.push({*following, least.run});
      }
    }
    for (Source& source : sources) ARTESIAN_TRY_VOID(source.reader.close());
    return writer.close();
  }

  /// Returns whether the result is in order, and its census.
  Result<std::pair<bool, Census>> check() {
    ARTESIAN_TRY(reader, tiering::ShardReader::open(store_, ShardId{runs_}, memory_));
    bool sorted = true;
    Census census;
    for (Number before = 0;;) {
      ARTESIAN_TRY(piece, reader.next());
      if (piece.empty()) break;
      const std::span<const Number> values = numbers(piece);
      sorted = sorted && before <= values.front() && std::is_sorted(values.begin(), values.end());
      before = values.back();
      census.add(values);
    }
    ARTESIAN_TRY_VOID(reader.close());
    return std::pair(sorted, census);
  }

 private:
  struct Head {
    Number number;
    std::uint32_t run;
    bool operator>(const Head& other) const { return number > other.number; }
  };
  struct Source {
    tiering::ShardReader reader;
    std::span<const Number> piece;
    /// The run's next number, or null at its end.
    Result<const Number*> next() {
      if (piece.empty()) {
        ARTESIAN_TRY(bytes, reader.next());
        piece = numbers(bytes);
        if (piece.empty()) return nullptr;
      }
      const Number* number = piece.data();
      piece = piece.subspan(1);
      return number;
    }
  };

  tiering::TierStore& store_;
  pinned::Pool& memory_;
  std::uint32_t runs_;
};

Result<bool> sort(const std::string& directory, std::uint64_t bytes, std::uint64_t memory_bytes) {
  // A pool, an I/O engine, and a store of shards, each with a home.
  ARTESIAN_TRY(memory, pinned::Pool::create({.bytes = memory_bytes, .name = "memory"}));
  ARTESIAN_TRY(device, pinned::Pool::create({.bytes = 4096, .name = "device (not used)"}));
  ARTESIAN_TRY(engine, aio::make_best_engine({.queue_depth = 32}));
  const std::uint64_t run_bytes = memory_bytes / 2;
  const auto runs = static_cast<std::uint32_t>(bytes / run_bytes);
  std::vector<tiering::ShardOptions> shards;
  for (std::uint32_t run = 0; run < runs; ++run) {
    shards.push_back(
        {.name = "run " + std::to_string(run), .bytes = run_bytes, .block_bytes = block_bytes});
  }
  shards.push_back({.name = "result", .bytes = runs * run_bytes, .block_bytes = block_bytes});
  ARTESIAN_TRY(store, tiering::TierStore::open({.directories = {directory}, .run_id = 1}, shards,
                                               *device, *memory, *engine, system_files()));

  ExternalSort sorter(*store, *memory, runs);
  const auto work = [&]() -> Result<bool> {
    ARTESIAN_TRY(written, sorter.write_runs());
    ARTESIAN_TRY_VOID(sorter.merge());
    ARTESIAN_TRY(found, sorter.check());
    const auto moved = store->statistics();
    std::printf(
        "%llu numbers in %u runs, %llu MiB of memory at most; NVMe read %.1f MB, "
        "written %.1f MB, %llu blocks verified\n",
        static_cast<unsigned long long>(written.count), runs,
        static_cast<unsigned long long>(memory->statistics().bytes_in_use_peak / mib),
        static_cast<double>(moved.bytes_read) * 1e-6,
        static_cast<double>(moved.bytes_written) * 1e-6,
        static_cast<unsigned long long>(moved.blocks_verified));
    return found.first && found.second == written;
  };
  auto outcome = work();
  ARTESIAN_TRY_VOID(store->close());  // removes the swap file, also after an error
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, std::uint64_t otherwise) {
    return index < argc ? std::strtoull(argv[index], nullptr, 10) : otherwise;
  };
  if (argc < 2) {
    std::fprintf(stderr, "usage: external_sort DIRECTORY [MIB_OF_NUMBERS [MIB_OF_MEMORY]]\n");
    return 2;
  }
  const auto sorted = sort(argv[1], argument(2, 128) * mib, argument(3, 16) * mib);
  if (!sorted.has_value()) {
    std::fprintf(stderr, "external_sort: error: %s\n", sorted.error().to_string().c_str());
    return 1;
  }
  std::printf("%s\n", *sorted ? "sorted: yes" : "sorted: NO");
  return *sorted ? 0 : 1;
}
