"""Proves that Llama and its relatives train as the classes of transformers with AdamW do, over the
values that config.json can have: grouped queries, biases, heads of any width, a tied head, padding,
other activation functions, and every scaling of the rotary embedding in its old and its new form.
Losses and gradient norms of 20 steps, and the weights at the end, as transformers reads them back.

Tolerances are those of numbers_test.py; the share that a run needs is printed (pytest -s)."""

import json

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numbers_test as gpt2  # noqa: E402
import reference_training as reference  # noqa: E402

pytestmark = gpt2.pytestmark

LENGTH = gpt2.LENGTH
VOCABULARY = gpt2.VOCABULARY

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0] * 4 + [3.5] * 4}

# Shapes of the model; what is not said is BASE.
SHAPES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2, "rms_norm_eps": 1e-2},
    "one key head": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    "wide heads": {"head_dim": 24, "num_key_value_heads": 2},
    "narrow heads": {"head_dim": 6, "num_key_value_heads": None},
    "padding": {"pad_token_id": 7},
    "padding, tied": {"pad_token_id": -1, "tie_word_embeddings": True},
    "gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "relu2": {"hidden_act": "relu2"},
}

# The rotary embedding. Each differs from every other by much more than the tolerance.
ROTARY = {
    "default": {},
    "theta": {"rope_theta": 100.0},
    "theta, new form": {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 1000},
    "linear, new form": {
        "rope_parameters": {"rope_type": "linear", "factor": 5.0, "rope_theta": 500.0}
    },
    "dynamic within positions": {
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "rope_theta": 2000.0,
    },
    "dynamic beyond positions": {
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 12,
    },
    "dynamic, new form": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 300.0},
        "max_position_embeddings": 8,
    },
    "llama3": {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}, "rope_theta": 500.0},
    "llama3, new form": {
        "rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 90.0, "factor": 8.0}
    },
    "yarn": {"rope_scaling": YARN | {"type": "yarn"}, "rope_theta": 80.0},
    "yarn by ratio": {"rope_scaling": YARN | {"rope_type": "yarn", "factor": None}},
    "yarn, untruncated": {
        "rope_parameters": YARN
        | {"rope_type": "yarn", "rope_theta": 30.0, "truncate": False, "beta_fast": 2.0,
           "beta_slow": 0.25}
    },  # fmt: skip
    "yarn by mscale": {
        "rope_scaling": YARN
        | {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.4, "beta_fast": 4}
    },
    "yarn by attention_factor": {
        "rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 1.5}
    },
    "longrope, short": {
        "rope_scaling": FACTORS | {"rope_type": "longrope", "factor": 4.0},
    },
    "longrope, long": {
        "rope_scaling": FACTORS | {"type": "longrope"},
        "original_max_position_embeddings": 16,
        "num_key_value_heads": 2,
    },
    "longrope, new form": {
        "rope_parameters": FACTORS
        | {"rope_type": "longrope", "rope_theta": 700.0, "attention_factor": 1.25}
    },
}


def relative(kind, name, **changes):
    """A model of another class, with that class's model type."""
    return {"model_type": kind, "architectures": [f"{name}ForCausalLM"]} | changes


GROUPED = {"num_key_value_heads": 2}
RELATIVES = {
    "mistral": relative("mistral", "Mistral", **GROUPED, head_dim=24),
    "mistral, window": relative("mistral", "Mistral", **GROUPED, sliding_window=LENGTH),
    "qwen2": relative("qwen2", "Qwen2", **GROUPED),
    "qwen2, tied": relative("qwen2", "Qwen2", **GROUPED, tie_word_embeddings=True),
    "qwen3": relative("qwen3", "Qwen3", **GROUPED, head_dim=24),
    "qwen3, biases": relative("qwen3", "Qwen3", **GROUPED, head_dim=16, attention_bias=True),
    "phi3": relative("phi3", "Phi3", pad_token_id=None),
    "phi3, grouped": relative("phi3", "Phi3", **GROUPED, pad_token_id=7),
}
CONFIGS = SHAPES | ROTARY | RELATIVES


def write_model(folder, name):
    """The directory of a model whose config.json is BASE with the changes, as they are written."""
    config = BASE | CONFIGS[name]
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(11)
    loaded = transformers.AutoConfig.from_pretrained(folder)
    loaded.initializer_range = 0.08  # large enough that gradients differ between parameters
    model = transformers.AutoModelForCausalLM.from_config(loaded)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases that matter
                parameter.add_(torch.randn(parameter.shape) * 0.05)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))  # not as transformers writes it


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a model of each name and tokens.bin; and the tokens."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in CONFIGS:
        (folder / name).mkdir()
        write_model(folder / name, name)
    # Fewer samples than a run reads, and a rest: the stream wraps around during the run.
    source = numpy.random.default_rng(12)
    tokens = [7]
    for jump in source.integers(0, 3, size=LENGTH * 30 + 5):
        tokens.append((5 * tokens[-1] + int(jump)) % VOCABULARY)
    tokens = numpy.array(tokens, dtype="<u2")
    tokens[::19] = 7  # some tokens are padding
    tokens[5::23] = VOCABULARY - 1
    tokens.tofile(folder / "tokens.bin")
    return folder, tokens


def assert_reloads(folder, model, expected_dtype):
    """Checks that transformers loads the directory without a warning, with the weights that were
    saved."""
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    name = json.loads((model / "config.json").read_text())["architectures"][0]
    assert type(loaded) is getattr(transformers, name)
    assert not any(report[kind] for kind in ["missing_keys", "unexpected_keys", "mismatched_keys"])
    assert loaded.dtype == expected_dtype
    saved = json.loads((folder / "config.json").read_text())
    given = json.loads((model / "config.json").read_text())
    assert {key: saved[key] for key in given} == given
    return loaded


