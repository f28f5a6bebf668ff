// Engine::register_memory, shared by all kinds of engines.
#include <fmt/core.h>

#include <cerrno>
#include <string>

#include "aio/engine.h"
#include "base/log.h"
#include "base/units.h"

namespace artesian::aio {

bool Engine::register_memory(std::span<const std::span<std::byte>> ranges) noexcept {
  const std::uint32_t all = rings();
  std::uint32_t registered = 0;
  int refusal = 0;
  // Unregisters first, since earlier registrations use the limit, too.
  for (std::uint32_t ring = 0; ring < all; ++ring) (void)register_with_ring(ring, {});
  while (registered < all && refusal == 0) {
    refusal = register_with_ring(registered, ranges);
    if (refusal == 0) ++registered;
  }
  if (refusal == 0) return registered != 0;
  (void)register_with_ring(registered, {});  // a polled ring is two rings: register neither or both
  std::uint64_t bytes = 0;
  for (const std::span<std::byte> range : ranges) bytes += range.size();
  const std::string why = system_error_text(refusal) + (refusal == ENOMEM ? "; see ulimit -l" : "");
  const std::string size = format_size(bytes) + " of buffers";
  log_once(LogLevel::Warning,
           registered == 0
               ? "io_uring cannot register " + size + " (" + why + "): transfers go unregistered"
               : fmt::format("io_uring registers {} with {} of {} rings, each of which counts them "
                             "anew ({}): transfers of the others go unregistered",
                             size, registered, all, why));
  return registered != 0;
}

}  // namespace artesian::aio
