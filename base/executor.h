// Executor: runs work that must not have threads of its own (optimizer, casts, checksums) on the
// threads that the caller already has. One busy extra thread beside a GEMM on two cores costs more
// than it gains.
#pragma once

#include <cstdint>
#include <functional>

namespace artesian {

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs `body(begin, end)` over [0, count) in pieces of at least `grain` (the last may be
  /// smaller), each once, on the caller's threads; returns when all are done. `body` must not
  /// throw. Results must not depend on how the range is cut.
  virtual void parallel_for(std::uint64_t count, std::uint64_t grain,
                            const std::function<void(std::uint64_t, std::uint64_t)>& body) = 0;
};

/// Runs everything on the calling thread.
class SerialExecutor final : public Executor {
 public:
  void parallel_for(std::uint64_t count, std::uint64_t,
                    const std::function<void(std::uint64_t, std::uint64_t)>& body) override {
    if (count != 0) body(0, count);
  }
};

}  // namespace artesian
