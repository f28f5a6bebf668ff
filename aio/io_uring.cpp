#include "aio/io_uring.h"

#include "aio/lane_engine.h"
#include "aio/ring.h"

namespace artesian::aio {

Result<std::unique_ptr<Engine>> make_io_uring(const EngineOptions& options,
                                              FaultSeam* faults) noexcept {
  auto engine = std::make_unique<LaneEngine<Ring>>(EngineKind::IoUring, options, faults);
  ARTESIAN_TRY_VOID(engine->start());
  return std::unique_ptr<Engine>(std::make_unique<EngineOwner>(std::move(engine)));
}

}  // namespace artesian::aio
