"""Proves that every command and every block of code in README.md and in the users' pages of docs/
works as written: it is run with a small model, folder and config in place of the page's names, and
with fewer steps; or it is listed below with the reason why not and the file that runs it."""

import json
import os
import re
import subprocess
import sys

import pytest
from build_folder import BUILD, PROGRAMS, ROOT
from train_cli_test import ENVIRONMENT, PROGRAM, Place

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(
    r"(artesian|deepspeed|torchrun|mpirun|srun|build/bin/\w+|make|pip|python3?|dev/\S+|cmake|ctest|"
    r"[A-Z_]+=\S+) "
)
OURS = re.compile(r"artesian |build/bin/|(dev/setup\.sh |PYTHONPATH=python )python3 -m artesian")

# Commands that are not run here, by their first words: the reason, and the file that runs them.
LEFT_OUT = {
    "make wheel": ("builds for minutes", "dev/wheel.sh"),
    "make build": ("builds for minutes", ".ci/run"),
    "make test": ("runs this test", ".ci/run"),
    "make demo": ("takes minutes", ".ci/run"),
    "make soak": ("takes 20 minutes", "dev/soak.sh"),
    "make bench": ("takes two hours; its parts run small", "tests/python/bench_test.py"),
    "pip install --no-deps dist/": ("needs the wheel", "dev/wheel.sh"),
    "pip uninstall deepspeed": ("is the reader's choice", "dev/wheel.sh"),
    "pip install --no-build-isolation .": ("builds for minutes", "dev/wheel.sh"),
    "dev/setup.sh cmake --install": ("installs and builds against it", "dev/check_install.sh"),
    "cmake": ("configures and builds without LibTorch", "dev/check_install.sh"),
    "ctest": ("runs all tests of a kind", "dev/test.sh"),
    "dev/setup.sh python3 -m pytest": ("runs tests", "dev/test.sh"),
    "dev/carry.sh": ("builds in a bare Debian", "tests/python/carry_test.py"),
    "dev/gpu_check.sh": ("needs a GPU", "tests/python/gpu_check_test.py"),
    "python3 bench/tune_check.py": ("needs fio", "tests/python/tune_check_test.py"),
    "ARTESIAN_AS_DEEPSPEED=1 python": ("starts Trainer", "tests/python/trainer_test.py"),
    "ARTESIAN_AS_DEEPSPEED=1 accelerate": ("starts Accelerate", "tests/python/trainer_test.py"),
    "torchrun": ("starts ranks, some of them elsewhere", "tests/python/ranks_test.py"),
    "deepspeed train.py": ("needs the wheel", "tests/python/deepspeed_command_test.py"),
    "python -m artesian.run": ("starts Trainer", "tests/python/deepspeed_name_test.py"),
}
# What a page writes in place of the reader's own names, and its replacement here; the first that
# matches a word applies.
IN_PLACE = [
    (r"\[--json FILE\]|\[--verify\]|\[--json -\]", ""),
    (r"\[(--[\w-]+) ([^\]|]+)(\|[^\]]*)?\]", r"\1 \2"),  # an optional flag is given
    (r"train --config ds_config\.json \.\.\.", "train ..."),
    (r"\btrain \.\.\.", "train --model DIR --data TEXT --config ds.json --steps 2 --seq-len 16"),
    (r"\bplan \.\.\.", "plan --model DIR --config ds.json --seq-len 16"),
    (r"--steps 1000", "--steps 2"),
    (r"--seq-len (1024|L)\b", "--seq-len 16"),
    (r"-every (100|500)\b", "-every 1"),
    (r"TEXT\.\.\.|TEXT_OR_TOKENS|\bTEXT\b", "{data}"),
    (r"--tokenizer DIR", "--tokenizer {tokenizer}"),
    (r"\bDIR\b", "{model}"),
    (r"\bCKPT\b|/data/ckpt", "{folder}/checkpoints"),
    (r"\bOUT\b", "{folder}/out"),
    (r"/nvme\b", "{folder}"),
    (r"checkpoint\.NAME\b", "checkpoint.import_dcp"),
    (r"^build/bin/|^(?=artesian )", "{programs}/"),
    (r"\bdev/setup\.sh python3?\b|\bpython3?(?= -m)", "{python}"),
    (r"PYTHONPATH=python ", "PYTHONPATH={build}/python "),
    (r"(aio_bench tune .*)", r"\1 --size 16MiB --budget-seconds 0.6"),
]


def blocks_of(page):
    """Returns (language, text) of each fenced block and each block indented by four spaces."""
    text = page.read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield language, block
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for block in re.findall(r"(?:^    .*\n)+", text, re.M):
        yield "", re.sub(r"^    ", "", block, flags=re.M)


