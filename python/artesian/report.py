"""artesian report: makes a page with plots of a run from the steps.jsonl of `artesian train`.

    artesian report steps.jsonl [MORE.jsonl ...] --out report.html

Several logs share the plots. The page is one file with embedded plots, drawn by matplotlib.
`artesian report` runs this file as a program.
"""

from __future__ import annotations

import argparse
import datetime
import html
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

Steps = list[dict[str, Any]]

STYLE = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 72em; margin: 2em auto;
padding: 0 1em; color: #1c2733 }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 1.6em 0 .2em }
p { margin: .2em 0; color: #51606e } svg { max-width: 100%; height: auto }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .25em 1em .25em 0;
text-align: left; border-bottom: 1px solid #dde3e8 } td { font-variant-numeric: tabular-nums }"""


def fail(message: str, code: int = 2) -> NoReturn:
    print(f"artesian: error: report: {message}", file=sys.stderr)
    sys.exit(code)


def read_log(path: str) -> Steps:
    steps = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    step = json.loads(line)
                except ValueError:
                    step = None
                if not isinstance(step, dict) or "step" not in step:
                    fail(f"{path}: got line {number}, which is of no step; allowed a file that "
                         "`artesian train --log-jsonl` has written")  # fmt: skip
                steps.append(step)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path}: {getattr(error, 'strerror', None) or error}")
    if not steps:
        fail(f"{path}: got no steps, allowed 1 and more")
    return steps


def value_of(step: dict[str, Any], path: str) -> float:
    value: Any = step
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return math.nan if value is None else float(value)


def column(steps: Steps, path: str) -> list[float]:
    return [value_of(step, path) for step in steps]


def finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def mean(values: list[float]) -> float:
    known = finite(values)
    return sum(known) / len(known) if known else math.nan


def size_text(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def running(values: list[float]) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value if math.isfinite(value) else 0.0
        sums.append(total)
    return sums


def summary(name: str, steps: Steps) -> list[tuple[str, str]]:
    losses = finite(column(steps, "loss"))
    seconds = finite(column(steps, "step_s"))
    written = sum(finite(column(steps, "bytes.nvme_write")))
    hours = sum(seconds) / 3600
    skipped = sum(bool(step.get("overflow")) for step in steps)
    rows = [
        ("log", name),
        (
            "steps",
            f"{steps[0]['step']} to {steps[-1]['step']}" + (f", {skipped} skipped" * (skipped > 0)),
        ),
        ("loss, first to last", f"{losses[0]:.4f} to {losses[-1]:.4f}" if losses else "none"),
        ("seconds a step", f"{mean(seconds):.3f}"),
        ("tokens a second", f"{mean(column(steps, 'tokens_per_s')):.0f}"),
        ("read from NVMe a step", size_text(mean(column(steps, "bytes.nvme_read")))),
        ("written to NVMe a step", size_text(mean(column(steps, "bytes.nvme_write")))),
        ("written to NVMe in all", size_text(written)),
    ]
    if hours > 0:
        rows.append(("at this rate, written a day", size_text(written / hours * 24)))
    held_out = finite(column(steps, "eval_loss"))
    if held_out:
        rows.append(("held-out loss, first to last", f"{held_out[0]:.4f} to {held_out[-1]:.4f}"))
    return rows


TIMES = {  # seconds of computing and of waiting in a step
    "forward": "time_s.forward", "backward": "time_s.backward", "gradients": "time_s.gradients",
    "casts": "time_s.casts", "optimizer": "time_s.optimizer",
    "waits for parameters": "wait_s.param", "waits for gradients": "wait_s.grad",
    "waits for inputs": "wait_s.input",
}  # fmt: skip
BYTES = {
    "NVMe read": "bytes.nvme_read", "NVMe written": "bytes.nvme_write",
    "host to device": "bytes.h2d", "device to host": "bytes.d2h",
}  # fmt: skip
PEAKS = {
    "device tier": "peak.device", "host tier": "peak.host", "activations": "peak.activations",
    "whole process": "peak.process_rss",
}  # fmt: skip


UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3}
BINARY_UNITS = {"GiB": 2.0**30, "MiB": 2.0**20}


