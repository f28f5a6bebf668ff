"""Proves that the pages of docs/dev/ that say which test shows what name tests that are there:
functions and classes of Python's, and tests of C++'s."""

import re

import pytest
from build_folder import ROOT

PAGES = {"python-tests.md": 80, "gpu-tests.md": 80}  # how many names a page has at the least


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
