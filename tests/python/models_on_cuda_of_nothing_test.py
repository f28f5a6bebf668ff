"""Proves what `artesian train` asks of a GPU, without one: it runs on the real LibTorch above a
CUDA runtime that does nothing (tests/support/cuda_of_nothing/nothing.h). A block takes a known
number of launches; the host waits three times per micro-batch and never per layer; and LibTorch's
memory is what `artesian plan` says, the sums of deterministic attention included. Numbers are zeros
there: bits are compared elsewhere."""

import collections
import json
import socket
import subprocess

import cuda_of_nothing
import pytest
from build_folder import ARTESIAN

PROGRAM = cuda_of_nothing.FOLDER / "artesian"
pytestmark = [
    cuda_of_nothing.needs_it,
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built"),
]
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4096,
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1 << 15, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257,
    "n_embd": 512, "n_head": 8, "n_positions": 4096, "embd_pdrop": 0, "attn_pdrop": 0,
    "resid_pdrop": 0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Trains; returns the lines of its log, and the calls that the GPU received. `told`: variables
    for a GPU that fails; then returns how the process ended."""

    def start(model, samples, length, steps=4, micro_batches=1, told=None, **more):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(model))
        tokens = tmp_path / "tokens.bin"
        tokens.write_bytes(bytes(2 * (samples * length * steps * micro_batches + 1)))
        config = {
            "train_micro_batch_size_per_gpu": samples,
            "gradient_accumulation_steps": micro_batches,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {
                "stage": 3,
                "offload_param": {"device": "cpu"},
                "offload_optimizer": {"device": "cpu"},
            },
            "artesian": {"device_memory": "512MiB", "host_memory": "1GiB", "activation_memory": 1},
            **more,
        }
        (tmp_path / "ds.json").write_text(json.dumps(config))
        log, lines = tmp_path / "calls.log", tmp_path / "steps.jsonl"
        for path in (log, lines):
            path.unlink(missing_ok=True)
        words = [PROGRAM, "train", "--model", folder, "--init", "--data", tokens]
        words += ["--config", tmp_path / "ds.json", "--device", "cuda:0", "--steps", steps]
        words += ["--seq-len", length, "--log-jsonl", lines, "--quiet"]
        # Otherwise cuBLAS has 32 MiB, which a plan counts in its 1 GiB for CUDA.
        small = {"PATH": "/usr/bin:/bin", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
        environment = cuda_of_nothing.variables(small, log) | (told or {})
        done = subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True)
        if told is not None:
            return done
        assert done.returncode == 0, done.stdout + done.stderr
        calls = [line.split("|", 5) for line in log.read_text().splitlines()]
        return [json.loads(line) for line in lines.read_text().splitlines()], calls

    return start


def a_step(run, model, micro_batches=1, **more):
    """How many calls of each kind a step makes, once it is steady."""
    counts = []
    for steps in (4, 6):
        _, calls = run(model, 2, 128, steps=steps, micro_batches=micro_batches, **more)
        counts.append(collections.Counter(call[0] for call in calls))
    return {kind: (counts[1][kind] - counts[0][kind]) / 2 for kind in ("launch", "product", "wait")}


CHECKPOINTED = {"activation_checkpointing": {"number_checkpoints": 1}}


def test_a_block_costs_launches_and_no_wait(run):
    """A block more is 11 launches more in forward, of which 4 are products, and 27 in backward; the
    host waits for a micro-batch's input, targets and loss, whatever its layers."""
    two, three = (LLAMA | {"num_hidden_layers": layers} for layers in (2, 3))
    steps = {more: [a_step(run, model, **(CHECKPOINTED if more else {})) for model in (two, three)]
             for more in (False, True)}  # fmt: skip
    of_block = {more: {kind: b[kind] - a[kind] for kind in a} for more, (a, b) in steps.items()}
    assert of_block[False] == {"launch": 26, "product": 12, "wait": 0}
    forward_again = {kind: of_block[True][kind] - of_block[False][kind] for kind in of_block[True]}
    assert forward_again == {"launch": 7, "product": 4, "wait": 0}
    assert {step["wait"] for more in steps.values() for step in more} == {3}
    assert a_step(run, two, micro_batches=2)["wait"] == 2 * 3


