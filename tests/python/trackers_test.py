"""Proves that the config's sections for trackers take effect, from Python and from `artesian
train`: the files of csv_monitor, and what stand-ins of wandb, comet_ml and tensorboard are given;
and that a tracker that is missing, raises or dies is one warning and costs no step."""

import csv
import json
import logging
import sys
import types

import pytest
import small_models
import torch
from small_models import artesian
from train_cli_test import ENVIRONMENT, place, pytestmark  # noqa: F401

from artesian.trackers import Trackers

STAND_IN = """
import json

class Run:
    def __init__(self, options):
        self.write({"init": options})
    def write(self, line):
        with open("PATH", "a") as file:
            file.write(json.dumps(line) + "\\n")
    def log(self, figures, step=None):
        self.write({"step": step, **figures})
    def finish(self):
        self.write("finish")

def init(**options):
    return Run(options)
"""


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def engine_of(**sections):
    model = torch.nn.Linear(4, 1)
    config = small_models.config_for(train_micro_batch_size_per_gpu=2, **sections)
    return artesian.initialize(model=model, config=config)[0]


def train(engine, steps):
    for _ in range(steps):
        engine.backward(engine(torch.ones(2, 4)).mean())
        engine.step()
    engine.destroy()


def test_an_engine_writes_csv_files_by_samples(tmp_path):
    engine = engine_of(
        csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "job"},
        optimizer={"type": "AdamW", "params": {"lr": 5e-4}},
    )
    assert engine.monitor.enabled
    train(engine, 3)
    rates = rows_of(tmp_path / "job" / "Train_Samples_lr.csv")
    assert rates == [["step", "lr"], *([str(2 * step), "0.0005"] for step in (1, 2, 3))]
    losses = rows_of(tmp_path / "job" / "Train_Samples_train_loss.csv")
    assert len(losses) == 4 and float(losses[3][1]) < float(losses[1][1])
    assert not engine.monitor.enabled  # ended with the engine


def test_nothing_is_sent_unless_it_is_enabled(tmp_path):
    engine = engine_of(csv_monitor={"enabled": False, "output_path": str(tmp_path)})
    assert not engine.monitor.enabled
    train(engine, 1)
    assert list(tmp_path.iterdir()) == []


class Recorder:
    """A package that writes down what it is asked."""

    def __init__(self, **options):
        self.options, self.calls, self.ended = options, [], False

    def log_metrics(self, figures, step):
        self.calls.append((step, figures))

    def add_scalar(self, name, value, step):
        self.calls.append((step, {name: value}))

    def set_name(self, name):
        self.options["name"] = name

    def flush(self):
        pass

    def end(self):
        self.ended = True

    close = end


def test_comet_and_tensorboard_get_what_deepspeed_gives_them(tmp_path, monkeypatch):
    made = []

    def make(**options):
        made.append(Recorder(**options))
        return made[-1]

    monkeypatch.setitem(sys.modules, "comet_ml", types.SimpleNamespace(start=make))
    board = types.SimpleNamespace(SummaryWriter=make)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    trackers = Trackers(
        {
            "comet": {"enabled": True, "project": "p", "experiment_name": "e", "online": "false",
                      "samples_log_interval": 10},
            "tensorboard": {"enabled": True, "output_path": str(tmp_path), "job_name": "board"},
        }
    )  # fmt: skip
    for step in range(1, 5):
        trackers.step({"loss": 1.0 / step, "lr": 0.1, "grad_norm": None}, step * 4)
    trackers.remove()
    board, comet = made
    assert (tmp_path / "board").is_dir() and board.options == {"log_dir": str(tmp_path / "board")}
    assert board.calls[:2] == [
        (4, {"Train/Samples/train_loss": 1.0}),
        (4, {"Train/Samples/lr": 0.1}),
    ]
    assert len(board.calls) == 8 and board.ended
    assert comet.options["project"] == "p" and comet.options["name"] == "e"
    assert comet.options["online"] is False
    assert [step for step, _ in comet.calls] == [4, 16] and comet.ended


def test_a_tracker_that_is_missing_or_raises_is_one_warning(monkeypatch, caplog):
    class Failing(Recorder):
        def log(self, figures, step):
            raise RuntimeError("the network\nis gone")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=Failing))
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with caplog.at_level(logging.WARNING, "artesian"):
        engine = engine_of(wandb={"enabled": True}, comet={"enabled": True})
        train(engine, 3)
    said = [record.message for record in caplog.records if "no figures are sent" in record.message]
    assert len(said) == 2 and all("\n" not in line for line in said)
    assert said[0].startswith("comet: ") and said[0].endswith("; install the package")
    assert said[1].startswith("wandb: ") and "the network is gone" in said[1]


@pytest.fixture
def wandb(place, monkeypatch):  # noqa: F811
    """A package of that name for `artesian train`'s Python; the file that it writes."""
    told = place.folder / "wandb.jsonl"
    packages = place.folder / "packages"
    packages.mkdir()
    (packages / "wandb.py").write_text(STAND_IN.replace("PATH", str(told)))
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(packages))
    return packages / "wandb.py", told


def enable(place, folder):  # noqa: F811
    def change(config):
        config["wandb"] = {"enabled": True, "project": "wells", "team": "we"}
        config["csv_monitor"] = {"enabled": True, "output_path": str(folder)}

    return place.write_config(change)


def test_artesian_train_sends_each_step(place, wandb, tmp_path):  # noqa: F811
    steps = place.trained(config=enable(place, tmp_path), steps=4, micro_batch=3)
    begun, *logged, end = lines_of(wandb[1])
    assert begun == {"init": {"project": "wells", "group": None, "entity": "we"}}
    assert end == "finish" and [line["step"] for line in logged] == [3, 6, 9, 12]
    for key, name in {"loss": "train_loss", "lr": "lr", "grad_norm": "grad_norm"}.items():
        expected = [step[key] for step in steps]
        assert [line[f"Train/Samples/{name}"] for line in logged] == expected
        rows = rows_of(tmp_path / "DeepSpeedJobName" / f"Train_Samples_{name}.csv")
        assert [float(value) for _, value in rows[1:]] == expected


@pytest.mark.parametrize("fault", ["import os; os._exit(3)", "raise ValueError('no key')"])
def test_a_tracker_that_fails_costs_no_step_of_train(place, wandb, tmp_path, fault):  # noqa: F811
    wandb[0].write_text(fault)
    done = place.run(config=enable(place, tmp_path), steps=40, log_jsonl=place.log)
    assert done.returncode == 0 and len(place.steps()) == 40
    (line,) = [line for line in done.stderr.splitlines() if "no figures are sent" in line]
    assert line.startswith("artesian: warning: "), line
    assert "no key" in line or "trackers: " in line
