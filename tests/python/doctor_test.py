"""Proves `artesian doctor` on this machine: what a process may not do here, and a folder that is no
disk, are each named with the fix; nothing is left behind, and only what makes training impossible
changes the exit code. tests/tools/doctor_*_test.cpp show it other machines."""

import json
import os
import subprocess

import pytest
from build_folder import ARTESIAN
from limits import AS_NOBODY, descriptors, full_stdout, give, lockable, needs_root
from limits import needs_huge_pages, no_huge_pages, no_huge_pages_for_ever
from limits import refuse_direct, refuse_io_uring

MACHINE = {"kernel", "io_uring", "memory", "memlock", "huge_pages", "descriptors", "processor"}
MACHINE |= {"numa", "cuda_driver", "nccl", "versions"}
pytestmark = pytest.mark.skipif(not ARTESIAN.exists(), reason="artesian is not built")


def doctor(*arguments, before=None, limits=None, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    return subprocess.run(
        [*(before or []), ARTESIAN, "doctor", *arguments],
        env=clean | environment,
        preexec_fn=limits,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def findings(*arguments, code=0, **settings):
    """Returns the findings by name; the last one of each name."""
    done = doctor(*arguments, "--json", "-", **settings)
    assert done.returncode == code, done.stderr + done.stdout
    whole = json.loads(done.stdout)
    worst = max(whole["findings"], key=lambda f: ["ok", "warn", "fail"].index(f["status"]))
    assert whole["status"] == worst["status"]
    for each in whole["findings"]:
        assert each["value"] and each["meaning"], each
        assert bool(each["fix"]) == (each["status"] != "ok"), each
    return {each["name"]: each for each in whole["findings"]}


def test_tells_of_this_machine(tmp_path):
    found = findings("--path", tmp_path)
    assert MACHINE | {"path", "file_system", "direct_io", "free_space"} <= set(found)
    assert found["path"]["subject"] == str(tmp_path)
    assert found["kernel"]["value"] == os.uname().release
    assert "torch 2." in found["versions"]["value"]
    assert list(tmp_path.iterdir()) == []


def test_people_read_lines(tmp_path):
    done = doctor("--path", tmp_path, NCCL_P2P_DISABLE="1")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    position = next(i for i, line in enumerate(lines) if "NCCL_P2P_DISABLE=1" in line)
    assert lines[position].startswith("warn  nccl: ")
    assert lines[position + 1].startswith("      fix: unset NCCL_P2P_DISABLE")
    assert lines[-1].endswith(" fail") and " ok, " in lines[-1]


def test_json_may_be_a_file_beside_the_lines(tmp_path):
    file = tmp_path / "out.json"
    done = doctor("--path", tmp_path, "--json", file)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith(" fail")
    names = [each["name"] for each in json.loads(file.read_text())["findings"]]
    assert names and all(f" {name}" in done.stdout for name in names)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("words", [[], ["--json", "-"]])
def test_a_full_stdout_is_one_error(tmp_path, words):
    full_stdout([ARTESIAN, "doctor", "--path", tmp_path, *words],
                "artesian: error: stdout: cannot write")  # fmt: skip


@needs_root
def test_a_low_limit_of_locked_memory(tmp_path):
    give(tmp_path)
    low = findings("--path", tmp_path, before=AS_NOBODY, limits=lockable(64 << 10))["memlock"]
    assert low["status"] == "warn" and low["value"] == "64.0 KiB"
    assert "ulimit -l" in low["fix"]
    capable = findings("--path", tmp_path, limits=lockable(64 << 10))["memlock"]
    assert capable["status"] == "ok" and "may lock any amount" in capable["value"]


@needs_root
def test_the_fix_of_an_engine_is_that_of_what_refuses_it(tmp_path):
    """If less than a ring may be locked: not all kernels count rings."""
    give(tmp_path)
    low = findings("--path", tmp_path, before=AS_NOBODY, limits=lockable(0))["io_uring"]
    if low["status"] != "ok":
        assert "ulimit -l" in low["value"] and low["fix"].startswith("ulimit -l ")


def test_io_uring_that_a_container_refuses(tmp_path):
    assert findings("--path", tmp_path)["io_uring"]["status"] == "ok"
    refused = findings("--path", tmp_path, limits=refuse_io_uring)["io_uring"]
    assert refused["status"] == "warn" and "seccomp" in refused["value"] + refused["fix"]
    engines = ["libaio", "the thread pool"]  # the second engine if this machine refuses both
    assert any(f"engine auto takes {engine} here" in refused["meaning"] for engine in engines)


@needs_huge_pages
def test_huge_pages_that_a_process_must_not_have(tmp_path):
    allowed = findings("--path", tmp_path, limits=no_huge_pages)["huge_pages"]
    assert "off for what was started here (PR_SET_THP_DISABLE)" in allowed["value"]
    assert "prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)" in allowed["meaning"]
    assert "off for this process" not in allowed["value"]
    off = findings("--path", tmp_path, limits=no_huge_pages_for_ever)["huge_pages"]
    assert off["status"] == "warn" and "off for this process" in off["value"]
    assert "PR_SET_THP_DISABLE" in off["fix"]


def test_direct_io_that_is_refused(tmp_path):
    assert findings("--path", tmp_path)["direct_io"]["status"] == "ok"
    refused = findings("--path", tmp_path, limits=refuse_direct)["direct_io"]
    assert refused["status"] == "warn" and refused["value"].startswith("refused: ")
    assert list(tmp_path.iterdir()) == []


def test_io_settings_of_a_disk_that_was_never_measured(tmp_path):
    found = findings("--path", tmp_path, XDG_CACHE_HOME=str(tmp_path))["io_settings"]
    assert found["value"] == "never measured"
    assert f"aio_bench tune --path {tmp_path}" in found["meaning"]


def test_a_folder_in_memory_is_no_disk():
    found = findings("--path", "/dev/shm")
    assert found["file_system"]["status"] == "warn"
    assert found["file_system"]["value"] == "tmpfs at /dev/shm"
    assert "memory, not a disk" in found["file_system"]["meaning"]
    # one cause is reported in one line
    assert not {"disk", "direct_io", "io_settings"} & set(found)


def test_a_folder_that_cannot_be_made_is_a_failure(tmp_path):
    found = findings("--path", tmp_path / "no/parent", code=1)["path"]
    assert found["status"] == "fail" and found["fix"].startswith("mkdir -p ")
    new = findings("--path", tmp_path / "new")["path"]
    assert new["status"] == "ok" and list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert findings("--path", tmp_path / "file", code=1)["path"]["value"] == "not a folder"


@needs_root
def test_a_folder_of_somebody_else_is_a_failure(tmp_path):
    found = findings("--path", tmp_path, code=1, before=AS_NOBODY)["path"]
    assert found["status"] == "fail" and "Permission denied" in found["value"]


def test_each_of_several_folders_is_looked_at(tmp_path):
    done = doctor("--path", tmp_path, "--path", tmp_path / "no/parent", "--json", "-")
    paths = [f for f in json.loads(done.stdout)["findings"] if f["name"] == "path"]
    assert [f["status"] for f in paths] == ["fail", "ok"] and done.returncode == 1


def test_few_descriptors(tmp_path):
    found = findings("--path", tmp_path, limits=descriptors(64))["descriptors"]
    assert (found["status"], found["value"]) == ("warn", "64")


def test_each_variable_that_switches_a_path_of_nccl_off(tmp_path):
    done = doctor("--path", tmp_path, "--json", "-", NCCL_P2P_DISABLE="1", NCCL_IB_DISABLE="1")
    lines = [f for f in json.loads(done.stdout)["findings"] if f["name"] == "nccl"]
    assert [f["value"] for f in lines] == ["NCCL_P2P_DISABLE=1", "NCCL_IB_DISABLE=1"]
    assert {f["status"] for f in lines} == {"warn"} and done.returncode == 0


def test_the_file_of_nccl_is_read(tmp_path):
    file = tmp_path / "nccl"
    file.write_text("NCCL_NET=Socket\n")
    done = doctor("--path", tmp_path, "--json", "-", NCCL_CONF_FILE=str(file))
    lines = [f for f in json.loads(done.stdout)["findings"] if f["name"] == "nccl"]
    assert f"NCCL_NET=Socket, in {file}" in [f["value"] for f in lines]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--pth", "."], "--pth: got an unknown flag"),
        (["--path"], "--path: got no value"),
        (["--path", ""], '--path: got "", allowed a folder'),
        (["--json", "no/such/out"], '--json: got "no/such/out", allowed - or a file in a folder'),
        (["--json", ""], '--json: got ""'),
        (["--json", "-", "--json", "-"], "--json: given twice"),
        (["."], "got an unknown argument"),
    ],
)
def test_refuses(arguments, words):
    done = doctor(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("artesian: error: ") and words in line
