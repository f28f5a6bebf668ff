"""Proves element by element where 16-bit gradients are rounded: those of a run's first step are the
plain PyTorch script's (reference_training.py), but for the few elements that lie so near the middle
between two 16-bit numbers that the order of an fp32 sum decides. Wrong rules change some
tensor in 4% of its elements or more, which a test asserts of the script itself.

The norm says less, and its noise is an element's: fp16's step is up to 2^-10 of a number, and one
element has up to 0.2% of these small models' square norms, so that a single one which rounds the
other way moves the norm by up to 2e-6, in bf16 by 1.5e-5. (Seen with biases in fp16: of a distance
of 9.5e-7, 8.1e-7 were one element of -922.2501, at 1e-7 of itself from a middle.)

How gradients are read from the program: with an enormous epsilon Adam's first step is
learning_rate / epsilon times the gradient, beside which the weights before it are nothing."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import llama_numbers_test as llama  # noqa: E402
import numbers_test as gpt2  # noqa: E402
import reference_training as reference  # noqa: E402

pytestmark = gpt2.pytestmark

LENGTH = gpt2.LENGTH
EPSILON, RATE = 1e10, 1e25
SHARE = 0.01  # of a tensor's elements; right rounding rules need up to 0.0033
FEW = 5  # and of a small tensor

HALF = {"enabled": True, "loss_scale": 2.0**14}
RUNS = {
    "GPT-2, fp16": (gpt2, "untied", {"fp16": HALF, "accumulation": 2}),
    "GPT-2, bf16": (gpt2, "tied", {"bf16": {"enabled": True}, "accumulation": 3}),
    "Llama, fp16": (llama, "wide heads", {"fp16": HALF, "accumulation": 2}),
    "Llama, fp16, biases": (llama, "biases", {"fp16": HALF, "accumulation": 2}),
    "Llama, fp16, tied": (llama, "tied", {"fp16": HALF, "accumulation": 3}),
    "Llama, bf16": (llama, "grouped", {"bf16": {"enabled": True}}),
    "Llama, bf16, biases": (llama, "biases", {"bf16": {"enabled": True}, "accumulation": 2}),
}

gpt2_inputs, llama_inputs = gpt2.inputs, llama.inputs  # fixtures


@pytest.fixture
def case(request, tmp_path):
    """(folder and tokens, model's name, config) of a run."""
    module, model, changes = RUNS[request.param]
    inputs = request.getfixturevalue("llama_inputs" if module is llama else "gpt2_inputs")
    params = {"lr": RATE, "eps": EPSILON, "weight_decay": 0.0}
    config = gpt2.make_config(tmp_path, optimizer=params, gradient_clipping=0.0, **changes)
    return inputs, model, config


def dtype_of(config):
    return reference.DTYPES["fp16" if "fp16" in config else "bf16"]


def expected_gradients(case):
    (folder, tokens), model, config = case
    return reference.first_gradients(folder / model, config, tokens, LENGTH)


def our_gradients(case, tmp_path):
    """Returns the first step's gradients times the loss scale, by name."""
    inputs, model, config = case
    flags = ["--save", tmp_path / "saved", "--save-dtype", "fp32"]
    done, lines = gpt2.artesian(inputs, tmp_path, config, *flags, model=model, steps=1)
    assert done.returncode == 0, done.stderr
    assert not lines[0]["overflow"]
    before = gpt2.load_file(inputs[0] / model / "model.safetensors")
    after = gpt2.load_file(tmp_path / "saved" / "model.safetensors")
    factor = lines[0]["loss_scale"] * EPSILON / RATE
    return {name: (before[name].double() - after[name].double()) * factor for name in after}


def differing(ours, expected):
    """Returns by name the share of elements with a gradient that differ, if they are more than
    FEW."""
    assert ours.keys() == expected.keys()
    shares = {}
    for name, value in expected.items():
        differs = ours[name] != value
        if name.endswith("attn.c_attn.bias"):  # a key's bias has no gradient but rounding errors
            hidden = len(differs) // 3
            differs[hidden : 2 * hidden] = False
        # with rotary embedding it has nearly none: its terms cancel out,
        if name.endswith("k_proj.bias"):
            continue  # so that their order decides more elements than the rules do
        shares[name] = max(int(differs.sum()) - FEW, 0) / int((value != 0).sum())
    return shares


@pytest.mark.parametrize("case", RUNS, indirect=True)
def test_every_gradient_is_rounded_where_the_rules_say(case, tmp_path):
    dtype = dtype_of(case[2])
    ours = our_gradients(case, tmp_path)
    rounded = {name: value.to(dtype) for name, value in ours.items()}
    for name, value in ours.items():  # the kept values are 16-bit numbers
        assert torch.allclose(value, rounded[name].double(), rtol=1e-5, atol=1e-12), name
    shares = differing(rounded, expected_gradients(case))
    worst = max(shares, key=shares.get)
    print(f"rounded differently: {shares[worst]:.4f} of {worst}, {SHARE} allowed")
    assert shares[worst] < SHARE, shares


class RoundedOnce(reference.RoundedGradients):
    """A wrong rule: gradients are kept in fp32 between micro-batches."""

    def add(self, name, gradient):
        self.sums[name] = self.sums.get(name, 0.0) + gradient

    def finish(self, embedding):
        return {name: value.to(self.dtype) for name, value in super().finish(embedding).items()}


class OnlySumsRounded(reference.RoundedGradients):
    def add(self, name, gradient):
        total = self.sums[name].float() + gradient if name in self.sums else gradient
        self.sums[name] = total.to(self.accumulated)


class RowsAddedAtOnce(reference.RoundedGradients):
    """Another wrong rule: the embedding's rows of a micro-batch are added when it ends."""

    def add_rows(self, ids, gradient, shape):
        super().add_rows(ids, gradient, shape)
        self.shape = shape
        self.early = getattr(self, "early", [])
        self.early.append(self.rows)
        self.rows = None

    def finish(self, embedding):
        for rows in self.early:
            self.add(embedding, rows)
        return self.sums


WRONG = {"rounded once": RoundedOnce, "only sums": OnlySumsRounded, "rows at once": RowsAddedAtOnce}


@pytest.mark.parametrize("rule", WRONG)
@pytest.mark.parametrize("case", ["GPT-2, fp16", "Llama, fp16, biases"], indirect=True)
def test_a_wrong_rule_would_show(case, rule, monkeypatch):
    right = expected_gradients(case)
    monkeypatch.setattr(reference, "RoundedGradients", WRONG[rule])
    shares = differing(expected_gradients(case), right)
    worst = max(shares, key=shares.get)
    print(f"{rule}: {shares[worst]:.4f} of {worst}")
    assert shares[worst] > 3 * SHARE, shares
