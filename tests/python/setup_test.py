"""Proves dev/setup.sh without network or installing anything: the programs it calls are fakes,
first on PATH; python3 writes into a log what it was asked to make."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOW_TORCH = ["sh", "-c", "echo $ARTESIAN_TORCH_DIR"]

FAKES = {
    "dpkg-query": 'case "$*" in *" $FAKE_MISSING") exit 1 ;; esac; printf installed',
    "id": "echo 1000",
    "sudo": "exit 1",
    "df": 'printf "head\\nfs 0 0 %s 0%% /\\n" "${FAKE_FREE_MIB:-99999}"',
    "python3": """
if [ "$1" = --version ]; then echo "Python 3.11.7"; exit; fi
echo venv >>"$FAKE_LOG"
mkdir -p "$3/bin" "$3/lib/python3.11/site-packages/torch"
printf '#!/bin/sh\\necho pip >>"$FAKE_LOG"; sleep 0.3; exit "$FAKE_PIP_CODE"\\n' >"$3/bin/python3"
chmod +x "$3/bin/python3"
""",
}


class Sandbox:
    def __init__(self, folder):
        self.folder = folder
        self.log = folder / "log"
        (folder / "bin").mkdir()
        for name, body in FAKES.items():
            program = folder / "bin" / name
            program.write_text("#!/bin/sh\n" + body + "\n")
            program.chmod(0o755)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "FAKE_LOG": str(self.log),
            "FAKE_PIP_CODE": "0",
            "FAKE_MISSING": "none",
        }

    def start(self, *command, **changes):
        return subprocess.Popen(
            [ROOT / "dev/setup.sh", *command],
            env=self.environment | changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command, **changes):
        """Returns (exit code, stdout, last line of stderr)."""
        process = self.start(*command, **changes)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, (errors.splitlines() or [""])[-1]

    def made_environments(self):
        return self.log.read_text().count("venv") if self.log.exists() else 0

    def torch(self, version):
        folder = self.folder / f"torch-{version}"
        (folder / "lib").mkdir(parents=True)
        (folder / "lib/libtorch_cpu.so").touch()
        (folder / "version.py").write_text(f"__version__ = '{version}+cu130'\n")
        return folder


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def test_command_runs_with_the_environment_and_stdout_is_its_own(sandbox):
    code, output, _ = sandbox.run("sh", "-c", "echo $ARTESIAN_TORCH_DIR; command -v python3")
    torch, python = output.split()
    assert code == 0
    assert torch.startswith(f"{sandbox.folder}/.cache/artesian/env-")
    assert python == torch.replace("lib/python3.11/site-packages/torch", "bin/python3")


def test_exit_code_is_the_commands(sandbox):
    assert sandbox.run("sh", "-c", "exit 7")[0] == 7


def test_environment_is_reused(sandbox):
    assert sandbox.run("true")[0] == 0
    assert sandbox.run("true")[0] == 0
    assert sandbox.made_environments() == 1


def test_two_at_once_make_one_environment(sandbox):
    processes = [sandbox.start("true") for _ in range(2)]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    assert sandbox.made_environments() == 1


def test_failed_install_leaves_nothing_and_is_tried_again(sandbox):
    code, _, message = sandbox.run("true", FAKE_PIP_CODE="1")
    assert code == 2 and "pip could not install" in message
    assert not list((sandbox.folder / ".cache/artesian").glob("env-*/"))
    assert sandbox.run("true")[0] == 0
    assert sandbox.made_environments() == 2


def test_full_disk_is_refused_before_the_download(sandbox):
    code, _, message = sandbox.run("true", FAKE_FREE_MIB="100")
    assert code == 2 and "100 MiB free" in message and "XDG_CACHE_HOME" in message
    assert sandbox.made_environments() == 0


def test_missing_package_is_named(sandbox):
    code, _, message = sandbox.run("true", FAKE_MISSING="libhwy-dev")
    assert code == 2
    assert message.endswith("run: apt-get install --no-install-recommends libhwy-dev")


def test_missing_ccache_is_no_reason_to_stop(sandbox):
    assert sandbox.run("true", FAKE_MISSING="ccache")[0] == 0


def test_without_fio_benches_run_all_the_same(sandbox):
    assert sandbox.run("--with", "bench", "true", FAKE_MISSING="fio")[0] == 0


CLASSES = [("clang-format-14", "checks"), ("clang", "fuzz")]


@pytest.mark.parametrize(("package", "wanted_by"), CLASSES)
def test_packages_of_a_class_are_wanted_by_it_alone(sandbox, package, wanted_by):
    assert sandbox.run("true", FAKE_MISSING=package)[0] == 0
    for words in [("checks",), ("fuzz",), ("checks", "--with", "fuzz")]:
        code, _, message = sandbox.run("--with", *words, "true", FAKE_MISSING=package)
        assert code == (2 if wanted_by in words else 0)
        assert code == 0 or message.endswith(" " + package)


@pytest.mark.parametrize("name", ["", "nonsense"])
def test_an_unknown_class_is_refused(sandbox, name):
    code, _, message = sandbox.run("--with", name, "true")
    assert code == 2 and f'--with: got "{name}", allowed' in message


def test_own_torch_is_used(sandbox):
    torch = sandbox.torch("2.15.1")
    code, output, _ = sandbox.run(*SHOW_TORCH, ARTESIAN_TORCH_DIR=str(torch))
    assert (code, output.strip()) == (0, str(torch))
    (link,) = sandbox.folder.glob(".cache/artesian/env-*/lib/python*/site-packages/user_torch.pth")
    assert link.read_text().strip() == str(sandbox.folder)


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "3.0.0"])
def test_unsupported_torch_is_refused(sandbox, version):
    torch = sandbox.torch(version)
    code, _, message = sandbox.run("true", ARTESIAN_TORCH_DIR=str(torch))
    assert code == 2
    assert f'ARTESIAN_TORCH_DIR: {torch}: got version "{version}", allowed 2.11 to 2.15' in message


def test_torch_of_the_active_environment_is_used(sandbox):
    packages = sandbox.folder / "mine/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    sandbox.torch("2.12.0").rename(packages / "torch")
    code, output, _ = sandbox.run(*SHOW_TORCH, VIRTUAL_ENV=str(sandbox.folder / "mine"))
    assert (code, output.strip()) == (0, str(packages / "torch"))


def test_item_4_the_tokenising_module_is_in_the_environment(sandbox):
    assert sandbox.run("true")[0] == 0
    (module,) = sandbox.folder.glob(".cache/artesian/env-*/lib/python3*/site-packages/*.py")
    assert module.read_bytes() == (ROOT / "python/artesian_tokenize.py").read_bytes()
    module.write_text("of an older clone")
    assert sandbox.run("true")[0] == 0
    assert module.read_bytes() == (ROOT / "python/artesian_tokenize.py").read_bytes()
    assert sorted(os.listdir(module.parent)) == [module.name, "torch"]
