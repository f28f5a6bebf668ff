// Shared by the contract tests. A suite instantiated with EVERY_ENGINE runs on each engine; a new
// engine needs one line here.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "aio/io_uring.h"
#include "aio/libaio.h"
#include "aio/threads.h"
#include "base/log.h"
#include "tests/aio/faults.h"
#include "tests/support/simulated_engine.h"
#include "tests/support/temporary_directory.h"

namespace artesian::aio {

/// The simulated engine reorders and delays, on a thread as the others do.
/// simulated_engine_test.cpp tests its own faults.
enum class Tested : std::uint8_t { IoUring, Libaio, Threads, Simulated };

class EngineFixture : public testing::TestWithParam<Tested> {
 protected:
  static constexpr double patience_s = 60;  // for waits that must succeed

  bool is_ring() const { return GetParam() == Tested::IoUring; }
  /// True if one call hands many blocks to the kernel.
  bool has_lanes() const { return is_ring() || GetParam() == Tested::Libaio; }
  /// Returns the kind by which make_engine makes this engine.
  EngineKind kind() const {
    ARTESIAN_CHECK(GetParam() != Tested::Simulated);
    return is_ring() ? EngineKind::IoUring : has_lanes() ? EngineKind::Libaio : EngineKind::Threads;
  }

  std::unique_ptr<Engine> make(const EngineOptions& options, FaultSeam* faults = nullptr) {
    if (faults == nullptr) faults = stall();
    if (GetParam() == Tested::Simulated) return simulated(options, faults);
    auto engine = make_real(options, faults);
    // Tries again while all AIO requests of the machine are in use: another process may be testing
    // that.
    for (int tries = 0; tries < 600 && !engine && engine.error().system_error == EAGAIN; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      engine = make_real(options, faults);
    }
    if (!engine) {
      ADD_FAILURE() << engine.error().to_string();
      std::abort();
    }
    return std::move(*engine);
  }

  std::unique_ptr<File> open(const std::string& path, const OpenOptions& options) {
    auto file = system_files().open(path, options);
    if (!file) {
      ADD_FAILURE() << file.error().to_string();
      std::abort();
    }
    return std::move(*file);
  }
  std::unique_ptr<File> create(const std::string& name, Direct direct = Direct::Never) {
    return open(directory_.file(name), {.create = Create::Exclusive, .direct = direct});
  }
  /// Makes a file of `size` bytes of byte_at.
  std::unique_ptr<File> filled(const std::string& name, std::uint64_t size,
                               Direct direct = Direct::Never) {
    auto file = create(name, direct);
    std::vector<std::byte> bytes(size);
    fill(bytes.data(), 0, size);
    EXPECT_TRUE(file->write_at(bytes.data(), size, 0));
    return file;
  }

  /// For death tests, whose child processes do not remove it. Open files stay usable.
  void remove_directory() { std::filesystem::remove_all(directory_.path()); }

  static std::byte byte_at(std::uint64_t offset) {
    return static_cast<std::byte>((offset * 2654435761u) >> 13);
  }
  static void fill(std::byte* data, std::uint64_t offset, std::uint64_t length) {
    for (std::uint64_t index = 0; index < length; ++index) data[index] = byte_at(offset + index);
  }
  static bool filled_right(const BufferLease& lease, std::uint64_t offset, std::uint64_t length) {
    for (std::uint64_t index = 0; index < length; ++index) {
      if (lease.data()[index] != byte_at(offset + index)) return false;
    }
    return true;
  }

  void submit(Engine& engine, Completion& completion) {
    Completion* const list[] = {&completion};
    engine.submit(list);
  }
  /// Submits and waits. The result stays in the completion.
  void run(Engine& engine, Completion& completion) {
    submit(engine, completion);
    await(engine, completion);
  }
  void await(Engine& engine, Completion& completion) {
    auto waited = engine.wait(completion, Deadline::after_seconds(patience_s));
    ASSERT_TRUE(waited) << waited.error().to_string();
  }
  static void expect_moved(const Completion& completion) {
    auto result = completion.result();
    ASSERT_TRUE(result) << result.error().to_string();
    EXPECT_EQ(*result, completion.request().length);
  }
  static Error error_of(const Completion& completion) {
    auto result = completion.result();
    if (!result) return result.error();
    ADD_FAILURE() << "expected an error";
    return {};
  }
  BufferLease read_lease(std::uint64_t length) {
    BufferLease lease = buffers_.lease(length);
    std::memset(lease.data(), 0xee, length);
    return lease;
  }
  BufferLease write_lease(std::uint64_t offset, std::uint64_t length) {
    BufferLease lease = buffers_.lease(length);
    fill(lease.data(), offset, length);
    return lease;
  }

  /// Returns the fault that makes a StalledFile stall in this engine. Never destroyed: an abandoned
  /// engine may still use it.
  FaultSeam* stall() const {
    static auto* const by_read = new StalledRead;
    static auto* const by_poll = new StalledPoll;
    if (is_ring()) return nullptr;
    return GetParam() == Tested::Threads ? static_cast<FaultSeam*>(by_read) : by_poll;
  }

  test_support::TemporaryDirectory directory_;
  CountedBuffers buffers_;

 private:
  Result<std::unique_ptr<Engine>> make_real(const EngineOptions& options, FaultSeam* faults) const {
    return is_ring()     ? make_io_uring(options, faults)
           : has_lanes() ? make_libaio(options, faults)
                         : make_threads(options, faults);
  }
  static std::unique_ptr<Engine> simulated(const EngineOptions& options, FaultSeam* faults) {
    const test_support::SimulatedOptions background{
        .steps = test_support::SimulatedOptions::Steps::Background};
    return std::make_unique<EngineOwner>(
        std::make_unique<test_support::SimulatedEngine>(options, background, faults));
  }
};

inline std::string engine_name(const testing::TestParamInfo<Tested>& info) {
  constexpr const char* names[] = {"io_uring", "libaio", "threads", "simulated"};
  return names[static_cast<std::size_t>(info.param)];
}

#define ARTESIAN_REAL_ENGINES(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Every, suite,                                                      \
                           testing::Values(Tested::IoUring, Tested::Libaio, Tested::Threads), \
                           engine_name)
#define ARTESIAN_EVERY_ENGINE(suite) \
  ARTESIAN_REAL_ENGINES(suite);      \
  INSTANTIATE_TEST_SUITE_P(Made, suite, testing::Values(Tested::Simulated), engine_name)

}  // namespace artesian::aio
