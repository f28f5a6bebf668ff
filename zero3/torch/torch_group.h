// A comm::Group on top of a PyTorch process group: PyTorch's backend for CPU memory moves the
// bytes, by sends and receives tagged with the operation's number. So ranks in different operations
// time out, and none gets another operation's bytes; Gloo's own collectives would end the process
// or mix up the data.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "comm/group.h"
#include "comm/launch.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace artesian::zero3 {

struct TorchGroupOptions {
  comm::Place place;
  double deadline_seconds = 600.0;  // the time within which every rank must join an operation
};

/// Makes a group on a backend for CPU memory, which must not be used for anything else. `store`:
/// where ranks that gave up waiting leave a note, so that silent ranks can be named. Errors:
/// Invalid.
Result<std::unique_ptr<comm::Group>> make_torch_group(c10::intrusive_ptr<c10d::Backend> backend,
                                                      c10::intrusive_ptr<c10d::Store> store,
                                                      const TorchGroupOptions& options);

/// Returns the ranks whose key `prefix` + number is missing in the store: "1, 3". May throw.
std::string ranks_without(c10d::Store& store, const std::string& prefix, std::uint32_t ranks);

/// Ranks that give up waiting leave a note in the store. A second later, returns the ranks without
/// a note, which are the silent ones: "1, 3"; empty if all have one. Nothing if the store does not
/// answer.
std::optional<std::string> silent_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                                        const comm::Place& place);

/// Connects several ranks started by a launcher, through Gloo, at the launch's address. Errors:
/// Unsupported (not a LibTorch that this was built for), PeerLost (naming the ranks that did not
/// connect before the deadline), Invalid.
Result<std::unique_ptr<comm::Group>> connect_ranks(const comm::Launch& launch,
                                                   double deadline_seconds);

}  // namespace artesian::zero3