def commands_of(page):
    """Returns the commands of a block without comments and remarks, which stand two or more columns
    to the right."""
    for language, block in blocks_of(page):
        if language not in ("", "sh", "bash"):
            continue
        joined = re.sub(r"\s*\\\n\s*", " ", block)
        for line in joined.splitlines():
            if COMMAND.match(line):
                yield re.split(r"\s+# |\s{3,}", line)[0].strip()


def left_out(command):
    return next((why for start, why in LEFT_OUT.items() if command.startswith(start)), None)


ALL = {(page, command): left_out(command) for page in PAGES for command in commands_of(page)}
RUN = [(page.name, each) for (page, each), why in ALL.items() if not why and OURS.match(each)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, its text and a config by the names that pages use; a run, and its checkpoints."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    place = Place(tmp_path_factory.mktemp("commands"))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([place.data.read_text()], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>"
    ).save_pretrained(place.folder / "tokenizer")
    for name in ("ds.json", "ds_config.json"):
        (place.folder / name).write_bytes(place.config.read_bytes())
    place.trained("--resume", steps=2, seq_len=16, checkpoint_every=1,
                  checkpoint_dir=place.folder / "checkpoints")  # fmt: skip
    return place


def in_place(command, place):
    for pattern, ours in IN_PLACE:
        command = re.sub(pattern, ours, command)
    return command.format(
        model=place.model, data=place.data, folder=place.folder, programs=PROGRAMS, build=BUILD,
        tokenizer=place.folder / "tokenizer", python=sys.executable,
    )  # fmt: skip


@pytest.mark.parametrize(("page", "command"), RUN, ids=lambda each: each[:60])
def test_a_command_of_a_page_runs(page, command, place):
    if " report " in command:
        pytest.importorskip("matplotlib")
    paths = [str(BUILD / "python"), str(ROOT / "python"), *sys.path]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths),
                   "ARTESIAN_PYTHON": sys.executable}  # fmt: skip
    run = in_place(command, place)
    done = subprocess.run(run, shell=True, cwd=place.folder, env=environment, timeout=300,
                          capture_output=True, text=True)  # fmt: skip
    if "--params 70e9" in command or "--params 8.03e9" in command:
        # A model as large as the page's needs the page's config, so a refusal for size is accepted.
        assert done.returncode == 0 or "The model has " in done.stderr, done.stderr
    else:
        assert done.returncode == 0, f"{run}\n{done.stdout}{done.stderr}"


def test_what_is_not_run_says_why_and_where_it_is():
    assert len(RUN) >= 15 and len(ALL) >= 40
    others = [each for (_, each), why in ALL.items() if not why and not OURS.match(each)]
    assert not others, "run these, or name them in LEFT_OUT"
    used = {start for start in LEFT_OUT for _, command in ALL if command.startswith(start)}
    assert used == set(LEFT_OUT)  # every entry of LEFT_OUT still occurs on a page
    for why, where in LEFT_OUT.values():
        assert why and (ROOT / where).exists(), where


# Code


def code(language):
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (kind, block) in enumerate(blocks_of(page))
        if kind == language
    ]


@pytest.mark.parametrize("block", code("python"))
def test_a_block_of_python_runs(block, tmp_path, monkeypatch):
    import small_models

    model, batch_of = small_models.make("gpt2")
    config = small_models.config_for(gradient_accumulation_steps=2)
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    artesian = small_models.artesian
    names = {"artesian": artesian, "model": model, "batch": batch_of(0), "epoch": 3,
             "loader": [batch_of(0), batch_of(1)]}  # fmt: skip
    if "initialize(" not in block:
        names["engine"] = artesian.initialize(model=model, config="ds_config.json")[0]
    exec(compile(block, "page", "exec"), names)
    assert names["engine"].is_closed == ("destroy()" in block)


@pytest.mark.parametrize("block", code("json"))
def test_a_block_of_json_is_a_config(block):
    import small_models

    from artesian.config import read_config

    read = read_config({**small_models.config_for(), **json.loads(block)}, "page")
    assert not read.notes


HEADERS = "\n".join(
    path.read_text()
    for folder in ("base", "aio", "pinned", "tiering", "zero3", "models")
    for path in (ROOT / folder).rglob("*.h")
)


@pytest.mark.parametrize("block", code("cpp"))
def test_names_of_a_block_of_cpp_are_declared(block):
    """Blocks of C++ are not compiled here: dev/check_install.sh compiles examples/own_trainer and
    examples/tiering_only, which make these calls."""
    text = re.sub(r"//.*", "", block)
    names = set(re.findall(r"(?:zero3|tiering|aio|pinned)::(\w+)", text))
    names |= set(re.findall(r"(?:engine|reader|store)(?:->|\.)(\w+)\(", text))
    names |= set(re.findall(r"[{,]\s*\.(\w+) =", text))
    missing = {name for name in names if not re.search(rf"\b{name}\b", HEADERS)}
    assert names and not missing
