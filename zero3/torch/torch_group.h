// A comm::Group over one of PyTorch's: its backend for the CPU's memory moves the bytes, by sends
// and receives that carry the operation's number. So ranks that are in different operations find
// that out by waiting, and nobody gets another operation's bytes: Gloo's own collectives end the
// process then, or swap the data.
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
  double deadline_seconds = 600.0;  // the time in which every rank must join an operation
};

/// A group over a backend for the CPU's memory, which nothing else sends or receives with. `store`:
/// where ranks that gave up waiting say so, so that who is silent can be named. Errors: Invalid.
Result<std::unique_ptr<comm::Group>> make_torch_group(c10::intrusive_ptr<c10d::Backend> backend,
                                                      c10::intrusive_ptr<c10d::Store> store,
                                                      const TorchGroupOptions& options);

/// Returns the ranks whose key `prefix` + number is not in the store: "1, 3". May throw.
std::string ranks_without(c10d::Store& store, const std::string& prefix, std::uint32_t ranks);

/// The ranks that give up waiting say so in the store; a second later those that have not are the
/// ones that are waited for: "1, 3"; empty if all have. Nothing if the store does not answer.
std::optional<std::string> silent_ranks(const c10::intrusive_ptr<c10d::Store>& store,
                                        const comm::Place& place);

/// A group of Gloo's, of the ranks that a launcher has started, of whom there are several: meets
/// them at the launch's address. Errors: Unsupported (this LibTorch is not one that this was built
/// for), PeerLost (those who have not come within the deadline, by name), Invalid.
Result<std::unique_ptr<comm::Group>> connect_ranks(const comm::Launch& launch,
                                                   double deadline_seconds);

}  // namespace artesian::zero3
