"""Proves that `artesian report` draws the log of a run as one page that needs nothing else,
with its figures; and that logs which are none, a page that cannot be written and a Python without
matplotlib are one line each."""

import json
import os
import re
import subprocess
import sys

import pytest
from train_cli_test import ENVIRONMENT, PROGRAM, place, pytestmark  # noqa: F401

pytest.importorskip("matplotlib")
# Its Python finds matplotlib where ours does.
WITH_US = {**os.environ, "ARTESIAN_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}


def report(*words, environment=WITH_US):
    return subprocess.run([PROGRAM, "report", *map(str, words)], capture_output=True, text=True,
                          env=environment, timeout=300)  # fmt: skip


def test_a_run_is_one_page(place, tmp_path):  # noqa: F811
    steps = place.trained("--eval-data", place.data, "--eval-every", 2, steps=6)
    page = tmp_path / "report.html"
    done = report(place.log, "--out", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count("<svg") == 7 and text.rstrip().endswith("</html>")
    assert not re.search(r'(src|href)="(?!#)', text)  # nothing is fetched
    table = text[text.index("<table>") : text.index("</table>")]
    assert f"{steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f}" in table and "1 to 6" in table
    assert f"{steps[1]['eval_loss']:.4f} to {steps[5]['eval_loss']:.4f}" in table
    assert re.search("<!-- [KM]B written -->", text)  # not 0.0 TB
    places = re.findall(r'<clipPath id="\w+">\s*<rect x="(.*?)" .*?width="(.*?)"', text)
    assert len(places) >= 7 and len(set(places)) == 1  # steps are below one another
    for title in ("Loss", "Step time by kind", "Bytes by tier", "Disk wear"):
        assert f"<h2>{title}</h2>" in text


def test_logs_are_drawn_over_one_another_and_odd_steps_too(tmp_path):
    first, second = tmp_path / "a&b.jsonl", tmp_path / "b.jsonl"
    first.write_text(json.dumps({"step": 1, "loss": None, "overflow": True}) + "\n")
    lines = [json.dumps({"step": step, "loss": 1 / step, "step_s": 1}) for step in (1, 2)]
    second.write_text("\n".join(lines) + "\n")
    done = report(first, second, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    assert "a&amp;b.jsonl" in text and "1 skipped" in text
    assert 'The log drawn is "a&amp;b".' in text


def test_what_cannot_be_drawn_is_one_line(place, tmp_path):  # noqa: F811
    out = tmp_path / "page.html"
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"step": 1}\n{"step"')
    for log, said in {
        tmp_path / "none.jsonl": "No such file",
        broken: "got line 2, which is of no step",
        place.data: "got line 1, which is of no step",
    }.items():
        done = report(log, "--out", out)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2 and said in line
        assert line.startswith("artesian: error: report: ")
    broken.write_text('{"step": 1}\n')
    assert report(broken, "--out", broken).returncode == 2 and broken.read_text() == '{"step": 1}\n'
    done = report(broken, "--out", tmp_path / "no" / "page.html")
    assert done.returncode == 1 and "cannot write" in done.stderr
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ImportError('no matplotlib')")
    environment = {**WITH_US, "PYTHONPATH": os.pathsep.join([str(hidden), *sys.path])}
    done = report(broken, "--out", out, environment=environment)
    assert done.returncode == 1 and "pip install matplotlib" in done.stderr and not out.exists()
    without = {**ENVIRONMENT, "ARTESIAN_PYTHON": str(tmp_path / "nowhere")}
    done = report(broken, "--out", out, environment=without)
    assert done.returncode == 2 and "ARTESIAN_PYTHON" in done.stderr
