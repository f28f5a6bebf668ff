"""The memory of this process that no file backs, looked at by a thread from its making on."""

import threading
import time


def resident():
    """MiB, anonymous and shared."""
    with open("/proc/self/status", encoding="utf-8") as file:
        words = dict(line.split(":") for line in file)
    return sum(int(words[name].split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


class PeakMemory:
    """`peaks`: MiB by stage, the name of which the caller changes; until end()."""

    def __init__(self, stage="all"):
        self.stage, self.peaks = stage, {}
        self.ended = threading.Event()
        # A daemon, since a script that fails does not come to end().
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.ended.is_set():
            stage = self.stage
            self.peaks[stage] = max(self.peaks.get(stage, 0), resident())
            time.sleep(0.005)

    def end(self):
        """Waits for the thread: one that collects torch's garbage when the interpreter ends makes
        the process abort."""
        self.ended.set()
        self.thread.join()
