"""Proves what `artesian report` reckons of a log and gives its pictures, and what each tracker is
handed, without matplotlib and without any tracker's package."""

import io
import json
import logging
import math
import sys
import types

import pytest
import small_models  # noqa: F401 the package, before its sources

from artesian import report, trackers

STEPS = [
    {"step": 3, "loss": 4.0, "step_s": 2.0, "tokens_per_s": 100, "overflow": False,
     "bytes": {"nvme_read": 3_000_000, "nvme_write": 1_000_000}, "lr": 0.1, "grad_norm": 1.0},
    {"step": 4, "loss": math.nan, "step_s": 4.0, "tokens_per_s": 50, "overflow": True,
     "bytes": {"nvme_read": 1_000_000, "nvme_write": 3_000_000}, "eval_loss": 3.5},
    {"step": 5, "loss": 3.0, "step_s": 3.0, "eval_loss": 3.25},
]  # fmt: skip


def test_what_a_report_reckons():
    assert dict(report.summary("a.jsonl", STEPS)) == {
        "log": "a.jsonl", "steps": "3 to 5, 1 skipped", "loss, first to last": "4.0000 to 3.0000",
        "seconds a step": "3.000", "tokens a second": "75", "read from NVMe a step": "2 MB",
        "written to NVMe a step": "2 MB", "written to NVMe in all": "4 MB",
        "at this rate, written a day": "38.4 GB",
        "held-out loss, first to last": "3.5000 to 3.2500",
    }  # fmt: skip
    bare = dict(report.summary("b", [{"step": 1}]))
    assert (bare["steps"], bare["loss, first to last"]) == ("1 to 1", "none")
    assert "at this rate, written a day" not in bare
    assert "held-out loss, first to last" not in bare
    sizes = [999, 1000, 1.5e6, 2e9, 999e9, 3e12, 5e15]
    assert [report.size_text(size) for size in sizes] == [
        "999 bytes", "1 KB", "1.5 MB", "2 GB", "999 GB", "3 TB", "5e+03 TB",
    ]  # fmt: skip
    assert report.running([1.0, math.nan, 2.0]) == [1.0, 1.0, 3.0]
    assert report.mean([1.0, math.nan, 3.0]) == 2.0 and math.isnan(report.mean([]))
    assert report.value_of(STEPS[0], "bytes.nvme_read") == 3e6
    assert math.isnan(report.value_of(STEPS[0], "bytes.none"))
    assert math.isnan(report.value_of(STEPS[0], "loss.none"))


class Axes:
    """A stand-in of matplotlib's Axes that records what a report draws."""

    def __init__(self):
        self.lines, self.stacks, self.label = [], [], None

    def plot(self, x, y, label=None, marker=None, **_):
        self.lines.append((label, list(x), list(y), marker))

    def stackplot(self, x, *values, labels, **_):
        self.stacks.append((x, values, labels))

    def set_ylabel(self, label):
        self.label = label


def test_what_a_report_draws():
    def drawn(draw, logs):
        axes = Axes()
        draw(axes, logs)
        return axes

    one, two = {"a": STEPS}, {"a": STEPS, "b": STEPS[:1]}
    loss = drawn(report.draw_loss, one)
    assert loss.label == "loss"
    assert loss.lines == [("loss", [3, 5], [4.0, 3.0], "."),
                          ("held-out loss", [4, 5], [3.5, 3.25], ".")]  # fmt: skip
    labels = [line[0] for line in drawn(report.draw_loss, two).lines]
    assert labels == ["a: loss", "a: held-out loss", "b: loss"]
    many = {"a": [{"step": n, "loss": 1.0} for n in range(40)]}
    assert drawn(report.draw_loss, many).lines[0][3] is None
    assert drawn(report.draw_rate, one).lines == [("learning rate", [3], [0.1], ".")]
    assert drawn(report.draw_norm, one).lines == [("gradient norm", [3], [1.0], ".")]
    moved = drawn(report.draw_bytes, one)
    assert moved.label == "MB a step"
    assert moved.lines[0][:3] == ("NVMe read", [3, 4], [3.0, 1.0])
    wear = drawn(report.draw_wear, one)
    assert wear.lines[0][2] == pytest.approx([1, 4, 4]) and wear.label == "MB written"
    peaks = {"a": [{"step": 1, "peak": {"device": 2**31, "host": 0}}]}
    memory = drawn(report.draw_memory, peaks)
    assert memory.label == "GiB" and memory.lines == [("device tier", [1], [2.0], ".")]
    timed = {"a": [{"step": 1, "step_s": 5.0, "time_s": {"forward": 2.0, "casts": 0.0}}]}
    times = drawn(report.draw_times, timed)
    assert times.stacks == [([1.0], ([2.0],), ["forward"])] and times.lines[0][0] == "step"
    assert drawn(report.draw_times, one).stacks == []
    for draw, label in ((report.draw_rate, "learning rate"), (report.draw_times, "seconds"),
                        (report.draw_norm, "norm before clipping")):  # fmt: skip
        assert drawn(draw, one).label == label


