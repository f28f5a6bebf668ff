// Schedule: a discrete-event simulation of work on resources that each do one thing at a time, in
// the order in which it was given: a disk's queue, a link, a thread pool. A task starts when
// everything that it waits for is done and its resource is free. As the order is fixed, a shorter
// task never delays anything: a faster resource never gives a slower schedule. Pure: no clock, no
// I/O.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/check.h"

namespace artesian::zero3 {

enum class Resource : std::uint8_t {
  Compute,    // the device that computes the model
  Host,       // the CPU beside a separate device
  DiskRead,   // shares one queue with DiskWrite, unless the disk is duplex
  DiskWrite,  //
  ParamRead,  // the parameters' disk, if it is a separate one
  ParamWrite,
  ToDevice,  // the link, each way
  ToHost,
  Bus,  // the connection between ranks
};
constexpr std::size_t resource_count = 9;

/// "compute", "host", "NVMe read", ...
const char* resource_name(Resource resource) noexcept;

enum class Disk : std::uint8_t { Shared, Duplex };

class Schedule {
 public:
  using Task = std::uint32_t;
  static constexpr Task none = ~Task{0};  // a task that is always done

  explicit Schedule(Disk disk) noexcept : disk_(disk) {}

  /// Appends a task of `seconds` to the resource's queue; it starts after these tasks (`none` is
  /// allowed).
  Task add(Resource resource, double seconds, std::initializer_list<Task> after);
  /// A task without time and resource that is done when all of these are.
  Task join(std::initializer_list<Task> after);

  double start(Task task) const noexcept { return task == none ? 0.0 : times(task).start; }
  double finish(Task task) const noexcept { return task == none ? 0.0 : times(task).finish; }
  /// Total seconds that the resource has worked.
  double busy(Resource resource) const noexcept { return busy_[index(resource)]; }
  std::size_t size() const noexcept { return tasks_.size(); }

 private:
  struct Times {
    double start = 0.0;
    double finish = 0.0;
  };
  const Times& times(Task task) const noexcept {
    ARTESIAN_CHECK(task < tasks_.size(), task, tasks_.size());
    return tasks_[task];
  }
  static std::size_t index(Resource resource) noexcept {
    return static_cast<std::size_t>(resource);
  }
  double latest(std::initializer_list<Task> after) const noexcept;

  const Disk disk_;
  std::vector<Times> tasks_;
  std::array<double, resource_count> free_at_{};
  std::array<double, resource_count> busy_{};
};

}  // namespace artesian::zero3
