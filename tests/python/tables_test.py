"""Proves that tables of vocabularies, whose gradients are added by rows and tiles, train with the
bits of any other parameter, and that nothing of their size is made."""

import model_zoo_test as zoo
import pytest
import small_models
import torch
from small_models import VOCABULARY, artesian, config_for, ids, start
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from artesian import tables, zero

F = torch.nn.functional
TALL = 70_000  # rows: of several tiles, at a width of 128
pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def all_are_tables(monkeypatch):
    """Of the small models of tests, too."""
    monkeypatch.setattr(tables, "SMALLEST", 1)


class Language(nn.Module):
    """Words in, words out. `reads`: with the matrix of the look-up, which it does not own."""

    def __init__(self, rows=VOCABULARY, width=32, tied=False, reads=False, bias=True):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(rows, width, padding_idx=3)
        self.layer = nn.Linear(width, width)
        self.reads = reads
        if not reads:
            self.head = nn.Linear(width, rows, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words):
        hidden = self.layer(self.embed(words)).tanh()
        logits = F.linear(hidden, self.embed.weight) if self.reads else self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def trained(model, folder=None, steps=3, **more):
    """The digest after some steps, each of two micro-batches."""
    engine = start(model, folder, train_micro_batch_size_per_gpu=2, **more)
    for step in range(steps):
        engine.backward(engine(ids(step)))
        engine.step()
    digest = engine.digest()
    engine.destroy()
    return digest


def names_of(model):
    return set(tables.find_tables(model, artesian.units.make_plan(model)))


