#include "aio/io_uring.h"

#include "aio/lane_engine.h"
#include "aio/polled_ring.h"
#include "aio/ring.h"

namespace artesian::aio {
namespace {

template <typename Queue>
Result<std::unique_ptr<Engine>> make(const EngineOptions& options, FaultSeam* faults) {
  auto engine = std::make_unique<LaneEngine<Queue>>(EngineKind::IoUring, options, faults);
  ARTESIAN_TRY_VOID(engine->start());
  return std::unique_ptr<Engine>(std::make_unique<EngineOwner>(std::move(engine)));
}

}  // namespace

Result<std::unique_ptr<Engine>> make_io_uring(const EngineOptions& options,
                                              FaultSeam* faults) noexcept {
  return polls_completion(options.polling) ? make<PolledRing>(options, faults)
                                           : make<Ring>(options, faults);
}

}  // namespace artesian::aio
