"""Proves that `artesian train` destroys nothing that it is to read: an output that is one of its
inputs, or the other output, is refused by whatever name before anything is opened; and that outputs
which are no files go on working. And what the trace and the line on a terminal show."""

import contextlib
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from train_cli_test import ENVIRONMENT, TEXT, errors_of, place, pytestmark  # noqa: F401


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"log_jsonl": "text.txt"}, "--log-jsonl: got the file of --data"),
        ({"log_jsonl": "hard.txt"}, "--log-jsonl: got the file of --data"),
        ({"trace": "./config-0.json"}, "--trace: got the file of --config"),
        ({"log_jsonl": "model/model.safetensors"}, "model.safetensors, a file of --model"),
        ({"trace": "soft.json"}, "/model/config.json, a file of --model"),
        ({"data": "texts", "trace": "texts/deep/a.txt"}, "a.txt, a file of --data"),
        ({"log_jsonl": "out", "save": "out"}, "--log-jsonl: got the file of --save"),
        ({"trace": "a", "log_jsonl": "a"}, "--trace: got the file of --log-jsonl, allowed another"),
        ({"trace": "a", "log_jsonl": "./a"}, "--trace: got the file of --log-jsonl"),
        ({"trace": "model/../a", "log_jsonl": "a"}, "--trace: got the file of --log-jsonl"),
    ],
)  # fmt: skip
def test_an_output_that_is_read_is_refused(place, flags, expected):
    (place.model / "model.safetensors").write_bytes(b"weights")
    (place.folder / "texts" / "deep").mkdir(parents=True)
    (place.folder / "texts" / "deep" / "a.txt").write_text(TEXT)
    (place.folder / "soft.json").symlink_to("model/config.json")
    (place.folder / "hard.txt").hardlink_to(place.data)
    before = contents(place.folder)
    assert expected in errors_of(place.run(**flags), 2)
    assert contents(place.folder) == before


def test_outputs_that_are_no_files_may_be_one(place):
    result = place.run("--quiet", log_jsonl="/dev/null", trace="/dev/null")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = place.run("--quiet", log_jsonl="/dev/stdout", steps=3)
    assert result.returncode == 0 and result.stdout.count('{"step":') == 3
    os.mkfifo(place.folder / "pipe")
    reader = subprocess.Popen([sys.executable, "-c", "print(open('pipe').read())"],
                              cwd=place.folder, stdout=subprocess.PIPE, text=True)  # fmt: skip
    result = place.run("--quiet", log_jsonl="pipe", steps=2)
    assert (result.returncode, result.stderr) == (0, "")
    assert reader.communicate(timeout=60)[0].count('{"step":') == 2


def shown_on_a_terminal(command, columns):
    """All that the command writes to a terminal of so many columns, which its stderr is."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while block := os.read(ours, 4096):
            shown += block
    os.close(ours)
    assert process.wait(60) == 0, shown
    return shown.decode()


@pytest.mark.parametrize("columns", [40, 60, 300])
def test_the_progress_line_fits_the_terminal_and_notes_do_not_stick_to_it(place, columns):
    def change(config):
        config["fp16"] = {"enabled": True, "initial_scale_power": 20, "hysteresis": 1}

    shown = shown_on_a_terminal(place.words(config=place.write_config(change), steps=8), columns)
    lines = [part.split("\r\n")[0] for part in shown.split("\r\033[K")]
    drawn = [line for line in lines if line.startswith("step ")]
    assert drawn and all(len(line) < columns for line in drawn)
    assert all("  loss " in line for line in drawn)
    assert any("  device " in line for line in drawn) == (columns == 300)
    notes = [match.start() for match in re.finditer("artesian: note: step", shown)]
    assert notes
    assert all(shown[:at].endswith(("\r\033[K", "\n")) for at in notes)


def test_a_terminal_sees_how_much_of_a_checkpoint_is_copied(place):
    words = place.words(steps=2, checkpoint_dir=place.folder / "saved")
    shown = shown_on_a_terminal(words, 80)
    percents = [int(percent) for percent in re.findall(r"saving step 2: (\d+)%", shown)]
    assert percents == sorted(percents) and percents[-1] == 100


def test_trace_is_chrome_json_with_named_lanes_and_steps(place):
    steps = place.trained(steps=3, accumulation=2, trace=place.folder / "trace.json")
    events = json.loads((place.folder / "trace.json").read_text())["traceEvents"]
    named = {kind: {} for kind in ["process_name", "thread_name", "process_sort_index"]}
    for event in events:
        if event["ph"] == "M":
            named[event["name"]][event["pid"], event.get("tid")] = event["args"]
    lanes = {pid: args["name"] for (pid, _), args in named["process_name"].items()}
    order = sorted(named["process_sort_index"].items(), key=lambda item: item[1]["sort_index"])
    assert [lanes[pid] for (pid, _), _ in order] == [
        "step", "compute", "optimizer", "to device", "to host", "NVMe read", "NVMe write", "wait",
    ]  # fmt: skip
    spans = [event for event in events if event["ph"] == "X"]
    assert {lanes[span["pid"]] for span in spans} == set(lanes.values())
    assert all(span["dur"] >= 0 and span["ts"] >= 0 and span["name"] for span in spans)
    for span in spans:
        assert named["thread_name"][span["pid"], span["tid"]]["name"].startswith(lanes[span["pid"]])
    marks = [span for span in spans if lanes[span["pid"]] == "step"]
    assert [mark["name"] for mark in marks] == ["step 1", "step 2", "step 3"]
    for mark, step in zip(marks, steps, strict=True):
        assert mark["args"]["step"] == step["step"] and mark["args"]["micro_batches"] == 2
        assert mark["args"]["loss"] == pytest.approx(step["loss"], rel=1e-5)
    assert "predicted_s" not in marks[0]["args"]  # nothing to go by yet
    assert marks[0]["ts"] + marks[0]["dur"] <= marks[1]["ts"] + 1
    waits = {span["name"] for span in spans if lanes[span["pid"]] == "wait"}
    assert waits <= {f"wait: {what}" for what in ["parameters", "gradients", "optimizer state"]}


def test_item_13_the_log_may_be_stdout(place):
    result = place.run(steps=3, log_jsonl="-")
    assert result.returncode == 0, result.stderr
    steps = [json.loads(line)["step"] for line in result.stdout.splitlines()]
    assert steps == [1, 2, 3]
    assert "Training, 3 steps" in result.stderr  # the table makes room
    assert not (place.folder / "-").exists()


def test_item_13_a_dtype_of_the_save_wants_a_save(place):
    line = errors_of(place.run(save_dtype="fp32"), 2)
    assert line == ("artesian: error: --save-dtype: got no --save, allowed it with a folder to "
                    "save to; add --save DIR")  # fmt: skip
