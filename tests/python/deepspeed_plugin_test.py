"""Proves that the plugin which runs DeepSpeed's own tests counts what they show: tests of one
process run in pytest's own, each as in a new one; tests of several are skipped; those that meet
what is refused, or ask about what only DeepSpeed's classes have, are told apart from failures."""

import hf

# What DeepSpeed's tests/unit/common.py and conftest.py have of it.
COMMON = """
import deepspeed.comm as dist

class DistributedTest:
    is_dist_test, world_size = True, 2
    def __call__(self, request):
        self.test = getattr(self, request.function.__name__)
        self._launch_with_file_store(request, self.world_size)
    def _launch_with_file_store(self, request, world_size):
        raise AssertionError("several processes were started")
    def _dist_run(self, local_rank, num_procs, master_port, init_method):
        dist.init_distributed()
        self.test()
"""
CONFTEST = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: True
"""
TESTS = """
import os
import deepspeed, pytest, torch
from common import DistributedTest
from deepspeed.nobody.knows import this
from deepspeed.runtime.zero import nor_that

class TestOne(DistributedTest):
    world_size = 1
    def test_passes(self):
        assert deepspeed.comm.is_initialized()
        engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 2), config={})
        os.environ["LEFT"] = "something"
    def test_is_as_in_a_new_process(self):
        assert "LEFT" not in os.environ
        assert torch.initial_seed() == 67280421310721
    def test_calls(self):
        this(3)
    def test_expects_another_error_of_it(self):
        with pytest.raises(ValueError, match="another"):
            nor_that()
    def test_compares(self):
        assert torch.nn.functional.linear is nor_that
    def test_asks_a_member(self):
        engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 2), config={})
        engine._nobody_has
    def test_fails(self):
        assert not deepspeed.comm.is_initialized()
    @pytest.mark.world_size(3)
    def test_three(self):
        pass

class TestTwo(DistributedTest):
    def test_two(self):
        pass
"""


def test_what_tests_show_is_counted(tmp_path):
    unit = tmp_path / "unit"
    unit.mkdir()
    (unit / "common.py").write_text(COMMON)
    (unit / "conftest.py").write_text(CONFTEST)
    (unit / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = world_size: of a test\n")
    plugin = ["-p", "artesian.deepspeed.tests_support", "-p", "no:cacheprovider"]
    said = hf.run(tmp_path, "-m", "pytest", "-q", "--color=no", *plugin, unit, fails=True).stdout
    assert "1 failed, 2 passed, 6 skipped" in said, said
    assert "FAILED unit/test_it.py::TestOne::test_fails" in said
    part = said.split(" refused ")[1].split(" short test summary ")[0]
    for line in (
        "    1 deepspeed.nobody.knows.this: not supported by Artesian",
        "    1 deepspeed.runtime.zero.nor_that: not supported by Artesian",
        "    1 deepspeed.runtime.zero.nor_that: asked about, and not served",
        "    1 Engine._nobody_has: only DeepSpeed's own class has it",
        "    1 of 2",
        "    1 of 3",
    ):
        assert line in part, said
