"""Proves that the plugin which runs DeepSpeed's own tests counts what they show: tests of one
process run in pytest's own, each as in a new one, and tests of several in processes of theirs, in
which models of the CPU may be wrapped for a device; those that meet what is refused, or ask about
what only DeepSpeed's classes have, are told apart from failures."""

import hf

# The parts of DeepSpeed's tests/unit/common.py and conftest.py that the plugin relies on.
COMMON = """
import deepspeed.comm as dist

class DistributedTest:
    is_dist_test, world_size = True, 2
    def __call__(self, request):
        self.test = getattr(self, request.function.__name__)
        self._launch_with_file_store(request, self.world_size)
    def _launch_with_file_store(self, request, world_size):
        raise AssertionError("DeepSpeed's launcher was called")
    def _dist_run(self, local_rank, num_procs, master_port, init_method):
        dist.init_distributed(init_method=init_method, rank=local_rank, world_size=num_procs)
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
        ranks = torch.zeros(2)
        deepspeed.comm.all_gather_into_tensor(ranks, torch.tensor(1.0 + deepspeed.comm.get_rank()))
        assert ranks.tolist() == [1.0, 2.0]
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[0])
    def test_two_where_one_fails(self):
        assert deepspeed.comm.get_rank() == 0, "on the second"
        deepspeed.comm.barrier()
    def test_two_meet_what_is_refused(self):
        this(deepspeed.comm.get_rank())
"""


def test_what_tests_show_is_counted(tmp_path):
    unit = tmp_path / "unit"
    unit.mkdir()
    (unit / "common.py").write_text(COMMON)
    (unit / "conftest.py").write_text(CONFTEST)
    (unit / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = world_size: of a test\n")
    plugin = ["-p", "artesian.deepspeed.tests_support", "-p", "no:cacheprovider"]
    plugin += ["--ranks-max", "2"]
    said = hf.run(tmp_path, "-m", "pytest", "-q", "--color=no", *plugin, unit, fails=True).stdout
    assert "2 failed, 3 passed, 6 skipped" in said, said
    assert "FAILED unit/test_it.py::TestOne::test_fails" in said
    assert "FAILED unit/test_it.py::TestTwo::test_two_where_one_fails" in said
    assert "rank 1:" in said and "AssertionError: on the second" in said
    part = said.split("= refused =")[1].split(" short test summary ")[0]
    for line in (
        "    2 deepspeed.nobody.knows.this: not supported by Artesian",
        "    1 deepspeed.runtime.zero.nor_that: not supported by Artesian",
        "    1 deepspeed.runtime.zero.nor_that: asked about, and not served",
        "    1 Engine._nobody_has: only DeepSpeed's own class has it",
    ):
        assert line in part, said