def test_a_log_that_cannot_be_read_is_one_line(tmp_path, capsys):
    log = tmp_path / "log"
    for text, reason in (('{"step": 1}\n{"x": 1}\n', "got line 2, which is of no step"),
                         ("[1]\n", "got line 1"), ("x\n", "got line 1"),
                         ("", "got no steps, allowed 1 and more")):  # fmt: skip
        log.write_text(text)
        with pytest.raises(SystemExit) as end:
            report.read_log(str(log))
        assert end.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith(f"artesian: error: report: {log}: ") and reason in error
    with pytest.raises(SystemExit):
        report.read_log(str(tmp_path / "none"))
    assert "No such file" in capsys.readouterr().err
    log.write_text(json.dumps(STEPS[0]) + "\n")
    assert report.read_log(str(log)) == STEPS[:1]


def test_what_trackers_are_handed(tmp_path, monkeypatch):
    given = []

    class Writer:
        def __init__(self, log_dir):
            given.append(log_dir)

        def add_scalar(self, *event):
            given.append(event)

        def flush(self):
            given.append("flush")

        def close(self):
            given.append("close")

    board = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    section = {"enabled": "true", "output_path": str(tmp_path), "job_name": "job"}
    sent = trackers.Trackers({"tensorboard": section, "csv_monitor": {"enabled": False}})
    assert sent.enabled and list(sent.trackers) == ["tensorboard"]
    sent.step({"loss": 2, "lr": None, "other": 1}, 24)
    sent.write_events([])
    sent.remove()
    folder = str(tmp_path / "job")
    assert given == [folder, ("Train/Samples/train_loss", 2.0, 24), "flush", "close"]
    assert not sent.enabled
    assert trackers.folder_of({"output_path": str(tmp_path)}).endswith("/DeepSpeedJobName")
    names = ["loss", "lr", "loss_scale", "grad_norm", "step_s", "eval_loss"]
    assert list(trackers.NAMES) == names
    assert [trackers.as_flag(value) for value in ("true", "false", "x", True)] == [
        True, False, "x", True,
    ]  # fmt: skip


def test_wandb_and_comet_get_their_options(monkeypatch):
    given = []
    ended = types.SimpleNamespace(
        log=lambda values, step: given.append((values, step)),
        log_metrics=lambda values, step: given.append((values, step)),
        finish=lambda: given.append("finish"),
        end=lambda: given.append("end"),
        set_name=lambda name: given.append(name),
    )

    def begin(**options):
        given.append(options)
        return ended

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=begin))
    monkeypatch.setitem(sys.modules, "comet_ml", types.SimpleNamespace(start=begin))
    run_ = trackers.Wandb({"team": "t", "group": "g"})
    run_.write([("a", 1.0, 5), ("b", 2.0, 5)])
    run_.close()
    assert given == [{"project": "deepspeed", "group": "g", "entity": "t"},
                     ({"a": 1.0, "b": 2.0}, 5), "finish"]  # fmt: skip
    given.clear()
    comet = trackers.Comet({"online": "false", "experiment_name": "n", "samples_log_interval": 10})
    for samples in (5, 14, 15, 24, 25):
        comet.write([("a", 1.0, samples)])
    comet.close()
    assert given[0]["online"] is False and set(given[0]) == set(trackers.Comet.OPTIONS)
    assert given[1] == "n" and [each[1] for each in given[2:-1]] == [5, 15, 25]
    assert given[-1] == "end"
    assert trackers.Comet({}).interval == 100


def test_the_trackers_program_reads_a_line_for_each_step(tmp_path, monkeypatch):
    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    words = ["trackers.py", json.dumps({"csv_monitor": section}), "4"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "path", ["/first", *sys.path])
    lines = '{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    trackers.main()
    assert "/first" not in sys.path
    logging.addLevelName(logging.WARNING, "WARNING")
    written = (tmp_path / "job" / "Train_Samples_train_loss.csv").read_text()
    assert written.split() == ["step,train_loss", "4,2.0", "8,1.0"]
