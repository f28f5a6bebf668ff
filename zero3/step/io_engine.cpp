#include "zero3/step/io_engine.h"

#include <fmt/core.h>

#include <set>
#include <string>

#include "aio/path_engines.h"
#include "base/log.h"

namespace artesian::zero3 {
namespace {

Result<std::unique_ptr<aio::Engine>> make_io_engine_of_path(EngineChoice choice,
                                                            const PathIo& path) {
  if (choice == EngineChoice::Auto) {
    if (path.engine.has_value() && *path.engine != aio::EngineKind::IoUring) {
      auto preferred = aio::make_engine(*path.engine, path.options);
      if (preferred.has_value()) return preferred;
      log_once(LogLevel::Info, "aio: " + std::string(aio::engine_kind_name(*path.engine)) +
                                   " of the machine profile is not available here: " +
                                   preferred.error().to_string());
    }
    return aio::make_best_engine(path.options);
  }
  const auto kind = choice == EngineChoice::IoUring  ? aio::EngineKind::IoUring
                    : choice == EngineChoice::Libaio ? aio::EngineKind::Libaio
                                                     : aio::EngineKind::Threads;
  auto engine = aio::make_engine(kind, path.options);
  if (!engine.has_value() && engine.error().code == ErrorCode::Unsupported) {
    engine.error().message = std::string("artesian.engine: got \"") + aio::engine_kind_name(kind) +
                             "\", allowed auto or threads here: " + engine.error().message;
  }
  return engine;
}

}  // namespace

Result<std::unique_ptr<aio::Engine>> make_io_engine(const Config& config,
                                                    const std::vector<PathIo>& paths) {
  const EngineChoice choice = config.artesian.engine;
  const std::vector<PathIo> any = choose_path_io(config, {""}, {}).paths;
  const std::vector<PathIo>& all = paths.empty() ? any : paths;
  return aio::make_path_engines(
      static_cast<std::uint32_t>(all.size()),
      [&, path = std::size_t{0}]() mutable { return make_io_engine_of_path(choice, all[path++]); });
}

std::string describe_io(aio::Engine& engine, std::size_t paths) {
  const aio::EngineStatistics all = engine.statistics();
  if (paths == 0 || all.blocks == 0) return {};
  std::string text;
  std::set<std::string> told;
  for (std::uint32_t path = 0; path < paths; ++path) {
    const aio::Engine& one = engine.for_path(path);
    std::string words = aio::engine_kind_name(one.kind());
    if (one.polling() != aio::Polling::None) {
      words += std::string(" with ") + aio::polling_name(one.polling());
    }
    if (told.insert(words).second) text += (text.empty() ? "" : " and ") + words;
  }
  const auto share = [&](std::uint64_t blocks) {
    return fmt::format(" {}%", 100 * blocks / all.blocks);
  };
  return text + "; direct" + share(all.blocks_direct) + ", registered memory" +
         share(all.blocks_registered) + ", registered files" +
         share(all.blocks_of_registered_files) + " of blocks";
}

}  // namespace artesian::zero3
