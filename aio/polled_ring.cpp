#include "aio/polled_ring.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"

namespace artesian::aio {

int PolledRing::open(std::uint32_t depth, Polling polling) noexcept {
  ARTESIAN_CHECK(polls_completion(polling));
  const int failure =
      plain_.open(depth, polls_submission(polling) ? Polling::Submission : Polling::None);
  if (failure != 0) return failure;
  answers_.reserve(depth);
  const int refusal = polled_.open(depth, polling);
  polls_ = refusal == 0;
  polling_ = polls_ ? polled_.polling() : plain_.polling();
  if (polls_) return 0;
  polled_.close();
  log_once(LogLevel::Warning, "io_uring: IOPOLL is refused (" + system_error_text(refusal) +
                                  "): disks interrupt as usual");
  return 0;
}

void PolledRing::close() noexcept {
  polled_.close();
  plain_.close();
}

int PolledRing::register_buffers(const FixedBuffers& buffers) noexcept {
  const int failure = plain_.register_buffers(buffers);
  return failure != 0 || !polls_ ? failure : polled_.register_buffers(buffers);
}

void PolledRing::stop_registering_files() noexcept {
  plain_.stop_registering_files();
  polled_.stop_registering_files();
}

void PolledRing::prepare(Block& block, std::uint64_t length) noexcept {
  const bool direct = block.alignment > 1;
  (polls_ && direct ? polled_ : plain_).prepare(block, length);
}

void PolledRing::submit() noexcept {
  if (plain_.blocks_queued() != 0) plain_.submit();
  if (polled_.blocks_queued() != 0) polled_.submit();
}

void PolledRing::wait(std::uint32_t count) noexcept {
  if (polled_.blocks_pending() == 0) return plain_.wait(count);
  plain_.glance();
  if (!plain_.has_answers()) polled_.wait(std::min(count, polled_.blocks_pending()));
}

std::span<const Answer> PolledRing::reap() noexcept {
  answers_.clear();
  const bool some = polled_.blocks_pending() != 0;
  for (const Answer& answer : some ? polled_.reap() : std::span<const Answer>{}) {
    if (answer.result != -EOPNOTSUPP) {
      answers_.push_back(answer);
      continue;
    }
    if (polls_) {
      polls_ = false;
      polling_ = plain_.polling();
      log_once(LogLevel::Warning,
               "io_uring: the disk of " + answer.block->request().file->path() +
                   " cannot be polled (IOPOLL; drivers need queues for it, as nvme.poll_queues): "
                   "disks interrupt as usual");
    }
    plain_.prepare(*answer.block, answer.block->rest());
  }
  for (const Answer& answer : plain_.reap()) answers_.push_back(answer);
  return answers_;
}

}  // namespace artesian::aio
