#include "comm/nccl_group.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace artesian::comm {
namespace {

constexpr int version_min = 21700;  // of NcclConfig
constexpr double finalize_seconds = 5.0;
constexpr auto poll_pause = std::chrono::microseconds(50);

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const Nccl& nccl, const NcclDevice& device, const Place& place, double deadline_seconds)
      : nccl_(nccl), stream_(device.stream), place_(place), deadline_seconds_(deadline_seconds) {}

  ~NcclGroup() override {
    if (comm_ == nullptr) return;
    // All enqueued operations have passed: other ranks need nothing more than what was sent.
    const auto end = Deadline::after_seconds(finalize_seconds);
    if (done(nccl_.comm_finalize(comm_), "ending", end).has_value()) {
      static_cast<void>(nccl_.comm_destroy(comm_));
    } else {
      abort();
    }
  }

  Result<void> connect(const NcclId& id) {
    NcclConfig config;
    const auto begun = nccl_.comm_init_rank_config(&comm_, static_cast<int>(place_.ranks), id,
                                                   static_cast<int>(place_.rank), &config);
    auto connected = done(begun, "connecting GPUs", deadline());
    if (!connected.has_value()) abort();
    return connected;
  }

  Result<void> enqueue_all_to_all(std::span<const std::span<const std::byte>> sent,
                                  std::span<const std::span<std::byte>> received,
                                  const What& what) override {
    ARTESIAN_CHECK(comm_ != nullptr);
    ARTESIAN_CHECK(sent.size() == place_.ranks && received.size() == place_.ranks, sent.size());
    const std::string name = what.text();
    ARTESIAN_TRY_VOID(done(nccl_.group_start(), name));
    Result<void> begun;
    for (std::uint32_t peer = 0; peer < place_.ranks && begun.has_value(); ++peer) {
      if (peer == place_.rank) continue;
      const auto to = static_cast<int>(peer);
      if (!sent[peer].empty()) {
        begun = started(
            nccl_.send(sent[peer].data(), sent[peer].size(), Nccl::uint8, to, comm_, stream_),
            name);
      }
      if (!received[peer].empty() && begun.has_value()) {
        begun = started(nccl_.recv(received[peer].data(), received[peer].size(), Nccl::uint8, to,
                                   comm_, stream_),
                        name);
      }
    }
    const NcclResult ended = nccl_.group_end();  // whatever came before
    ARTESIAN_TRY_VOID(std::move(begun));
    return done(ended, name);
  }

  Result<void> check() override {
    ARTESIAN_CHECK(comm_ != nullptr);
    NcclResult state{};
    ARTESIAN_TRY_VOID(started(nccl_.comm_get_async_error(comm_, &state), "asking for errors"));
    return started(state, "moving bytes");
  }

  void abort() noexcept override {
    if (comm_ != nullptr) static_cast<void>(nccl_.comm_abort(std::exchange(comm_, nullptr)));
  }

 private:
  Deadline deadline() const noexcept { return Deadline::after_seconds(deadline_seconds_); }

  Result<void> started(NcclResult result, const std::string& what) const {
    if (result == NcclResult::Success || result == NcclResult::InProgress) return {};
    const bool peer = result == NcclResult::RemoteError;
    return make_error(
        ErrorCode::PeerLost,
        fmt::format("{}rank {} was waiting for {}: NCCL: {}", peer ? "another rank is gone: " : "",
                    place_.rank, what, nccl_.get_error_string(result)));
  }

  /// Waits until NCCL has done its part on the host.
  Result<void> done(NcclResult result, const std::string& what, Deadline end) const {
    ARTESIAN_TRY_VOID(started(result, what));
    while (result == NcclResult::InProgress && comm_ != nullptr) {
      if (monotonic_ns() > end.at_ns) {
        return make_error(ErrorCode::PeerLost,
                          fmt::format("another rank has not answered for {:.0f} s: rank {} was "
                                      "waiting for {}",
                                      deadline_seconds_, place_.rank, what));
      }
      std::this_thread::sleep_for(poll_pause);
      ARTESIAN_TRY_VOID(started(nccl_.comm_get_async_error(comm_, &result), what));
      ARTESIAN_TRY_VOID(started(result, what));
    }
    return {};
  }
  Result<void> done(NcclResult result, const std::string& what) const {
    return done(result, what, deadline());
  }

  const Nccl nccl_;
  void* const stream_;
  const Place place_;
  const double deadline_seconds_;
  NcclComm* comm_ = nullptr;
};

