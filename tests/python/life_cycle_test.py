"""Proves that a model outlives its engine: after destroy() its parameters are plain tensors with
the values of the last step, wherever the state was, and another engine takes them; that one which
is made without destroy() takes the model from the first; and that nothing stays on the disk."""

import pytest
import small_models
import torch
from small_models import artesian


def train(engine, batch, steps):
    losses = []
    for step in range(steps):
        losses.append(engine(**batch(step)).loss)
        engine.backward(losses[-1])
        engine.step()
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_after_destroy_parameters_are_plain_and_another_engine_takes_them(place, tmp_path, caplog):
    model, batch = small_models.make("llama_tied")
    folder = tmp_path if place == "nvme" else None
    config = small_models.config_for(folder, bf16={"enabled": True})
    engine = artesian.initialize(model=model.eval(), config=config)[0]
    losses = train(engine, batch, 2)
    weights = engine.consolidated_state_dict()
    engine.backward(engine(**batch(2)).loss)  # in the middle of a step
    engine.destroy()
    engine.destroy()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        plain = model(**batch(5)).loss.item()
    second = artesian.initialize(model=model, config=config)[0]
    with torch.no_grad():
        assert second(**batch(5)).loss.item() == pytest.approx(plain, rel=1e-2)
    again = train(second, batch, 2)
    assert again[0] < losses[0]
    third = artesian.initialize(model=model, config=config)[0]  # the later one wins
    assert second.is_closed and "has an engine already" in caplog.text
    assert train(third, batch, 1)[0] < again[0]
    third.destroy()
    assert list(tmp_path.iterdir()) == []
