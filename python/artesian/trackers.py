"""Sends the figures of steps to the trackers in a config's sections tensorboard, wandb, csv_monitor
and comet, under DeepSpeed's names and by number of samples. A failure never ends a step: a tracker
that is not installed, or raises, is skipped with one warning.

`artesian train` runs this file as a program, which reads one JSON line for each step from stdin. So
it imports only the standard library until a tracker is needed.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

NAMES = {  # names of a step's figures
    "loss": "Train/Samples/train_loss",
    "lr": "Train/Samples/lr",
    "loss_scale": "Train/Samples/loss_scale",
    "grad_norm": "Train/Samples/grad_norm",
    "step_s": "Train/Samples/step_seconds",
    "eval_loss": "Train/Samples/eval_loss",
}
Event = tuple[str, float, int]  # name, value, samples


class Tracker(Protocol):
    def write(self, events: list[Event]) -> None: ...
    def close(self) -> None: ...


def as_flag(value: Any) -> Any:
    """`artesian train` passes all values as text."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def folder_of(section: Mapping[str, Any]) -> str:
    job = section.get("job_name", "DeepSpeedJobName")
    folder = os.path.join(section.get("output_path") or "", job)
    os.makedirs(folder, exist_ok=True)
    return folder


class TensorBoard:
    def __init__(self, section: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(log_dir=folder_of(section))

    def write(self, events: list[Event]) -> None:
        for event in events:
            self.writer.add_scalar(*event)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    def __init__(self, section: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]

        self.run: Any = wandb.init(
            project=section.get("project", "deepspeed"),
            group=section.get("group"),
            entity=section.get("team"),
        )

    def write(self, events: list[Event]) -> None:
        self.run.log({name: value for name, value, _ in events}, step=events[0][2])

    def close(self) -> None:
        self.run.finish()


class Csv:
    """One file per figure: FOLDER/Train_Samples_lr.csv, with lines "samples, value"."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        self.folder = folder_of(section)

    def write(self, events: list[Event]) -> None:
        for name, value, samples in events:
            path = os.path.join(self.folder, name.replace("/", "_") + ".csv")
            with open(path, "a", newline="") as file:
                lines = csv.writer(file)
                if file.tell() == 0:
                    lines.writerow(["step", name.rpartition("/")[2]])
                lines.writerow([samples, value])

    def close(self) -> None:
        pass


class Comet:
    OPTIONS = ("api_key", "project", "workspace", "experiment_key", "mode", "online")

    def __init__(self, section: Mapping[str, Any]) -> None:
        import comet_ml  # type: ignore[import-not-found]

        options = {name: section.get(name) for name in self.OPTIONS}
        options["online"] = as_flag(options["online"])
        self.experiment: Any = comet_ml.start(**options)
        if section.get("experiment_name") is not None:
            self.experiment.set_name(section["experiment_name"])
        self.interval = int(section.get("samples_log_interval", 100))
        self.logged = -math.inf  # number of samples of the last events sent

    def write(self, events: list[Event]) -> None:
        samples = events[0][2]
        if samples - self.logged < self.interval:
            return
        self.logged = samples
        self.experiment.log_metrics({name: value for name, value, _ in events}, step=samples)

    def close(self) -> None:
        self.experiment.end()


KINDS: dict[str, Callable[[Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "csv_monitor": Csv,
    "comet": Comet,
}


class Trackers:
    """The trackers of a config. `enabled`, `write_events` and their arguments are as in
    DeepSpeed."""

    def __init__(self, sections: Mapping[str, Any]) -> None:
        self.trackers: dict[str, Tracker] = {}
        for name, make in KINDS.items():
            section = sections.get(name)
            if isinstance(section, Mapping) and as_flag(section.get("enabled")):
                self._try(name, functools.partial(self._add, name, make, section))

    @property
    def enabled(self) -> bool:
        return bool(self.trackers)

    def _add(
        self,
        name: str,
        make: Callable[[Mapping[str, Any]], Tracker],
        section: Mapping[str, Any],
    ) -> None:
        self.trackers[name] = make(section)

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # foreign packages may raise anything
            self.trackers.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            logging.getLogger("artesian").warning(
                f"{name}: no figures are sent from here on: {reason}; "
                + ("install the package" if isinstance(error, ImportError) else "training goes on")
            )

    def write_events(self, events: list[Event], flush: bool = True) -> None:
        for name, tracker in list(self.trackers.items()) if events else ():
            self._try(name, functools.partial(tracker.write, events))

    def step(self, figures: Mapping[str, Any], samples: int) -> None:
        """Sends one step's figures, under their names in `last_step` and in --log-jsonl."""
        if not self.trackers:
            return
        values = ((NAMES[key], figures.get(key)) for key in NAMES)
        self.write_events(
            [(name, float(value), samples) for name, value in values if value is not None]
        )

    def remove(self) -> None:
        """Closes the trackers when their engine ends. A tracker that was closed earlier, at the
        interpreter's end, has received all figures, so its errors are ignored."""
        for tracker in self.trackers.values():
            with contextlib.suppress(Exception):
                tracker.close()
        self.trackers.clear()


def main() -> None:
    """trackers.py SECTIONS SAMPLES: the config's sections as JSON, and the samples per step."""
    sys.path.pop(0)  # this folder, whose module names would hide other modules
    logging.basicConfig(format="artesian: %(levelname)s: %(message)s")
    logging.addLevelName(logging.WARNING, "warning")
    trackers = Trackers(json.loads(sys.argv[1]))
    samples = int(sys.argv[2])
    for line in sys.stdin:
        figures = json.loads(line)
        trackers.step(figures, figures["step"] * samples)
    trackers.remove()


if __name__ == "__main__":
    main()