/// Returns the reason for which some rank cannot take part; empty if all can.
Result<std::string> obstacle(Group& group, const std::vector<std::string>& names,
                             const Result<Nccl>& nccl) {
  for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (names[rank].empty()) return fmt::format("rank {} has no GPU", rank);
  }
  const std::string own = nccl.has_value() ? "" : nccl.error().message;
  ARTESIAN_TRY(reasons, group.exchange_texts(own, {"whether there is NCCL"}));
  for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
    if (!reasons[rank].empty()) return fmt::format("rank {}: {}", rank, reasons[rank]);
  }
  for (std::uint32_t rank = 1; rank < group.ranks(); ++rank) {
    const auto other = std::find(names.begin(), names.begin() + rank, names[rank]);
    if (other == names.begin() + rank) continue;
    return fmt::format("ranks {} and {} have the same GPU", other - names.begin(), rank);
  }
  return std::string();
}

}  // namespace

Result<Nccl> loaded_nccl() {
  const char* const told = std::getenv("ARTESIAN_NCCL");  // NOLINT(concurrency-mt-unsafe)
  if (told != nullptr && std::string_view(told) == "0") {
    return make_error(ErrorCode::Unsupported, "ARTESIAN_NCCL is 0");
  }
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return make_error(ErrorCode::Unsupported, "PyTorch has brought no NCCL");
  Nccl nccl;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    void* const found = ::dlsym(library, name);
    if (found == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(nccl.get_version, "ncclGetVersion");
  find(nccl.get_unique_id, "ncclGetUniqueId");
  find(nccl.comm_init_rank_config, "ncclCommInitRankConfig");
  find(nccl.comm_get_async_error, "ncclCommGetAsyncError");
  find(nccl.comm_abort, "ncclCommAbort");
  find(nccl.comm_finalize, "ncclCommFinalize");
  find(nccl.comm_destroy, "ncclCommDestroy");
  find(nccl.group_start, "ncclGroupStart");
  find(nccl.group_end, "ncclGroupEnd");
  find(nccl.send, "ncclSend");
  find(nccl.recv, "ncclRecv");
  find(nccl.get_error_string, "ncclGetErrorString");
  int version = 0;
  const bool known = missing.empty() && nccl.get_version(&version) == NcclResult::Success;
  if (known && version >= version_min) return nccl;
  return make_error(ErrorCode::Unsupported,
                    missing.empty() ? fmt::format("NCCL is too old: {}, allowed {} or newer",
                                                  version, version_min)
                                    : "NCCL is too old: it has no " + missing);
}

Result<std::unique_ptr<DeviceGroup>> connect_nccl(Group& group, const NcclDevice& device,
                                                  const Result<Nccl>& nccl) {
  ARTESIAN_TRY(names, group.exchange_texts(device.name, {"the ranks' GPUs"}));
  if (std::all_of(names.begin(), names.end(), [](const auto& name) { return name.empty(); })) {
    return std::unique_ptr<DeviceGroup>();
  }
  ARTESIAN_TRY(reason, obstacle(group, names, nccl));
  std::unique_ptr<NcclGroup> made;
  if (reason.empty()) {
    NcclId id;
    const bool first = group.rank() == 0;
    const bool has_id = !first || nccl->get_unique_id(&id) == NcclResult::Success;
    ARTESIAN_TRY_VOID(group.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0,
                                      {"the number of NCCL's group"}));
    made = std::make_unique<NcclGroup>(*nccl, device, group.place(), group.deadline_seconds());
    auto connected =
        has_id ? made->connect(id) : Result<void>(make_error(ErrorCode::Unsupported, "no network"));
    const std::string own = connected.has_value() ? "" : connected.error().message;
    ARTESIAN_TRY(reasons, group.exchange_texts(own, {"whether NCCL has connected"}));
    const auto failed = std::find_if(reasons.begin(), reasons.end(),
                                     [](const std::string& each) { return !each.empty(); });
    if (failed != reasons.end()) reason = *failed;
  }
  if (reason.empty()) return std::unique_ptr<DeviceGroup>(std::move(made));
  if (made != nullptr) made->abort();
  if (group.rank() == 0) {
    log(LogLevel::Warning,
        "gradients and parameters pass between ranks through host memory, not by NCCL: " + reason);
  }
  return std::unique_ptr<DeviceGroup>();
}

}  // namespace artesian::comm