def test_which_matrices_are_tables(monkeypatch):
    assert names_of(Language()) == set()  # small
    monkeypatch.setattr(tables, "SMALLEST", VOCABULARY * 32)
    assert names_of(Language()) == {"embed.weight", "head.weight"}
    assert names_of(Language(tied=True)) == {"embed.weight"}
    assert names_of(small_models.make("gpt2")[0]) == {"transformer.wte.weight"}
    assert names_of(small_models.make("llama")[0]) == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }

    class Own(nn.Linear):
        pass

    model = Language(tied=True)
    model.head = Own(32, VOCABULARY)
    assert names_of(model) == {"embed.weight"}
    model.head.weight = model.embed.weight  # which is no plain module's alone any more
    assert names_of(model) == set()
    for facts in ({"sparse": True}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        model = Language()
        model.embed = nn.Embedding(VOCABULARY, 32, **facts)
        assert names_of(model) == {"head.weight"}
    model = Language()
    model.head.forward = lambda hidden: hidden
    assert names_of(model) == {"embed.weight"}
    blocks = nn.Sequential(nn.ModuleList(nn.Linear(64, 64) for _ in range(3)))
    assert names_of(blocks) == set()


@pytest.mark.parametrize("name", small_models.MODELS)
def test_one_step_has_the_bits_of_plain_pytorch(name, all_are_tables, monkeypatch, tmp_path):
    model, batch = small_models.make(name)
    expected = zoo.loss_of(model, batch, 0)
    expected.backward()
    monkeypatch.setattr(tables, "SMALLEST", 1 << 22)
    digest = zoo.digest_for(name, {n: p.grad for n, p in model.named_parameters()})
    monkeypatch.setattr(tables, "SMALLEST", 1)
    for place in zoo.PLACES:
        model, _ = small_models.make(name)
        engine = zoo.engine_for(name, model, place, tmp_path)
        loss = zoo.loss_of(engine, batch, 0)
        assert loss.item() == expected.item()
        engine.backward(loss)
        assert engine._core.closed_late == 0
        engine.step()
        assert engine.digest() == digest, place
        engine.destroy()


FP16 = {"fp16": {"enabled": True, "initial_scale_power": 4}}


SECTIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": FP16}


@pytest.mark.parametrize("dtype", SECTIONS)
@pytest.mark.parametrize("how", ["apart", "tied", "reads"])
def test_bits_do_not_depend_on_what_is_a_table(how, dtype, monkeypatch, tmp_path):
    options = {} if how == "apart" else {how: True}
    engine = start(Language(), **SECTIONS[dtype])
    computed = engine._core.compute_dtype
    engine.destroy()
    digests = {}
    for smallest in (1, 1 << 22):
        monkeypatch.setattr(tables, "SMALLEST", smallest)
        for folder in (None, tmp_path):
            digests[smallest, folder] = trained(Language(**options), folder, **SECTIONS[dtype])
        assert digests[smallest, None] == digests[smallest, tmp_path]
    # Torch sums what a word gets at several places in the dtype that is computed in.
    if computed == "fp32":
        assert len(set(digests.values())) == 1


def test_a_table_is_stored_and_not_expanded(monkeypatch):
    monkeypatch.setattr(tables, "SMALLEST", VOCABULARY * 32)
    model = Language(bias=False)
    engine = start(model, **FP16)
    assert engine._core.compute_dtype == "fp32"
    assert {n: p.dtype for n, p in model.named_parameters()} == {
        "embed.weight": torch.float16,
        "layer.weight": torch.float32,
        "layer.bias": torch.float32,
        "head.weight": torch.float16,
    }
    engine.destroy()


def test_whoever_adapts_to_a_tables_dtype_reads_it_as_it_is(all_are_tables):
    class Adapts(Language):
        def forward(self, words):
            hidden = self.layer(self.embed(words)).tanh()
            narrow = F.linear(hidden.to(self.embed.weight.dtype), self.embed.weight)
            assert narrow.dtype == torch.float16
            return F.cross_entropy(narrow.float().flatten(0, 1), words.flatten())

    trained(Adapts(reads=True), **FP16)


class Largest(TorchDispatchMode):
    """Notes the most elements that any operator has made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        if isinstance(made, torch.Tensor) and not is_view:
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("section", [{}, FP16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("tied", [False, True])
def test_nothing_of_a_tables_size_is_made(tied, section, tmp_path):
    model = Language(TALL, 128, tied=tied)
    assert len(names_of(model)) == (1 if tied else 2)
    large = {"device_memory": "512MiB", "host_memory": "512MiB"}
    engine = artesian.initialize(model=model, config=config_for(**large, **section))[0]
    loss = engine(ids(0))
    engine.backward(loss)
    engine.step()
    with Largest() as largest:
        engine.backward(engine(ids(1)))
    assert largest.elements <= tables.SMALLEST
    assert largest.elements < TALL * 128 / 2
    engine.step()
    engine.destroy()


class Ends(nn.Module):
    """The logits of the last places alone, as generation asks for them."""

    def __init__(self, bias, places):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 1000, bias=bias)
        self.places = places

    def forward(self, hidden):
        return self.head(self.layer(hidden)[:, -self.places :])


class Operators(TorchDispatchMode):
    """Notes the names of all operators."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("frozen_by", ["nobody", "caller", "engine"])
def test_the_last_places_have_plain_pytorchs_bits(frozen_by, places, bias, dtype, all_are_tables):
    """PyTorch multiplies a slice of the hidden state by a frozen weight by repeating the weight for
    each row of the batch."""
    plain, model = Ends(bias, places), Ends(bias, places)
    if frozen_by == "caller":
        plain.head.requires_grad_(False)
        model.head.requires_grad_(False)
    if frozen_by == "engine":
        engine = artesian.init_inference(model, config_for(**SECTIONS[dtype]))
    else:
        engine = start(model, **SECTIONS[dtype])
    if engine._core.compute_dtype == "bf16":
        plain.bfloat16()
    hidden = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(2))
    hidden = hidden.to(plain.head.weight.dtype)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients and frozen_by != "engine"):
            expected = plain(hidden)
            with Operators() as operators:
                logits = engine(hidden)
        assert torch.equal(logits, expected)
        assert "mm" in operators.names and "bmm" not in operators.names
    if dtype == "fp32" and frozen_by == "nobody":
        expected.square().mean().backward()
        engine.backward(logits.square().mean())
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(zero.safe_get_full_grad(ours), theirs.grad)
        engine.step()
    engine.destroy()


