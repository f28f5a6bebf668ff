"""Proves what a user of `aio_bench tune` sees: that what it prints, writes and applies agrees; that
each fault is named before it starts; that nothing is left behind."""

import json
import os
import pty
import re
import signal
import subprocess
import tempfile
import xml.etree.ElementTree

import limits
import pytest
from aio_bench_place import cache, folder, stop_while_measuring  # noqa: F401
from build_folder import AIO_BENCH as PROGRAM
from build_folder import ARTESIAN, ROOT

KEYS = ["block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events"]
FIELDS = ["aio", "engine", "polling", "read", "write", "mixed", "head_to_head", "over_defaults",
          "paths", "points", "size", "direct", "verified", "seconds", "warnings"]  # fmt: skip
SMALL = ["--size", "16MiB", "--budget-seconds", "0.6"]
SVG = "{http://www.w3.org/2000/svg}"


def tune(folder, *arguments, prefix=(), **options):
    command = [*prefix, PROGRAM, "tune", "--path", folder, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def tuned(folder, *arguments, **options):
    """Returns the JSON and the stderr lines of a run that must succeed."""
    result = tune(folder, *SMALL, "--json", "-", *arguments, **options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr.splitlines()


def refused(folder, *arguments):
    result = tune(folder, *arguments)
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all(line.startswith("aio_bench: error: ") for line in lines), lines
    return lines


def check_aio(section):
    assert list(section) == KEYS
    assert all(type(section[key]) is int for key in KEYS[:3])
    assert all(type(section[key]) is bool for key in KEYS[3:])
    assert section["block_size"] % 4096 == 0


def test_json_has_what_is_promised_and_agrees_with_itself(folder, cache):
    got, lines = tuned(folder)
    assert list(got) == FIELDS
    check_aio(got["aio"])
    assert got["size"] == 16 << 20 and got["verified"] is True and got["seconds"] > 0
    for operation in ["read", "write", "mixed"]:
        rates = got[operation]
        assert 0 < rates["min"] <= rates["gb_per_s"] <= rates["max"]
        assert rates["repeats"] >= 7
        assert rates["lat_us"]["p50"] <= rates["lat_us"]["p95"] <= rates["lat_us"]["p99"]
    duel = got["head_to_head"]
    assert duel["pairs"] >= 7 and 0 < duel["min"] <= duel["ratio"] <= duel["max"]
    chosen = got["aio"] | {"engine": got["engine"]}
    points = [{key: point[key] for key in chosen} for point in got["points"]]
    assert chosen in points and len(points) >= 6
    assert len({json.dumps(point) for point in points}) == len(points)
    assert any(line.startswith("aio_bench: note: reference, about ") for line in lines)
    assert any(line.startswith("aio_bench: note: head to head, about ") for line in lines)


def test_profile_is_saved_for_the_planner(folder, cache):
    got, lines = tuned(folder)
    (path,) = got["paths"]
    (saved,) = [found for found in cache.rglob("*") if found.is_file()]
    assert path["profile"] == str(saved) and saved.parent == cache / "artesian"
    assert f"aio_bench: note: machine profile: {saved}" in lines
    profile = json.loads(saved.read_text())
    assert profile["format"] == "artesian machine profile" and profile["version"] == 1
    assert profile["path"] == str(folder) and profile["file_system"] == path["file_system"]
    assert profile["duplex"] is path["duplex"]
    # The planner reads the profile, so the profile must agree with what was printed.
    at_chosen = {point["op"]: point for point in path["by_block_size"]
                 if point["block_size"] == got["aio"]["block_size"]}  # fmt: skip
    (chosen,) = [point for point in got["points"]
                 if all(point[key] == got["aio"][key] for key in KEYS)
                 and point["engine"] == got["engine"]]  # fmt: skip
    for operation in ["read", "write", "mixed"]:
        rate = got[operation]
        place = {"block_size": got["aio"]["block_size"], "op": operation}
        assert at_chosen[operation] == place | rate
        assert chosen[f"{operation}_gb_per_s"] == rate["gb_per_s"]
    in_turn = 2 / sum(1 / got[operation]["gb_per_s"] for operation in ["read", "write"])
    at_once = 2 * min(got[operation]["gb_per_s"] for operation in ["read", "write"])
    assert profile["duplex"] is (got["mixed"]["gb_per_s"] > (in_turn + at_once) / 2)
    assert all(point["repeats"] >= 3 for point in path["by_block_size"])
    assert all(point["min"] <= point["gb_per_s"] <= point["max"] for point in path["by_block_size"])
    assert profile["queue_depth"] == got["aio"]["queue_depth"]
    shares = {"read": 1, "write": 0, "mixed": 0.5}
    assert profile["rates"] == [
        {"block_size": point["block_size"], "read_share": shares[point["op"]],
         "gb_per_s": point["gb_per_s"]}
        for point in path["by_block_size"]
    ]  # fmt: skip
    assert len(profile["rates"]) >= 3
    assert profile["size"] == 16 << 20 and profile["budget_seconds"] == 0.6
    _, lines = tuned(folder)  # replaces the profile
    assert [found for found in cache.rglob("*") if found.is_file()] == [saved]
    was = f"in place of that of {profile['measured_at']}: block_size "
    assert any(f"machine profile: {saved}, {was}" in line for line in lines)


def test_a_profile_of_a_longer_run_is_kept_unless_told_otherwise(folder, cache):
    tuned(folder)
    (saved,) = [found for found in cache.rglob("*") if found.is_file()]
    before = saved.read_text()
    for less in [["--size", "8MiB"], ["--budget-seconds", "0.3"]]:
        words = dict(zip(SMALL[::2], SMALL[1::2])) | dict([less])
        arguments = [word for pair in words.items() for word in pair]
        result = tune(folder, *arguments, "--json", "-")
        got = json.loads(result.stdout)
        assert saved.read_text() == before and got["paths"][0]["profile"] == ""
        assert any(f"{saved} is kept, as it is of a longer run" in line for line in got["warnings"])
        assert "--replace-profile puts this run's in its place" in result.stderr
    result = tune(folder, *arguments, "--replace-profile")
    assert result.returncode == 0 and f"machine profile: {saved}, in place of" in result.stderr
    assert saved.read_text() != before
    before = saved.read_text()
    got, lines = tuned(folder, "--no-profile")
    assert saved.read_text() == before and got["paths"][0]["profile"] == ""
    assert not any("machine profile" in line for line in lines)
    (line,) = refused(folder, "--no-profile", "--replace-profile")
    assert "contradiction: --replace-profile" in line


def test_a_profile_that_cannot_be_saved_is_a_warning(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    got, lines = tuned(folder)
    assert any("the machine profile is not saved" in line for line in lines)
    assert any("the machine profile is not saved" in line for line in got["warnings"])
    assert got["paths"][0]["profile"] == ""


def test_text_and_files(folder, tmp_path):
    target, config = tmp_path / "out.json", tmp_path / "aio.json"
    result = tune(folder, *SMALL, "--json", target, "--config-out", config)
    assert result.returncode == 0, result.stderr
    got = json.loads(target.read_text())
    assert json.loads(config.read_text()) == {"aio": got["aio"]}
    assert result.stdout.startswith(config.read_text())
    lines = result.stdout.removeprefix(config.read_text()).splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["read", "write", "mixed"]
    aio = got["aio"]
    worth = rf"{block_name(aio['block_size'])} blocks, depth {aio['queue_depth']}, .*" \
            rf"{got['engine']}.*; {got['over_defaults']:.2f} x the defaults; \d\.\d\d x the next "
    assert re.match(worth, lines[-1]), lines[-1]
    noise = got["head_to_head"]["min"] <= 1 <= got["head_to_head"]["max"]
    assert lines[-1].endswith(": within noise)") == noise
    for line, operation in zip(lines, ["read", "write", "mixed"]):
        assert f"{got[operation]['gb_per_s']:.3f} GB/s" in line


def test_several_paths_are_measured_together_and_alone(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for each in folders:
        each.mkdir()
    got, _ = tuned(",".join(map(str, folders)))
    assert [path["path"] for path in got["paths"]] == list(map(str, folders))
    assert all(len(path["by_block_size"]) >= 3 for path in got["paths"])
    assert got["verified"] is True
    assert all(list(each.iterdir()) == [] for each in folders)


def test_a_folder_is_named_once_and_one_disk_is_a_warning(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (tmp_path / "link").symlink_to(one)
    for twice in [one, f"{one}/", tmp_path / "link"]:
        (line,) = refused(f"{one},{twice}", *SMALL)
        assert f"contradiction: --path: got {one} and {twice} are one folder, allowed" in line
    got, lines = tuned(f"{one},{other}")
    text = f"{one} and {other} are on one disk, "
    assert any(text in warning for warning in got["warnings"])
    assert any(text in line and "they share its speed" in line for line in lines)
    assert len({path["profile"] for path in got["paths"] if path["profile"]}) == 1


def test_exhaustive_measures_every_setting(folder):
    # Blocks of 128 KiB to 1 MiB, and at most 4 MiB in flight; files of 8 MiB.
    arguments = ["--size", "8MiB", "--budget-seconds", "0.3", "--exhaustive", "--json", "-"]
    result = tune(folder, *arguments)
    assert result.returncode == 0, result.stderr
    points = json.loads(result.stdout)["points"]
    found = {(point["block_size"], point["queue_depth"]) for point in points}
    for block in [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20]:
        for depth in [1, 2, 4, 8, 16, 32, 64, 128]:
            assert ((block, depth) in found) == (block * depth <= 4 << 20), (block, depth)


# --apply

CONFIG = """{
  "train_batch_size": 1, // of one sample
  "aio": {"queue_depth": 999, /* ours */ "thread_count": 7},
}
"""


def test_apply_changes_the_aio_section_alone_and_keeps_a_backup(folder, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text(CONFIG)
    got, lines = tuned(folder, "--apply", config)
    after = config.read_text()
    aio = got["aio"]
    assert (tmp_path / "ds.json.bak").read_text() == CONFIG
    assert f'"aio": {{"queue_depth": {aio["queue_depth"]}, /* ours */ "intra_op_para' in after
    assert after.startswith('{\n  "train_batch_size": 1, // of one sample\n')
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", after).replace("},\n}", "}\n}")
    section = json.loads(plain)["aio"]
    assert section == aio
    assert any("what it was is in" in line and "ds.json.bak" in line for line in lines)
    assert any("removed aio.thread_count, which DeepSpeed does not read" in line for line in lines)


def test_apply_writes_the_engine_where_the_config_names_another(folder, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text('{"artesian": {"engine": "threads"}}')
    got, lines = tuned(folder, "--apply", config)
    allowed = {got["engine"]} if got["engine"] == "threads" else {got["engine"], "auto"}
    assert json.loads(config.read_text())["artesian"]["engine"] in allowed
    assert any(f"to those of {got['engine']}; what it was" in line for line in lines)


@pytest.mark.skipif(not ARTESIAN.exists(), reason="not built")
def test_artesian_reads_what_was_applied(folder, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text((ROOT / "examples" / "demo.json").read_text())
    before = json.loads(config.read_text())
    got, _ = tuned(folder, "--apply", config)
    after = json.loads(config.read_text())
    expected = before | {"aio": got["aio"]}
    if got["engine"] != "io_uring":  # the engine that "auto" takes
        expected["artesian"] = expected.get("artesian", {}) | {"engine": got["engine"]}
    assert after == expected

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "gpt2", "vocab_size": 300, "n_positions": 64, "n_embd": 8, "n_layer": 1,'
        ' "n_head": 1, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
    )

    def train():
        # The data does not exist, and the error must be about the data, not about the config.
        command = [ARTESIAN, "train", "--model", model, "--data",
                   tmp_path / "none", "--config", config, "--steps", "1"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2
        return done.stderr

    assert "aio" not in train()
    config.write_text(config.read_text().replace('"queue_depth": ', '"queue_depth": -'))
    assert "aio.queue_depth" in train()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{\"a\": }", "line 1, column 7"),
        ("[]", "allowed an object"),
        ("{\"aio\": 7}", "aio: got 7"),
        ("{\"a\": 1, \"a\": 2}", "a: given twice"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_edited_is_refused(folder, tmp_path, text, expected):
    config = tmp_path / "ds.json"
    config.write_text(text)
    (line,) = refused(folder, "--apply", config)
    assert "cannot be edited: --apply" in line and expected in line
    assert config.read_text() == text and not (tmp_path / "ds.json.bak").exists()


# --plot


def numbers_of(svg):
    """Returns the numbers in the tips of a plot: series and place -> number."""
    tips = [title.text for title in svg.iter(SVG + "title")]
    return {name: value for name, _, value in (tip.rpartition(": ") for tip in tips if ": " in tip)}


def block_name(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_plot_has_the_numbers_of_the_json_and_nothing_from_outside(folder, tmp_path, kind):
    target = tmp_path / f"plot.{kind}"
    got, _ = tuned(folder, "--plot", target)
    text = target.read_text()
    assert text.count("http") == 1 and "xmlns=\"http://www.w3.org/2000/svg\"" in text
    assert "<script" not in text and "@import" not in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text
    root = xml.etree.ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    svg = root if kind == "svg" else root.find(f"body/{SVG}svg")
    numbers = numbers_of(svg)
    for point in got["paths"][0]["by_block_size"]:
        place = block_name(point["block_size"])
        assert numbers[f"{point['op']}, {place}"] == f"{point['gb_per_s']:.3f} GB/s"
        if point["op"] == "read":
            for percentile in ["p50", "p95", "p99"]:
                assert numbers[f"{percentile}, {place}"] == f"{point['lat_us'][percentile]:.0f} us"
    depths = [point for point in got["points"]
              if point["engine"] == got["engine"]
              and all(point[key] == got["aio"][key] for key in KEYS if key != "queue_depth")]
    assert depths
    for point in depths:
        key = f"mixed, depth {point['queue_depth']}"
        assert numbers[key] == f"{point['mixed_gb_per_s']:.3f} GB/s"
    assert f"read {got['read']['gb_per_s']:.3f}, write" in text
    assert any(element.get("class") == "chosen" for element in svg.iter())
    if kind == "html":
        assert len(list(root.iter("tr"))) == 1 + len(got["points"])


def test_plot_of_a_path_with_odd_letters(tmp_path):
    folder = tmp_path / "a<b>&\"c\" \u00e9"
    folder.mkdir()
    target = tmp_path / "plot.svg"
    tuned(folder, "--plot", target)
    svg = xml.etree.ElementTree.parse(target).getroot()
    assert any(str(folder) in (text.text or "") for text in svg.iter(SVG + "title"))


def test_plot_of_a_long_path_says_all_that_matters_inside_its_edges(tmp_path):
    folder = tmp_path / ("a-long-name-" * 12) / ("\u00e9" * 80) / "last"
    folder.mkdir(parents=True)
    target = tmp_path / "plot.svg"
    got, _ = tuned(folder, "--plot", target)
    svg = xml.etree.ElementTree.parse(target).getroot()
    texts = [text.text or "" for text in svg.iter(SVG + "text")]
    (shown,) = [text for text in texts if text.startswith(str(folder)[:30])]
    assert shown.endswith("\u00e9/last") and "\u2026" in shown and len(shown) <= 110
    (facts,) = [text for text in texts if "reads and writes at once " in text]
    assert facts.startswith(got["paths"][0]["file_system"])
    ways = ["do not slow each other", "share the bandwidth"]
    assert any(facts.endswith(way) for way in ways)
    assert max(map(len, texts)) <= 150  # characters of 11 pixels in a width of 960
    assert any(text.text == str(folder) for text in svg.iter(SVG + "title"))


# Failures


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--size", "0"], "--size"),
        (["--size", "1M"], "wrong value: --size: got 1.00 MiB, allowed 8 MiB"),
        (["--size", "1000T"], "not enough free space: --size"),
        (["--budget-seconds", "0"], "--budget-seconds"),
        (["--budget-seconds", "a minute"], "--budget-seconds: got \"a minute\""),
        (["--json", "/does/not/exist.json"], "cannot write there: --json"),
        (["--config-out", "/does/not/exist.json"], "cannot write there: --config-out"),
        (["--config-out", "-"], "cannot write there: --config-out: got \"-\", allowed a file"),
        (["--plot", "/does/not/exist.svg"], "cannot write there: --plot"),
        (["--plot", "plot.png"], "--plot: got \"plot.png\", allowed a file whose name ends in"),
        (["--apply", "/does/not/exist.json"], "--apply"),
        (["--engine", "threads"], "--engine: got an unknown flag"),
    ],
)  # fmt: skip
def test_faults_are_named_before_the_start(folder, arguments, expected):
    assert expected in refused(folder, *arguments)[0]


@pytest.mark.parametrize("path", ["/does/not/exist", "{folder},/does/not/exist", "{folder},"])
def test_every_path_must_be_there(folder, path):
    (line,) = refused(path.format(folder=folder))
    assert "no such directory: --path" in line


def test_a_path_is_needed():
    result = subprocess.run([PROGRAM, "tune"], capture_output=True, text=True)
    assert result.returncode == 2 and "missing flag: --path" in result.stderr


@limits.needs_root
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    result = tune(tmp_path, *SMALL, prefix=limits.AS_NOBODY)
    assert result.returncode == 2
    assert "cannot write there: --path" in result.stderr


def test_a_full_disk_is_one_line(folder):
    result = tune(folder, *SMALL, preexec_fn=limits.file_size(1 << 20))
    assert result.returncode in (1, 2)
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    assert len(errors) == 1 and "File too large" in errors[0] and str(folder) in errors[0]


def test_results_that_cannot_be_written_are_an_error(folder, tmp_path):
    result = tune(folder, *SMALL, "--config-out", "/dev/full")
    assert result.returncode == 1
    assert "aio_bench: error: cannot write: /dev/full" in result.stderr


def test_a_full_stdout_is_one_error(folder):
    limits.full_stdout([PROGRAM, "tune", "--path", folder, *SMALL],
                       "aio_bench: error: stdout: cannot write")  # fmt: skip


def test_memory_is_no_disk(cache):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no writable /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        got, lines = tuned(shared)
    assert got["direct"] is False
    assert any("tmpfs is memory, not a disk" in warning for warning in got["warnings"])
    assert any("O_DIRECT is not available" in warning for warning in got["warnings"])
    assert any("tmpfs is memory, not a disk" in line for line in lines)
    assert not any("--size of more than" in line for line in lines), "it would fill the memory"


@limits.needs_huge_pages
def test_buffers_on_small_pages_are_a_warning(folder):
    got, lines = tuned(folder, preexec_fn=limits.no_huge_pages_for_ever)
    assert any(warning.startswith("of 32.0 MiB of buffers 0 B are on 2 MiB pages")
               for warning in got["warnings"]), got["warnings"]  # fmt: skip
    told = [line for line in lines if "(PR_SET_THP_DISABLE, inherited" in line]
    assert len(told) == 1 and told[0].startswith("aio_bench: warning: "), lines
    allowed, lines = tuned(folder, preexec_fn=limits.no_huge_pages)
    assert not any("PR_SET_THP_DISABLE" in line for line in lines), lines


@limits.needs_root
def test_little_lockable_memory_is_a_warning(folder, cache):
    limits.give(folder)
    cache.mkdir()
    limits.give(cache)
    got, lines = tuned(folder, prefix=limits.AS_NOBODY, preexec_fn=limits.lockable(64 << 10))
    assert any("ulimit -l" in warning for warning in got["warnings"])
    assert sum("ulimit -l" in line for line in lines) == 1
    assert got["verified"] is True


@pytest.mark.parametrize("polling", ["sqpoll", "both"])
def test_polling_is_measured_and_applied_as_far_as_it_took_effect(folder, tmp_path, polling):
    config = tmp_path / "ds.json"
    config.write_text("{}")
    got, lines = tuned(folder, "--polling", polling, "--apply", config)
    if got["engine"] == "io_uring":
        reason = any("refused" in line or "cannot be polled" in line for line in lines)
        assert (got["polling"] == polling) != reason
    else:
        assert got["polling"] == "off"
    ours = json.loads(config.read_text()).get("artesian", {})
    assert ours.get("polling", "off") == got["polling"]


def test_without_io_uring_the_others_are_tuned(folder, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text("{}")
    got, _ = tuned(folder, "--apply", config, preexec_fn=limits.refuse_io_uring)
    assert got["engine"] != "io_uring"
    # "auto" then takes libaio
    written = {"artesian": {"engine": "threads"}} if got["engine"] == "threads" else {}
    assert json.loads(config.read_text()) == {"aio": got["aio"]} | written
    assert any("io_uring is left out" in warning for warning in got["warnings"])


# Runs that are stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_nothing_behind(folder, tmp_path, cache, number):
    config = tmp_path / "ds.json"
    config.write_text(CONFIG)
    command = [PROGRAM, "tune", "--path", folder, "--size", "16MiB", "--apply", config]
    output, errors = stop_while_measuring(command, number)
    assert output == "" and "error" not in errors
    said = "aio_bench: note: stopped; nothing was changed"
    assert (said in errors) == (number != signal.SIGKILL)
    assert config.read_text() == CONFIG
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds.json", "nvme"]


def test_a_terminal_sees_a_bar_and_the_time_left(folder):
    controller, terminal = pty.openpty()
    command = [PROGRAM, "tune", "--path", folder, *SMALL, "--json", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the other end of the pipe is closed
            break
        seen += piece
    output, _ = process.communicate(timeout=60)
    os.close(controller)
    assert process.returncode == 0 and list(json.loads(output)) == FIELDS
    text = seen.decode(errors="replace")
    assert re.search(r"\r\[#+\.*\] +\d+% +\d+ s left  head to head  \d", text)