# A Llama whose attention has few heads of a long sample: its sums take most.
LONG = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8,
        "num_hidden_layers": 2}  # fmt: skip
CASES = {
    "llama": (LLAMA | {"num_hidden_layers": 3}, 4, 1024),
    "llama, one long sample": (LLAMA | LONG, 1, 1 << 15),
    "gpt2": (GPT2 | {"n_layer": 3}, 4, 1024),
    "gpt2, one sample": (GPT2 | {"n_layer": 3}, 1, 4096),
}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_the_plan_says(run, tmp_path, name, checkpointed):
    """Within 5%: not more, so that what is planned fits, and not much less."""
    model, samples, length = CASES[name]
    lines, _ = run(model, samples, length, steps=3, **(CHECKPOINTED if checkpointed else {}))
    words = [ARTESIAN, "plan", "--model", tmp_path / "model", "--config", tmp_path / "ds.json"]
    words += ["--seq-len", length, "--gpus", 1, "--device-memory", "80GiB", "--json", "-"]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True)
    planned = json.loads(done.stdout)["memory"]["activations"]
    peak = lines[-1]["peak"]
    # Gradients are planned in the device tier, and may be there or not when the most is in use.
    least, most = peak["activations"] - peak["gradients"], peak["activations"]
    print(name, checkpointed, least, most, planned, least / planned, most / planned)
    assert least < 1.05 * planned and most > 0.95 * planned


def error_of(done):
    """The run has ended by itself. Returns its error."""
    assert done.returncode in (1, 2), (done.returncode, done.stderr)
    return next(line for line in done.stderr.splitlines() if line.startswith("artesian: error: "))


def test_a_gpu_that_fails_ends_the_run_with_its_error(run):
    model = LLAMA | {"num_hidden_layers": 2}
    for launch in (1, 60, 250):
        done = run(model, 2, 128, told={"ARTESIAN_CUDA_OF_NOTHING_FAILS": str(launch)})
        assert "unspecified launch failure" in error_of(done), launch


def test_a_gpu_without_memory_ends_the_run_with_an_error_that_names_the_key(run):
    model = LLAMA | {"num_hidden_layers": 2}
    for mebibytes in (16, 64, 128):  # for less than the device tier, and for little beside it
        told = {"ARTESIAN_CUDA_OF_NOTHING_MEMORY": str(mebibytes << 20)}
        assert "artesian.device_memory" in error_of(run(model, 4, 1024, told=told)), mebibytes


def test_ranks_that_nccl_cannot_connect_train_through_host_memory(tmp_path):
    """The real NCCL, which the real LibTorch brings, finds no real driver on either GPU."""
    (tmp_path / "model").mkdir()
    model = LLAMA | {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 1}
    (tmp_path / "model/config.json").write_text(json.dumps(model))
    (tmp_path / "tokens.bin").write_bytes(bytes(2 * (2 * 64 + 1)))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 2},
        "artesian": {"device_memory": "64MiB", "host_memory": "256MiB", "activation_memory": 1},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    words = [PROGRAM, "train", "--model", tmp_path / "model", "--init", "--steps", 1]
    words += ["--data", tmp_path / "tokens.bin", "--config", tmp_path / "ds.json"]
    words += ["--device", "cuda", "--seq-len", 64, "--quiet"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in "01":
        started = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PATH": "/usr/bin:/bin"}
        ranks.append(
            subprocess.Popen(
                [*map(str, words)],
                env=cuda_of_nothing.variables(started | meet, tmp_path / rank, gpus=2),
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert "through host memory, not by NCCL: rank 0 was waiting for connecting GPUs" in said[0]
    assert "not by NCCL" not in said[1]
