"""Proves that a script is started on the machines of a hostfile: what ssh, pdsh, mpirun and srun
are given, which hosts and variables are chosen, and that processes of two hosts meet, with an ssh
that is the shell of this machine."""

import shlex
import subprocess
import sys

import hf
import pytest
from build_folder import free_port

from artesian import hosts

START = hosts.Start(
    hosts={"a": 2, "b": 2},
    command=["prog", "x y"],
    variables={"NCCL_DEBUG": "a b"},
    address="a",
    port=29500,
    arguments=["-v"],
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
SAME = ["--nproc-per-node=2", "--master-addr=a", "--master-port=29500", "--no-python"]


@pytest.mark.parametrize("port", [None, 2222])
def test_ssh_starts_torchrun_on_each_host(port, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = hosts.commands_of(START, "ssh", port)
    options = [] if port is None else ["-p", "2222"]
    for node, (command, host) in enumerate(zip(commands, "ab", strict=True)):
        assert command[:-1] == ["ssh", "-tt", "-o", "BatchMode=yes", *options, "-v", host]
        folder, variable, rest = command[-1].split("; ", 2)
        assert folder == f"cd {tmp_path}" and variable == "export NCCL_DEBUG='a b'"
        assert shlex.split(rest) == ["exec", *TORCHRUN, f"--node-rank={node}", *SAME, "prog", "x y"]


def test_pdsh_starts_it_on_all_hosts_at_once(monkeypatch):
    monkeypatch.delenv("PDSH_RCMD_TYPE", raising=False)
    (command,) = hosts.commands_of(START, "pdsh", None)
    assert command[:-1] == ["pdsh", "-R", "ssh", "-S", "-f", "1024", "-w", "a,b", "-v"]
    monkeypatch.setenv("PDSH_RCMD_TYPE", "exec")
    (command,) = hosts.commands_of(START, "pdsh", None)
    assert command[:-1] == ["pdsh", "-S", "-f", "1024", "-w", "a,b", "-v"]
    assert " --node-rank=%n " in command[-1]


def test_mpi_and_slurm_start_the_script_itself():
    where = ["MASTER_ADDR=a", "MASTER_PORT=29500"]
    (command,) = hosts.commands_of(START, "openmpi", None)
    assert command[:6] == ["mpirun", "-n", "4", "--host", "a:2,b:2", "-v"]
    assert command[6:] == ["-x", "NCCL_DEBUG=a b", "-x", where[0], "-x", where[1], "prog", "x y"]
    (command,) = hosts.commands_of(START, "slurm", None)
    assert command[:6] == ["srun", "-n", "4", "--nodelist", "a,b", "--ntasks-per-node=2"]
    assert command[6:] == ["-v", "env", "NCCL_DEBUG=a b", *where, "prog", "x y"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("", "", {"a": 4, "b": 2}),
        ("b", "", {"b": 2}),
        ("b@a:0,3", "", {"b": 2, "a": 2}),
        ("", "b", {"a": 4}),
        ("", "a:1,2,3@b:0", {"a": 1, "b": 1}),
    ],
)
def test_hosts_and_slots_are_chosen(include, exclude, expected):
    chosen = hosts.choose({"a": 4, "b": 2}, include, exclude)
    assert list(chosen.items()) == list(expected.items())


def test_variables_go_to_all_hosts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SECRET", "no")
    (tmp_path / ".deepspeed_env").write_text("TOKENIZERS=a=b\n\nnonsense\n")
    found = hosts.variables_for_hosts()
    assert (found["NCCL_DEBUG"], found["TOKENIZERS"]) == ("INFO", "a=b") and "SECRET" not in found
    (tmp_path / "other").write_text("X=1\n")
    monkeypatch.setenv("DS_ENV_FILE", "other")
    assert hosts.variables_for_hosts()["X"] == "1"
    monkeypatch.setenv("DS_ENV_FILE", "missing")
    with pytest.raises(hosts.Refusal, match="DS_ENV_FILE: got missing, which is no file"):
        hosts.variables_for_hosts()


SCRIPT = """
import os, sys, torch
torch.distributed.init_process_group("gloo")
ranks = torch.tensor([1])
torch.distributed.all_reduce(ranks)
said = f"{sys.argv[1:]} {os.environ['FROM_FILE']} {int(ranks)}\\n"
os.write(1, said.encode())  # at once, since all write to one pipe
torch.distributed.barrier()
torch.distributed.destroy_process_group()  # else a rank may abort as it ends
sys.exit(int(sys.argv[-1]) if os.environ["RANK"] == "2" else 0)
"""


def test_processes_of_two_hosts_meet(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor line; do :; done\nexec sh -c "$line"\n')
    ssh.chmod(0o755)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "hostfile").write_text("a slots=1\nb slots=2\nc slots=4\n")
    (tmp_path / ".deepspeed_env").write_text("FROM_FILE=yes\n")
    environment = hf.environment(tmp_path, as_deepspeed=True)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    for code in ("0", "3"):
        done = subprocess.run(
            [sys.executable, "-m", "artesian.launcher", "--hostfile", "hostfile",
             "--include", "a@b", "--launcher", "ssh", "--master_addr", "127.0.0.1",
             "--master_port", str(free_port()), "script.py", "a b", code],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.returncode != 0) == (code != "0"), done.stderr
        lines = sorted(line for line in done.stdout.splitlines() if line.startswith("["))
        assert lines == [
            f"['--local_rank={rank}', 'a b', '{code}'] yes 3" for rank in (0, 0, 1)
        ]  # fmt: skip