def largest(logs: dict[str, Steps], paths: dict[str, str]) -> float:
    values = [v for steps in logs.values() for path in paths.values() for v in column(steps, path)]
    return max(finite(values), default=0.0)


def unit_for(value: float, units: dict[str, float]) -> str:
    """The largest unit in which the value is at least one, else the smallest."""
    return next((unit for unit, size in units.items() if value >= size), list(units)[-1])


def short_names(logs: dict[str, Steps]) -> dict[str, Steps]:
    """Short names for a legend: those of the files, or numbered if these are equal."""
    files = [os.path.splitext(os.path.basename(path))[0] for path in logs]
    named = [name if len(name) <= 12 else f"{name[:11]}\u2026" for name in files]
    if len(set(named)) < len(named):
        named = [f"log {number}" for number in range(1, len(logs) + 1)]
    return dict(zip(named, logs.values(), strict=True))


def draw_lines(
    axes: Any, logs: dict[str, Steps], paths: dict[str, str], scale: float = 1.0
) -> None:
    for name, steps in logs.items():
        x = column(steps, "step")
        for label, path in paths.items():
            values = [value * scale for value in column(steps, path)]
            if not finite(values) or (len(paths) > 2 and not any(finite(values))):
                continue
            points = [(a, b) for a, b in zip(x, values, strict=True) if math.isfinite(b)]
            text = label if len(logs) == 1 else f"{name}: {label}"
            axes.plot(
                *zip(*points, strict=True),
                label=text,
                linewidth=1.2,
                marker="." if len(points) < 40 else None,
            )


def draw_loss(axes: Any, logs: dict[str, Steps]) -> None:
    draw_lines(axes, logs, {"loss": "loss", "held-out loss": "eval_loss"})
    axes.set_ylabel("loss")


def draw_rate(axes: Any, logs: dict[str, Steps]) -> None:
    draw_lines(axes, logs, {"learning rate": "lr"})
    axes.set_ylabel("learning rate")


def draw_norm(axes: Any, logs: dict[str, Steps]) -> None:
    draw_lines(axes, logs, {"gradient norm": "grad_norm"})
    axes.set_ylabel("norm before clipping")


def draw_times(axes: Any, logs: dict[str, Steps]) -> None:
    """Draws the first log's parts of a step, stacked, and beside them the whole step, in which
    parts overlap."""
    steps = next(iter(logs.values()))
    parts = {label: [v if math.isfinite(v) else 0.0 for v in column(steps, path)]
             for label, path in TIMES.items()}  # fmt: skip
    parts = {label: values for label, values in parts.items() if max(values) > 0}
    if parts:
        axes.stackplot(
            column(steps, "step"), *parts.values(), labels=list(parts), alpha=0.75, linewidth=0
        )
    axes.plot(
        column(steps, "step"), column(steps, "step_s"), color="black", linewidth=1.2, label="step"
    )
    axes.set_ylabel("seconds")


def draw_bytes(axes: Any, logs: dict[str, Steps]) -> None:
    unit = unit_for(largest(logs, BYTES), UNITS)
    draw_lines(axes, logs, BYTES, 1 / UNITS[unit])
    axes.set_ylabel(f"{unit} a step")


def draw_wear(axes: Any, logs: dict[str, Steps]) -> None:
    sums = {name: running(column(steps, "bytes.nvme_write")) for name, steps in logs.items()}
    unit = unit_for(max(values[-1] for values in sums.values()), UNITS)
    for name, steps in logs.items():
        written = [value / UNITS[unit] for value in sums[name]]
        axes.plot(column(steps, "step"), written, label=name, linewidth=1.2)
    axes.set_ylabel(f"{unit} written")


def draw_memory(axes: Any, logs: dict[str, Steps]) -> None:
    unit = unit_for(largest(logs, PEAKS), BINARY_UNITS)
    draw_lines(axes, logs, PEAKS, 1 / BINARY_UNITS[unit])
    axes.set_ylabel(unit)


