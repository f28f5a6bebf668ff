"""Control groups for programs started by tests and benchmarks."""

import contextlib
import os
import pathlib

MEMORY = {
    "/sys/fs/cgroup/memory": ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),  # version 1
    "/sys/fs/cgroup": ("memory.max", "memory.peak"),
}


@contextlib.contextmanager
def made_group(root, settings, name=""):
    """A control group below this folder, with these pairs of a file and its text. Yields its
    folder; None if it cannot be made. All processes must have left it at the end. Several groups of
    one process need names."""
    group = pathlib.Path(root, f"artesian-{os.getpid()}{name}")
    with contextlib.ExitStack() as made:
        try:
            group.mkdir()
            made.callback(group.rmdir)
            for file, text in settings:
                (group / file).write_text(text)
        except OSError:
            yield None
            return
        yield group


class MemoryGroup:
    """Enters the group when it is called, as `preexec_fn`."""

    def __init__(self, folder, peak):
        self.processes, self.of_peak = str(folder / "cgroup.procs"), folder / peak

    def __call__(self):
        with open(self.processes, "w") as file:
            file.write(str(os.getpid()))

    def peak(self):
        """Bytes, with the page cache."""
        return int(self.of_peak.read_text())


@contextlib.contextmanager
def memory_group(size, name=""):
    """A memory control group of this size, of either version. Yields a MemoryGroup; None if none
    can be made."""
    for root, (limit, peak) in MEMORY.items():
        with made_group(root, [(limit, str(size))], name) as folder:
            if folder is not None:
                yield MemoryGroup(folder, peak)
                return
    yield None
