// The compute team: work that must not have threads of its own (optimizer, casts, checksums) runs
// on the threads that the caller already has, through this interface. One busy extra thread beside
// a two-core GEMM costs more than it wins.
#pragma once

#include <cstdint>
#include <functional>

namespace artesian {

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs `body(begin, end)` over [0, count) in pieces of at least `grain`, but for the last, each
  /// once, on the team; returns when all are done. `body` must not throw. The cut never affects
  /// results.
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