PICTURES: list[tuple[str, str, Callable[[Any, dict[str, Steps]], None]]] = [
    ("Loss", "Mean over the micro-batches of a step.", draw_loss),
    ("Learning rate", "", draw_rate),
    ("Gradient norm", "Before clipping.", draw_norm),
    ("Step time by kind", "Stacked: what a step computes and waits for. Parts that overlap add up "
     "to more than the step, the black line.", draw_times),
    ("Bytes by tier", "What a step moves.", draw_bytes),
    ("Disk wear", "Bytes written to NVMe since the log began. Compare with the endurance (TBW) "
     "that the disk's maker states.", draw_wear),
    ("Memory", "Peaks.", draw_memory),
]  # fmt: skip


def pictures(logs: dict[str, Steps]) -> Iterator[tuple[str, str, str]]:
    """Yields titles, explanations and SVGs."""
    import matplotlib  # type: ignore[import-not-found]

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "artesian", "font.size": 9, "axes.grid": True,
                            "grid.alpha": 0.3, "axes.spines.top": False,
                            "axes.spines.right": False})  # fmt: skip
    logs = short_names(logs)
    numbers = [number for steps in logs.values() for number in finite(column(steps, "step"))]
    for title, text, draw in PICTURES:
        figure = pyplot.figure(figsize=(10.5, 2.8))
        # the same for all plots, so that steps are aligned
        axes = figure.add_axes((0.075, 0.17, 0.675, 0.79))
        draw(axes, logs)
        if min(numbers) < max(numbers):
            axes.set_xlim(min(numbers), max(numbers))
        axes.set_xlabel("step")
        if draw is not draw_loss:
            axes.set_ylim(bottom=min(0, axes.dataLim.y0))
        if draw is draw_times and len(logs) > 1:
            text += f' The log drawn is "{html.escape(next(iter(logs)))}".'
        handles, _ = axes.get_legend_handles_labels()
        if len(handles) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
        svg = out.getvalue()
        yield title, text, svg[svg.index("<svg") :]


def page(logs: dict[str, Steps]) -> str:
    columns = [dict(summary(name, steps)) for name, steps in logs.items()]
    labels = list(dict.fromkeys(label for each in columns for label in each))
    rows = "".join(
        f"<tr><th>{label}</th>"
        + "".join(f"<td>{html.escape(each.get(label, ''))}</td>" for each in columns)
        + "</tr>"
        for label in labels
    )
    body = "".join(f"<h2>{title}</h2><p>{text}</p>{svg}" for title, text, svg in pictures(logs))
    title = html.escape(", ".join(logs))
    today = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Artesian: {title}</title>"
        f"<style>{STYLE}</style><h1>Training report</h1>"
        f"<p>Made on {today} by artesian report.</p>"
        f"<table>{rows}</table>{body}</html>\n"
    )


def main() -> None:
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        sys.path.pop(0)  # this folder, whose module names would hide other modules
    parser = argparse.ArgumentParser(
        prog="artesian report", description="Draws the steps of a run as one HTML page."
    )
    parser.add_argument("logs", nargs="+", metavar="STEPS.jsonl", help="of train --log-jsonl")
    parser.add_argument("--out", required=True, metavar="FILE.html", help="the page; replaced")
    given = parser.parse_args()
    if os.path.realpath(given.out) in map(os.path.realpath, given.logs):
        fail(f"--out: got {given.out}, which is the log, allowed another file")
    logs = {path: read_log(path) for path in given.logs}
    try:
        text = page(logs)
    except ImportError as error:
        fail(f"{error}; install it: {sys.executable} -m pip install matplotlib; or set "
             "ARTESIAN_PYTHON to a Python that has it", 1)  # fmt: skip
    try:
        with open(given.out, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fail(f"--out: cannot write {given.out}: {error.strerror}", 1)
    print(f"artesian: report: {given.out}, {len(text)} bytes")


if __name__ == "__main__":
    main()
