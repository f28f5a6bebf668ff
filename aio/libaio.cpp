#include "aio/libaio.h"

#include "aio/aio_context.h"
#include "aio/lane_engine.h"

namespace artesian::aio {

Result<std::unique_ptr<Engine>> make_libaio(const EngineOptions& options,
                                            FaultSeam* faults) noexcept {
  auto engine = std::make_unique<LaneEngine<AioContext>>(EngineKind::Libaio, options, faults);
  ARTESIAN_TRY_VOID(engine->start());
  return std::unique_ptr<Engine>(std::make_unique<EngineOwner>(std::move(engine)));
}

}  // namespace artesian::aio
