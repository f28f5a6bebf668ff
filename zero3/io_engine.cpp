#include "zero3/io_engine.h"

#include <string>

#include "aio/path_engines.h"

namespace artesian::zero3 {
namespace {

aio::Polling polling_of(PollingChoice choice) noexcept {
  switch (choice) {
    case PollingChoice::Off: return aio::Polling::None;
    case PollingChoice::Submission: return aio::Polling::Submission;
    case PollingChoice::Completion: return aio::Polling::Completion;
    case PollingChoice::Both: return aio::Polling::Both;
  }
  return aio::Polling::None;
}

Result<std::unique_ptr<aio::Engine>> make_io_engine_of_path(const Config& config) {
  const aio::EngineOptions options{.block_size = config.aio.block_size,
                                   .queue_depth = config.aio.queue_depth,
                                   .threads = config.aio.intra_op_parallelism,
                                   .single_submit = config.aio.single_submit,
                                   .overlap_events = config.aio.overlap_events,
                                   .polling = polling_of(config.artesian.polling)};
  const EngineChoice choice = config.artesian.engine;
  if (choice == EngineChoice::Auto) return aio::make_best_engine(options);
  const auto kind = choice == EngineChoice::IoUring  ? aio::EngineKind::IoUring
                    : choice == EngineChoice::Libaio ? aio::EngineKind::Libaio
                                                     : aio::EngineKind::Threads;
  auto engine = aio::make_engine(kind, options);
  if (!engine.has_value() && engine.error().code == ErrorCode::Unsupported) {
    engine.error().message = std::string("artesian.engine: got \"") + aio::engine_kind_name(kind) +
                             "\", allowed auto or threads here: " + engine.error().message;
  }
  return engine;
}

}  // namespace

Result<std::unique_ptr<aio::Engine>> make_io_engine(const Config& config, std::size_t paths) {
  return aio::make_path_engines(static_cast<std::uint32_t>(paths),
                                [&config] { return make_io_engine_of_path(config); });
}

}  // namespace artesian::zero3
