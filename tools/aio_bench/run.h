// `aio_bench run`: one measurement over a temporary file, which is filled before the timed part and
// checked after it.
#pragma once

#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>

#include "tools/aio_bench/ground.h"

namespace artesian::bench {

struct RunOptions {
  std::string directory;
  std::uint64_t size = 0;  // bytes, multiple of 4096
  Transfers transfers;
  Direct direct = Direct::IfAligned;
};

/// Callbacks for progress, or null: `measurement`, and `pass` for the passes before ("writing") and
/// after it ("checking").
struct RunWatch {
  Watch measurement = nullptr;
  std::function<void(const char* stage, const Pass&)> pass = nullptr;
};

/// Fills, measures and checks. Errors: as Ground's.
Result<Measurement> run(const RunOptions& options, const std::atomic<int>& stop,
                        const RunWatch& watch = {});

/// Bytes of memory that the run's buffers take.
std::uint64_t buffer_bytes(const RunOptions& options) noexcept;

/// Returns the output of `run --json`.
nlohmann::ordered_json to_json(const RunOptions& options, const Measurement& result);

void add_run_flags(CLI::App& command);
/// Runs the command. Returns the exit code.
int run_command(const CLI::App& command);

}  // namespace artesian::bench
