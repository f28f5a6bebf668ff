"""Proves that yesterday's launch line runs: the wheel artesian-deepspeed, installed into an
environment with Artesian, has the commands `deepspeed` and `ds_report`, and every process of that
environment finds Artesian where it looks for DeepSpeed. Several processes of a machine are
started together; what asks for several machines, or for files that are not there, is one line and
exit code 2."""

import json
import os
import subprocess
import sys
import sysconfig

import hf
import pytest
import trainer_test
from build_folder import BUILD, ROOT, free_port

from artesian import launcher


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment's folder after `pip install dist/*.whl`; the package itself and its
    dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    dist = subprocess.run(
        [sys.executable, ROOT / "dev" / "deepspeed_wheel.py", folder / "dist"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    own = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    python = own / "bin" / "python"
    site = next((own / "lib").glob("python*")) / "site-packages"
    others = [sysconfig.get_path("purelib"), str(BUILD / "python"), hf.FOLDER]
    (site / "a.pth").write_text("\n".join(others))
    (site / "artesian.pth").symlink_to(ROOT / "python" / "artesian.pth")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", dist], check=True)
    return own


@pytest.fixture
def run(environment, tmp_path):
    """Runs a program of the environment without any variable of ours."""

    def start(program, *words, code=0, **variables):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ARTESIAN", "PYTHON"))}
        clean |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(
            [environment / "bin" / program, *map(str, words)],
            cwd=tmp_path, env=clean, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return start


SCRIPT = """
import os, sys, json
import importlib.metadata, importlib.util
assert importlib.metadata.version("deepspeed") == "0.19.8"
assert importlib.util.find_spec("deepspeed").origin == "artesian"
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]))
sys.exit(int(sys.argv[-1]))
"""


def test_a_script_is_started_as_deepspeed_starts_it(run, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["--num_gpus=1", "--master_port", "1234", "script.py", "--num_gpus", "8", "3"]
    given, variables = json.loads(run("deepspeed", *words, code=3).stdout)
    assert given == ["--local_rank=0", "--num_gpus", "8", "3"]
    assert variables == {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234",
    }  # fmt: skip
    done = run("deepspeed", "--no_local_rank", "--module", "--save_pid", "script", "0")
    assert json.loads(done.stdout)[0] == ["0"]
    assert done.stderr == "deepspeed: note: --save_pid: no effect\n"
    assert run("deepspeed", "--no_python", "--no_local_rank", "echo", "--x").stdout == "--x\n"
    variables = json.loads(run("python", "script.py", "0").stdout)[1]  # also without the command
    assert variables["RANK"] is None
    words = ["--num_gpus=2", "--master_port", str(free_port()), "script.py", "a b", "0"]
    two = run("deepspeed", *words)
    said = sorted(map(json.loads, two.stdout.splitlines()))
    assert [given for given, _ in said] == [[f"--local_rank={n}", "a b", "0"] for n in (0, 1)]
    assert [(v["RANK"], v["WORLD_SIZE"], v["LOCAL_SIZE"]) for _, v in said] == [
        ("0", "2", "2"), ("1", "2", "2")
    ]  # fmt: skip
    off = run("python", "script.py", "0", code=1, ARTESIAN_AS_DEEPSPEED="0").stderr
    assert "PackageNotFoundError: " in off


def test_a_trainer_script_runs_by_yesterdays_line(run, tmp_path):
    config = trainer_test.config_for(tmp_path)
    words = [hf.EXAMPLES / "hf_trainer.py", "--steps", "4"]
    done = run("deepspeed", *words, "--deepspeed", config)
    plain = run("python", *words)
    losses = [trainer_test.losses_of(said)[0] for said in (done, plain)]
    assert len(losses[0]) == 4 and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_report_says_who_answers(run, environment):
    said = run("ds_report").stdout
    assert "answers for.......... DeepSpeed 0.19.8\n" in said
    assert "installed deepspeed.. none\n" in said and "child processes...... see Artesian\n" in said
    site = next((environment / "lib").glob("python*")) / "site-packages"
    facts = site / "deepspeed-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.1\n")
    try:
        assert f"installed deepspeed.. 0.1, {site}: not used\n" in run("ds_report").stdout
    finally:
        (facts / "METADATA").unlink()
        facts.rmdir()


@pytest.mark.parametrize(
    "words, said",
    [
        ("--num_nodes 2", "--num_nodes, --force_multi, --no_ssh: got no --hostfile"),
        ("--include a@b", "--include, --exclude: got a, b, allowed localhost"),
        ("--exclude localhost", "--exclude: got localhost, allowed where a --hostfile"),
        ("--hostfile two --exclude a@b", "--exclude: got all hosts"),
        ("--hostfile two --include c", "--include: got the host c, allowed a, b"),
        ("--hostfile two --include a:4", "--include: got the slot 4 of a, allowed 0 to 3"),
        ("--hostfile two --num_nodes 3", "--num_nodes: got 3, allowed 2, as two has"),
        ("--hostfile two --launcher impi", "--launcher: got impi, allowed ssh, pdsh, openmpi"),
        ("--hostfile two --no_ssh --node_rank 2", "--node_rank: got 2, allowed 0 to 1"),
        ("--hostfile odd --launcher pdsh", "--launcher pdsh: got different numbers of slots"),
        ("--hostfile missing", "--hostfile missing: there is no such file"),
        ("--hostfile bad", '--hostfile bad, line 2: got "b 3", allowed NAME slots=N'),
        ("--hostfile twice", '--hostfile twice, line 2: got "a slots=1", allowed a line for each'),
        ("--hostfile empty", "--hostfile empty: got no host"),
        ("--include a --exclude b", "--include, --exclude: got both"),
        ("--include a --num_gpus 1", "allowed one way to choose"),
        ("--autotuning tune", "--autotuning tune: not supported; `artesian plan`"),
        ("--elastic_training", "--elastic_training: not supported"),
        ("--force_multi", "got no --hostfile"),
        ("--module --no_python", "--module, --no_python: got both"),
        ("--no_python --no_local_rank", "script.py: No such file or directory"),
    ],
)
def test_what_is_not_served_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = {
        "two": "a slots=4\nb slots=4\n",
        "odd": "a slots=4\nb slots=2\n",
        "bad": "a slots=1\nb 3\n",
        "twice": "a slots=1\na slots=1\n",
        "empty": "# nobody\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit) as end:
        launcher.main([*words.split(), "script.py"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("deepspeed: error: ") and said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", ["", "--include localhost:3", "--hostfile one", "--num_gpus 1"])
def test_one_process_is_started(words, tmp_path, monkeypatch):
    (tmp_path / "one").write_text("localhost slots=1  # this one\n")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: started.append(arguments))
    with pytest.raises(SystemExit):
        launcher.main([*words.split(), "script.py", "-x"])
    assert started[0][1][-3:] == ["script.py", "--local_rank=0", "-x"]
    assert started[0][2]["ARTESIAN_AS_DEEPSPEED"] == "1"


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        ("--num_gpus 2", 2),
        ("--include localhost:0,1", 2),
        ("--hostfile four", 4),
        ("--hostfile four --num_gpus 3", 3),
        ("--hostfile four --exclude localhost:1", 3),
        ("--hostfile four --num_nodes 1", 4),
    ],
)
def test_several_processes_are_started(words, processes, tmp_path, monkeypatch):
    (tmp_path / "four").write_text("localhost slots=4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "7")  # variables of somebody else's job
    started = []

    def start(*arguments):
        started.append(arguments)
        raise OSError(0, "started")

    monkeypatch.setattr(os, "execve", start)
    with pytest.raises(SystemExit):
        launcher.main([*words.split(), "--master_port=5", "--no_local_rank", "script.py", "-x"])
    _, command, variables = started[0]
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert f"--nproc-per-node={processes}" in command and "--master-port=5" in command
    assert command[-2:] == ["script.py", "-x"]
    assert variables["LOCAL_SIZE"] == str(processes) and "RANK" not in variables
