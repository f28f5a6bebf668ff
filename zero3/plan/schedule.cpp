#include "zero3/plan/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace artesian::zero3 {

const char* resource_name(Resource resource) noexcept {
  switch (resource) {
    case Resource::Compute: return "compute";
    case Resource::Host: return "host CPU";
    case Resource::DiskRead: return "NVMe read";
    case Resource::DiskWrite: return "NVMe write";
    case Resource::ParamRead: return "param NVMe read";
    case Resource::ParamWrite: return "param NVMe write";
    case Resource::ToDevice: return "host to device";
    case Resource::ToHost: return "device to host";
    case Resource::Bus: return "bus between ranks";
  }
  return "";
}

namespace {

/// A disk's reads and writes share the read queue.
Resource queue_of(Resource resource) noexcept {
  if (resource == Resource::DiskWrite) return Resource::DiskRead;
  return resource == Resource::ParamWrite ? Resource::ParamRead : resource;
}

}  // namespace

double Schedule::latest(std::initializer_list<Task> after) const noexcept {
  double time = 0.0;
  for (const Task task : after) {
    time = std::max(time, finish(task));
  }
  return time;
}

Schedule::Task Schedule::add(Resource resource, double seconds, std::initializer_list<Task> after) {
  ARTESIAN_CHECK(seconds >= 0.0, seconds);
  double& free_at = free_at_[index(disk_ == Disk::Shared ? queue_of(resource) : resource)];
  const double start = std::max(free_at, latest(after));
  free_at = start + seconds;
  busy_[index(resource)] += seconds;
  tasks_.push_back({start, free_at});
  return static_cast<Task>(tasks_.size() - 1);
}

Schedule::Task Schedule::join(std::initializer_list<Task> after) {
  const double time = latest(after);
  tasks_.push_back({time, time});
  return static_cast<Task>(tasks_.size() - 1);
}

}  // namespace artesian::zero3
