"""Memory of this process that no file backs, sampled by a thread."""

import threading
import time


def resident():
    """MiB, anonymous and shared."""
    with open("/proc/self/status", encoding="utf-8") as file:
        words = dict(line.split(":") for line in file)
    return sum(int(words[name].split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


class PeakMemory:
    """`peaks`: MiB by stage, until end(); the caller sets the stage's name."""

    def __init__(self, stage="all"):
        self.stage, self.peaks = stage, {}
        self.ended = threading.Event()
        # A daemon thread, since a script that fails never calls end().
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.ended.is_set():
            stage = self.stage
            self.peaks[stage] = max(self.peaks.get(stage, 0), resident())
            time.sleep(0.005)

    def end(self):
        """Waits for the thread: if the thread collects torch's garbage while the interpreter ends,
        the process aborts."""
        self.ended.set()
        self.thread.join()
