"""Proves that how a run ended is its last line: all steps done, stopped by a signal, ended by an
error, or no step taken at all, which is an error that saves nothing; and that weights which are not
finite are named as they are read, and no other tensor is blamed for them."""

import json
import signal
import struct

import pytest
from train_cli_test import place, pytestmark  # noqa: F401

BAD = "h.1.mlp.c_fc.weight"


def last_line(result):
    return result.stderr.splitlines()[-1]


def with_weight(place, value, at=7):
    """The model with weights of its own, of which one element of BAD is this: its folder."""
    saved = place.folder / "saved"
    place.trained("--init", save=saved, save_dtype="fp32")
    path = saved / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    (name,) = [name for name in header if name.endswith(BAD)]
    start = 8 + size + header[name]["data_offsets"][0] + 4 * at
    data[start : start + 4] = struct.pack("<f", value)
    path.write_bytes(data)
    return saved


def in_fp32(place):
    return place.write_config(lambda config: config.pop("fp16"))


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_item_6_a_run_that_took_no_step_says_so(place, quiet):
    model, out = with_weight(place, float("nan")), place.folder / "out"
    done = place.run(*quiet, model=model, config=in_fp32(place), steps=4, save=out,
                     log_jsonl=place.log)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert [line["overflow"] for line in place.steps()] == [True] * 4
    assert not out.exists()
    lines = done.stderr.splitlines()
    assert (f"artesian: warning: --model: {model}: {BAD}: element 7: got nan, which is not "
            "finite; losses will hardly be finite") in lines  # fmt: skip
    assert ("artesian: error: no step was taken: all 4 were skipped, as the loss was not finite; "
            f"weights that are not finite are in {BAD}; repair them, or start at random: --init"
            ) in lines  # fmt: skip
    assert "wte.weight" not in done.stderr
    assert lines[-1] == "artesian: note: ended by an error after step 4 of 4; nothing is saved"


def test_item_6_a_weight_above_the_dtype_is_named(place):
    model = with_weight(place, 1e5)
    done = place.run(model=model, steps=1)
    assert f"{BAD}: element 7: got 100000.000000, above the largest fp16; " in done.stderr
    assert BAD not in place.run(model=model, config=in_fp32(place), steps=1).stderr
    assert BAD not in place.run("--init", model=model, steps=1).stderr


def test_item_6_a_run_whose_loss_scale_has_not_come_down_says_so(place):
    def change(config):
        config["fp16"] = {"enabled": True, "initial_scale_power": 40, "hysteresis": 1}

    done = place.run("--quiet", config=place.write_config(change), steps=1)
    assert done.returncode == 1
    assert "no step was taken: the only one was skipped, as gradients were not finite; the loss " \
           "scale has come down to " in done.stderr  # fmt: skip


def test_item_7_a_run_that_did_all_steps_says_so_unless_quiet(place):
    out = place.folder / "out"
    assert last_line(place.run(steps=3)) == "artesian: note: done after step 3 of 3"
    done = place.run(steps=3, save=out)
    assert last_line(done) == f"artesian: note: done after step 3 of 3; saved to {out}"
    assert place.run("--quiet", steps=3).stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("saves", [False, True])
def test_item_7_a_stop_is_a_line_also_with_quiet(place, number, saves):
    out = place.folder / "out" if saves else None
    process = place.start_and_wait_for_a_step(save=out)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    end = f"; saved to {out}" if saves else ""
    steps = len(place.steps())
    assert errors == (f"artesian: note: stopped by {number.name} after step {steps} of 1000000"
                      f"{end}\n")  # fmt: skip
