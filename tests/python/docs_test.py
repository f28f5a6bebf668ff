"""Proves that the pages of docs/dev/ that say which test shows what name tests that are there:
functions and classes of Python's, and tests of C++'s. And that names of the Python package that the
pages write are there, in a process that has done nothing but `import artesian`."""

import os
import re
import subprocess
import sys

import pytest
from build_folder import BUILD, ROOT

PAGES = {"python-tests.md": 80, "gpu-tests.md": 80}  # how many names a page has at the least


CONFIG = ROOT / "docs" / "config.md"


def text_of(page):
    return (ROOT / "docs" / "dev" / page).read_text()


def names_of(page):
    return sorted(set(re.findall(r"`(\w+_test)::(\w+)`", text_of(page))))


@pytest.mark.parametrize("page, least", PAGES.items())
def test_all_names_are_in_the_form_that_is_looked_for(page, least):
    assert len(names_of(page)) > least
    text = text_of(page)
    assert text.count("::") == len(re.findall(r"`\w+_test::(\w+|…)`", text))


@pytest.mark.parametrize(
    "page, file", sorted({(page, file) for page in PAGES for file, _ in names_of(page)})
)
def test_what_the_page_names_is_there(page, file):
    found = [path for path in (ROOT / "tests").rglob(f"{file}.*") if path.suffix in (".py", ".cpp")]
    assert found
    text = "\n".join(path.read_text() for path in found)
    for name in (name for known, name in names_of(page) if known == file):
        form = rf"^(def {name}\(|class {name}\b|TEST\w*\(\w+, {name}\))"
        assert re.search(form, text, re.MULTILINE), name


def pages():
    return {path: path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]}


def package_names():
    """Those after "artesian.", but keys of the config, programs, plugins and files."""
    keys = set(re.findall(r"`(artesian\.\w+)`", CONFIG.read_text()))
    names = set()
    for text in pages().values():
        for before, name in re.findall(r"(-m |-p |import )?\b(artesian(?:\.[A-Za-z_]\w*)+)", text):
            is_word = name.split(".")[-1].isupper() or name == "artesian.pth"
            if not (before or is_word or name in keys):
                names.add(name)
    return sorted(names)


# Each name is asked for in a new process, since a process that has loaded a module finds the next.
ASK = """
import os, sys, torch
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        import artesian
        value = artesian
        for part in name.split(".")[1:]:
            value = getattr(value, part)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.mark.skipif(not (BUILD / "python").exists(), reason="the Python package is not built")
def test_names_of_the_package_are_there_after_importing_it_alone():
    names = package_names()
    assert {"artesian.initialize", "artesian.zero.Init"} <= set(names)
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
    words = [sys.executable, "-c", ASK, *names]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not (BUILD / "python").exists(), reason="the Python package is not built")
def test_members_of_an_engine_that_the_page_writes_are_there():
    import torch
    from small_models import artesian

    text = (ROOT / "docs" / "python.md").read_text()
    model = torch.nn.Linear(2, 2)
    engine, optimizer, _, _ = artesian.initialize(model=model, config={})
    for owner, name in ((engine, "engine"), (optimizer, "optimizer"), (artesian.zero, "zero")):
        members = set(re.findall(rf"\b(?<!-){name}\.([A-Za-z_]\w*)", text))
        members -= {"params"}  # of the config's optimizer section
        assert members, name
        for member in members:
            assert hasattr(owner, member), f"{name}.{member}"
    engine.destroy()
