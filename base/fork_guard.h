// A forked child that does not exec keeps its parent's descriptors, and with them its flock: the
// lock would outlive the parent for as long as the child runs. A guarded descriptor leads to
// /dev/null in children, so that the lock is the parent's alone. (Children made by vfork or
// posix_spawn exec at once, and descriptors are O_CLOEXEC.)
//
// Thread: any.
#pragma once

namespace artesian {

/// From now on children do not share the open file behind this descriptor.
void guard_from_children(int descriptor) noexcept;

/// Ends the guard and closes the descriptor, with no fork in between.
void close_guarded(int descriptor) noexcept;

}  // namespace artesian
