"""Proves how bench/tune_check.py judges, by an aio_bench of our own making: whose grid has its best
at blocks of 1 MiB, whose tune chooses what it is told, and whose rates are known."""

import json
import pathlib
import stat
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "tune_check.py"
MADE_UP = """#!{python}
import json, sys
words = sys.argv[1:]
def after(flag):
    return words[words.index(flag) + 1]
def settings(block):
    return {{"block_size": block, "queue_depth": 8, "intra_op_parallelism": 2,
            "single_submit": True, "overlap_events": False}}
assert after("--path") == "{folder}" and after("--json") == "-"
if words[0] == "tune":
    block = 1 << 20 if "--exhaustive" in words else {chosen}
    print(json.dumps({{"aio": settings(block), "engine": "threads", "points": [0] * 7,
                      "warnings": ["warm"]}}))
else:
    assert after("--queue-depth") == "8" and after("--threads") == "2"
    assert after("--engine") == "threads"
    assert "--single-submit" in words and "--no-overlap-events" in words
    rate = {{"read": 4.0, "write": 2.0, "mixed": 2.0}}[after("--op")]
    print(json.dumps({{"gb_per_s": rate * (1 if after("--block-size") == "1048576" else {share})}}))
"""


@pytest.mark.parametrize(
    ("chosen", "share", "passes"),
    [(2 << 20, 0.98, True), (2 << 20, 0.96, False), (2 << 20, 1.1, True), (1 << 20, 0.5, True)],
)
def test_tune_must_be_within_three_percent(tmp_path, chosen, share, passes):
    program = tmp_path / "aio_bench"
    text = MADE_UP.format(python=sys.executable, folder=tmp_path, chosen=chosen, share=share)
    program.write_text(text)
    program.chmod(stat.S_IRWXU)
    command = [sys.executable, SCRIPT, "--path", tmp_path, "--program", program, "--pairs", "3"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == (0 if passes else 1), done.stderr
    got = json.loads(done.stdout)
    assert got["passed"] is passes and got["grid_points"] == 7 and got["warnings"] == ["warm"]
    assert got["scores"]["grid"] == pytest.approx([2.4] * 3)  # harmonic mean of 4, 2 and 2
    expected = 1 if chosen == 1 << 20 else share
    assert got["tune / grid"]["median"] == pytest.approx(expected)
    assert got["settings"]["tune"]["block_size"] == chosen
