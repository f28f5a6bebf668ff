"""Proves that memory that is not available is refused before the first step: in memory control
groups smaller than a run or a plan needs no process ends by SIGKILL, whatever the budgets; a
refusal names its key and the missing bytes; a budget above what is available is reported. `artesian
train` and `artesian plan` agree.

ARTESIAN_SOAK=1 tries all groups from 200 to 800 MiB with twelve budgets each."""

import json
import os
import re

import limits
import pytest
from train_cli_test import Place, errors_of, pytestmark  # noqa: F401

MIB = 1 << 20
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
    "intermediate_size": 1376, "max_position_embeddings": 256, "num_attention_heads": 8,
    "num_hidden_layers": 8, "vocab_size": 2048,
}  # fmt: skip
BUDGETS = [(8, 8), (16, 16), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128),
           (200, 200), (300, 100), (600, 600), (409600, 409600)]  # fmt: skip
GROUPS = range(200, 801, 100) if os.environ.get("ARTESIAN_SOAK") else [250, 450, 700]
TRIED = BUDGETS if os.environ.get("ARTESIAN_SOAK") else [BUDGETS[i] for i in (3, 7, 8, 10)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("memory"))
    made.model = made.folder / "llama"
    made.model.mkdir()
    (made.model / "config.json").write_text(json.dumps(LLAMA))
    yield made
    assert list(made.nvme.iterdir()) == []


def with_budgets(place, device, host):
    def change(config):
        del config["fp16"]
        config["zero_optimization"]["offload_param"]["max_in_cpu"] = 0
        config["artesian"] = {"device_memory": f"{device}MiB", "host_memory": f"{host}MiB"}

    return place.write_config(change)


MISSING = re.compile(r"artesian: error: (artesian\.(device|host)_memory|"
                     r"train_micro_batch_size_per_gpu): .*: (\d+) bytes missing")  # fmt: skip


@pytest.mark.parametrize("size", GROUPS)
def test_item_1_no_run_in_a_control_group_is_killed(place, size):
    with limits.control_group(size * MIB) as enter:
        outcomes = {}
        for device, host in TRIED:
            done = place.run("--init", config=with_budgets(place, device, host), seq_len=64,
                             micro_batch=4, accumulation=1, steps=2,
                             preexec_fn=enter)  # fmt: skip
            outcomes[device, host] = done.returncode
            assert done.returncode in (0, 2), (size, device, host, done.returncode, done.stderr)
            if done.returncode == 2:
                assert MISSING.search(errors_of(done, 2)), done.stderr
    print(size, outcomes)
    if size >= 700:
        assert 0 in outcomes.values()


@pytest.mark.parametrize("size", GROUPS)
def test_item_2_a_plan_in_a_control_group_is_not_killed(place, size):
    with limits.control_group(size * MIB) as enter:
        for device, host in TRIED[-2:]:
            done = place.run_plan(with_budgets(place, device, host), enter)
            assert done.returncode in (0, 2), (size, done.returncode, done.stderr)
            if done.returncode == 2:
                assert MISSING.search(errors_of(done, 2)), done.stderr
            assert re.search(r"measuring the optimizer's update in [\d.]+ MiB of memory",
                             done.stderr), done.stderr  # fmt: skip


def test_item_1_budgets_above_the_machine_are_said(place):
    done = place.run("--init", config=with_budgets(place, 1 << 22, 1 << 22), seq_len=64)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "of available memory" in line]
    assert line.startswith("artesian: warning: artesian.device_memory and artesian.host_memory: "
                           "4.00 TiB and 4.00 TiB are more than the ")  # fmt: skip
    assert re.search(r"this run takes .* of activations beside .* of the device tier, ", line)
    usual = place.run("--init", config=with_budgets(place, 64, 64), seq_len=64)
    assert "available memory" not in usual.stderr


def test_item_10_a_refusal_for_bytes_says_the_parameter_count(place):
    """A refusal for memory or disk is one line, from a run and from a plan."""
    config = with_budgets(place, 1, 1)
    for done in [place.run("--init", config=config, seq_len=64), place.run_plan(config)]:
        (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
        assert done.returncode == 2 and "bytes missing" in line, done.stderr
        (count,) = re.findall(r"The model has (\d+) parameters$", line)
        assert int(count) == 2 * 2048 * 512 + 8 * (4 * 512 * 512 + 3 * 512 * 1376 + 2 * 512) + 512


def test_item_13_without_proc_a_run_trains(place):
    """Without /proc, sysinfo gives the memory; a warning says so."""
    def hide_proc():
        if limits.libc.unshare(0x20000) != 0:  # CLONE_NEWNS
            os._exit(77)
        limits.libc.mount(None, b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
        if limits.libc.mount(b"none", b"/proc", b"tmpfs", 0, None) != 0:
            os._exit(77)

    done = place.run("--init", config=with_budgets(place, 64, 64), seq_len=64,
                     preexec_fn=hide_proc)  # fmt: skip
    if done.returncode == 77:
        pytest.skip("/proc cannot be hidden here")
    assert done.returncode == 0, done.stderr
    assert "warning: /proc/meminfo cannot be read: available memory is taken" in done.stderr


def test_item_13_too_few_open_files_are_refused_before_the_first_step(place):
    config = with_budgets(place, 64, 64)
    done = place.run("--init", config=config, seq_len=64, preexec_fn=limits.descriptors(16))
    line = errors_of(done, 2)
    assert "open files: got a limit of 16, " in line and "ulimit -n 1024" in line, line
    saved = place.folder / "saved"
    done = place.run("--init", config=config, seq_len=64, checkpoint_dir=saved,
                     preexec_fn=limits.descriptors(40))  # fmt: skip
    assert done.returncode == 0 and (saved / "latest").exists(), done.stderr
