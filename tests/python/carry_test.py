"""Proves dev/carry.sh: the folder that it makes is small and has all that CMake searches for, and
other folders are untouched. Downloads 2 MB from the mirror that apt-get uses; skipped if there is
none."""

import os
import pathlib
import platform
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def carry(*arguments, folder=None, **environment):
    return subprocess.run(
        [ROOT / "dev/carry.sh", *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("carry") / "prefix"
    # as the docs describe: beside an existing folder
    done = carry(folder.name, folder=folder.parent)
    if "apt-get download failed" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return folder


def needed_packages():
    lines = (ROOT / "dev/packages.txt").read_text().splitlines()
    words = [line.split() for line in lines if not line.startswith("#")]
    names = {name for kind, name in words if kind == "build" and name.endswith("-dev")}
    return names - {"python3-dev"}


def test_is_small_and_names_what_it_holds(prefix):
    carried = {line.split()[0] for line in (prefix / "carried.txt").read_text().splitlines()}
    assert needed_packages() | {"libaio-dev"} <= carried
    size = sum(p.lstat().st_size for p in prefix.rglob("*") if p.is_file() and not p.is_symlink())
    assert size < 50 << 20
    headers = ("libaio.h", "liburing.h", "xxhash.h", "hwy/highway.h", "fmt/core.h", "gtest/gtest.h")
    for header in headers:
        assert (prefix / "include" / header).exists(), header
    assert all(link.exists() for link in prefix.rglob("*")), "a link leads nowhere"


def test_cmake_finds_everything_in_it_alone(prefix, tmp_path):
    """The system's own folders are not searched: whatever CMake finds, it finds in the prefix."""
    command = ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", "-DARTESIAN_TORCH=OFF"]
    command += ["-DARTESIAN_CUDA=OFF", f"-DCMAKE_PREFIX_PATH={prefix}"]
    command += ["-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "CMakeCache.txt").read_text().splitlines()
    entries = dict(line.split(":", 1) for line in lines if ":" in line and line[0] not in "#/")
    names = [n for n in entries if n.startswith("ARTESIAN_") and n.endswith(("_LIBRARY", "_DIR"))]
    names = [n for n in names if "TORCH" not in n]
    names += ["GTest_DIR", "nlohmann_json_DIR", "CLI11_INCLUDE_DIR"]
    assert len(names) >= 11
    if platform.machine() == "x86_64":  # the library that chooses the instruction set
        assert entries["ARTESIAN_XXHASH_DISPATCH"].endswith("=1")
    for name in names:
        assert entries[name].split("=", 1)[1].startswith(str(prefix)), (name, entries[name])


def test_is_made_anew_in_its_own_place(prefix):
    (prefix / "include/stale.h").write_text("")
    done = carry(prefix)
    if "apt-get download failed" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert not (prefix / "include/stale.h").exists()
    assert [p.name for p in prefix.parent.iterdir()] == [prefix.name]


def test_leaves_the_folder_of_somebody_else_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    done = carry(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"carry: error: {tmp_path}: got a folder with other things in it")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "b", "c"], ["--help"], [""]])
def test_takes_one_folder(arguments):
    done = carry(*arguments)
    assert done.returncode == 2
    assert "allowed one folder" in done.stderr


def test_says_what_apt_get_said(tmp_path):
    fake = tmp_path / "bin/apt-get"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'E: no such release' >&2\nexit 100\n")
    fake.chmod(0o755)
    done = carry(tmp_path / "prefix", PATH=f"{fake.parent}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert "E: no such release" in done.stderr
    assert "apt-get update" in done.stderr.splitlines()[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]