@pytest.mark.parametrize("name", CONFIGS)
def test_fp32_is_plain_pytorch(inputs, tmp_path, name):
    # An epsilon large enough that Adam's first steps do not amplify rounding errors.
    optimizer = {"lr": 1e-3, "eps": 1e-6}
    config = gpt2.make_config(
        tmp_path, accumulation=1 if name in ROTARY else 2, optimizer=optimizer
    )
    flags = ["--save", tmp_path / "saved", "--save-dtype", "fp32"]
    ours, expected = gpt2.train_both(inputs, tmp_path, config, *flags, model=name)
    assert len(ours) >= 20
    assert ours[-1]["loss"] < ours[0]["loss"] - 0.3
    for key in ["loss", "grad_norm"]:
        gpt2.assert_near(
            key, gpt2.column(ours, key), gpt2.column(expected.steps, key), gpt2.FP32_TOLERANCE
        )
    gpt2.assert_weights_near(inputs[0] / name, tmp_path / "saved", expected.weights)
    loaded = assert_reloads(tmp_path / "saved", inputs[0] / name, torch.float32)
    source = reference.batches(config, inputs[1], LENGTH)
    with torch.no_grad():
        ids, targets = next(source)
        loss = reference.cross_entropy(loaded(input_ids=ids).logits, targets)
    assert float(loss) < ours[0]["loss"] - 0.3  # the trained weights, in the right places


def test_each_rotary_embedding_differs_from_the_others(inputs):
    """Otherwise a scaling that does nothing would pass. Uses transformers alone, on the same
    weights."""
    folder, tokens = inputs
    ids = torch.from_numpy(tokens[: 4 * LENGTH].astype(numpy.int64)).view(4, LENGTH)
    weights = reference.load(folder / "default").state_dict()
    losses = {}
    for name, changes in ROTARY.items():
        model = reference.load(folder / name)
        if "num_key_value_heads" not in changes:
            model.load_state_dict(weights)
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        losses[name] = float(reference.cross_entropy(logits[:, :-1], ids[:, 1:]))
    names = sorted(losses, key=losses.get)
    gaps = [losses[b] / losses[a] - 1 for a, b in zip(names, names[1:])]
    print(f"nearest losses differ by {min(gaps):.2g}")
    assert min(gaps) > 2 * gpt2.FP32_TOLERANCE, losses


# One element may have 0.2% of the square norm here. If it lies in the middle between two 16-bit
# numbers, the order of an fp32 sum decides how it rounds, and that alone moves the norm by so much;
# first_gradients_test.py shows of every element that it is rounded where it should be.
FIRST_NORM_TOLERANCE = {"bf16": 1.6e-5, "fp16": 2e-6}
ROUNDED = {
    "bf16": ("grouped", {"bf16": {"enabled": True}}),
    "bf16 tied": ("tied", {"bf16": {"enabled": True}, "accumulation": 3}),
    "fp16": ("wide heads", {"fp16": gpt2.HALF, "accumulation": 2}),
    "fp16 biases": ("biases", {"fp16": gpt2.HALF, "accumulation": 2}),
}


@pytest.mark.parametrize("run", ROUNDED)
def test_16_bit_rounds_where_the_rules_say(inputs, tmp_path, run):
    model, changes = ROUNDED[run]
    config = gpt2.make_config(tmp_path, **changes)
    config["optimizer"]["params"]["lr"] = 1e-3  # so that the two runs diverge more slowly
    flags = ["--save", tmp_path / "saved"]
    ours, expected = gpt2.train_both(inputs, tmp_path, config, *flags, model=model)
    dtype = "fp16" if "fp16" in config else "bf16"
    gpt2.assert_16_bit_run(ours, expected, FIRST_NORM_TOLERANCE[dtype])
    assert_reloads(tmp_path / "saved", inputs[0] / model, reference.DTYPES[dtype])


def test_random_weights_follow_the_rule_of_the_architecture(inputs, tmp_path):
    """As transformers' init_weights: normal by initializer_range, norms 1, biases 0, padding 0."""
    (tmp_path / "model").mkdir()
    (tmp_path / "tokens.bin").symlink_to(inputs[0] / "tokens.bin")
    config = BASE | {
        "attention_bias": True, "mlp_bias": True, "pad_token_id": 5, "initializer_range": 0.05,
    }  # fmt: skip
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    settings = gpt2.make_config(tmp_path, optimizer={"lr": 0.0})
    flags = ["--init", "--seed", 3, "--save", tmp_path / "saved", "--save-dtype", "fp32"]
    done, _ = gpt2.artesian((tmp_path, None), tmp_path, settings, *flags, model="model", steps=1)
    assert done.returncode == 0, done.stderr
    ours = gpt2.load_file(tmp_path / "saved" / "model.safetensors")
    theirs = transformers.LlamaForCausalLM(
        transformers.AutoConfig.from_pretrained(tmp_path / "model")
    ).state_dict()
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape
        if expected.dim() == 1:  # exactly
            assert torch.equal(ours[name], expected), name
            continue
        zero = [int(row) for row in (ours[name] == 0).all(1).nonzero()]
        assert zero == [int(row) for row in (expected == 0).all(1).nonzero()], name
        assert zero == ([5] if name == "model.embed_tokens.weight" else [])
        for value in [ours[name], expected]:
            assert float(value.std()) == pytest.approx(0.05, rel=0.05), name
            assert abs(float(value.mean())) < 0.002, name