def test_tiles_train_as_the_whole_matrix_does(tmp_path):
    """Products with parts of a matrix may differ from those with the whole one in the last bits."""
    plain = Language(TALL, 128)
    large = {"device_memory": "512MiB", "host_memory": "512MiB"}
    engine = artesian.initialize(model=Language(TALL, 128), config=config_for(**large))[0]
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(5):
        loss, expected = small_models.step_of_both(
            engine, plain, optimizer, lambda model: model(ids(step))
        )
        assert loss == pytest.approx(expected, rel=1e-6)
    engine.destroy()


def test_gradients_of_tables_can_be_read(all_are_tables):
    plain = Language(tied=True)
    plain(ids(0)).backward()
    model = Language(tied=True)
    engine = start(model)
    engine.backward(engine(ids(0)))
    read = zero.safe_get_full_grad(model.embed.weight)
    assert torch.equal(read, plain.embed.weight.grad)
    engine.step()
    engine.destroy()


class Fails(TorchDispatchMode):
    """Runs out of memory at a gradient's first tile."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.out:
            raise MemoryError("no memory for a tile")
        return func(*args, **(kwargs or {}))


def test_a_gradient_that_breaks_off_damages_the_step(all_are_tables):
    expected = trained(Language(), steps=1)
    engine = start(Language(), train_micro_batch_size_per_gpu=2)
    loss = engine(ids(7))
    with Fails(), pytest.raises(MemoryError, match="for a tile"):
        engine.backward(loss)
    with pytest.raises(artesian.Error, match="damaged"):
        engine.step()
    engine.zero_grad()
    engine.backward(engine(ids(0)))
    engine.step()
    assert engine.digest() == expected
    engine.destroy()


def test_words_that_are_no_rows_are_torchs_error(all_are_tables):
    engine = start(Language())
    with pytest.raises(IndexError, match="out of range"):
        engine(torch.tensor([[VOCABULARY]]))
    engine.backward(engine(ids(0)))
    engine.step()
    engine.destroy()


def test_autocast_is_followed(all_are_tables):
    plain = Language()
    engine = start(Language())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = plain(ids(0))
        loss = engine(ids(0))
    assert loss.item() == expected.item()
    engine.backward(loss)
    engine.step()
    engine.destroy()


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_generates_the_same_words(name, all_are_tables, tmp_path):
    model, batch = small_models.make(name)
    words = batch(0)["input_ids"]
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.eval().generate(words, **options)
    engine = zoo.engine_for(name, model, "nvme", tmp_path)
    assert torch.equal(engine.module.eval().generate(words, **options), expected)
    engine.destroy()


def test_frozen_tables_are_read_alone(all_are_tables, tmp_path):
    def frozen():
        model = Language()
        model.embed.requires_grad_(False)
        model.head.requires_grad_(False)
        return model

    plain = frozen()
    plain(ids(0)).backward()
    model = frozen()
    engine = start(model, tmp_path)
    engine.backward(engine(ids(0)))
    read = zero.safe_get_full_grad(model.layer.weight)
    assert torch.equal(read, plain.layer.weight.grad)
    engine.step()
    engine.destroy()


def test_the_modules_have_their_own_forward_again_when_the_engine_ends(all_are_tables):
    model = Language()
    engine = start(model)
    assert "forward" in vars(model.head)
    engine.destroy()
    assert "forward" not in vars(model.head)
    assert "forward" not in vars(model.embed)


def test_checkpoints_do_not_know_of_tables(monkeypatch, tmp_path):
    model = Language(tied=True)
    engine = start(model)
    engine.backward(engine(ids(0)))
    engine.step()
    engine.save_checkpoint(tmp_path)
    digest = engine.digest()
    engine.destroy()
    monkeypatch.setattr(tables, "SMALLEST", 1)
    engine = start(Language(tied=True))
    engine.load_checkpoint(tmp_path)
    assert engine.digest() == digest
    engine.destroy()
