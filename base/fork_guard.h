// A forked child that does not exec keeps its parent's descriptors, and with them its flock: the
// lock would outlive the parent for as long as the child runs. In children a guarded descriptor
// refers to /dev/null, so that only the parent holds the lock. (Children made by vfork or
// posix_spawn exec at once, and descriptors are O_CLOEXEC.)
//
// Thread: any.
#pragma once

namespace artesian {

/// From now on, forked children do not share the open file behind this descriptor.
void guard_from_children(int descriptor) noexcept;

/// Ends the guard and closes the descriptor, with no fork in between.
void close_guarded(int descriptor) noexcept;

}  // namespace artesian
