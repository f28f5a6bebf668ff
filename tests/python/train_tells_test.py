"""Proves what `artesian train` tells of that which moves its bytes: memory that is not on 2 MiB
pages."""

import limits
from train_cli_test import make_model, place, pytestmark  # noqa: F401


@limits.needs_huge_pages
def test_memory_on_small_pages_is_one_warning(place):  # noqa: F811
    def change(config):
        config["artesian"] = {"device_memory": "16MiB", "host_memory": "16MiB"}

    config = place.write_config(change)
    model = make_model(place.folder / "larger", n_embd=192)  # tiers of more than a huge page
    result = place.run("--quiet", config=config, model=model,
                       preexec_fn=limits.no_huge_pages_for_ever)  # fmt: skip
    assert result.returncode == 0 and result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("artesian: warning: of ")
    assert "(PR_SET_THP_DISABLE, inherited from what started it)" in result.stderr
    allowed = place.run("--quiet", config=config, model=model, preexec_fn=limits.no_huge_pages)
    assert (allowed.returncode, allowed.stderr) == (0, "")
