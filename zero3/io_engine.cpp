#include "zero3/io_engine.h"

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

}  // namespace artesian::zero3
