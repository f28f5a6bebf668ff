"""A memory control group for programs started by tests and benchmarks."""

import contextlib
import os
import pathlib


@contextlib.contextmanager
def memory_group(size):
    """A memory control group of this size, of either version. Yields a function for `preexec_fn`
    that enters the group; None if none can be made. All processes must have left the group at the
    end."""
    for root, limit in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                        ("/sys/fs/cgroup", "memory.max")]:  # fmt: skip
        group = pathlib.Path(root, f"artesian-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(size))
            processes = str(group / "cgroup.procs")
        except OSError:
            group.rmdir()
            continue

        def enter():
            with open(processes, "w") as file:
                file.write(str(os.getpid()))

        try:
            yield enter
        finally:
            group.rmdir()
        return
    yield None
