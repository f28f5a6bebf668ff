"""Training of a small model in plain PyTorch, as *numbers_test.py compare it with our program: the
model is transformers', the optimizer torch.optim's, the rest follows reference formulas and rules
of exactness, written here a second time.

A run is a list of one dictionary per step, with the fields of --log-jsonl that have the same names.
"""

import dataclasses
import math

import numpy
import torch
import transformers
from first_calls import make_first_calls

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
HALF_MAX = 65520.0  # from here on a float rounds to infinity in fp16


@dataclasses.dataclass
class Run:
    steps: list
    weights: dict  # name -> fp32 tensor at the end
    overflow_ratios: list  # by step: the largest scaled gradient / the least that overflows in fp16


def height_of_cycle(params, updates):
    """OneCycle's, from 0 to 1; nothing behind the cycle, whose last step has height 0."""
    first = params["cycle_first_step_size"]
    second = params["cycle_second_step_size"]
    return updates / first if updates <= first else max(0.0, (first + second - updates) / second)


def betas(config, updates):
    """Of Adam; OneCycle lowers beta1 while it raises the rate."""
    scheduler = config.get("scheduler", {})
    if scheduler.get("type") != "OneCycle":
        return tuple(config["optimizer"]["params"]["betas"])
    low, high = 0.8, 0.9
    share = height_of_cycle(scheduler["params"], updates)
    return (low if updates == 0 else high - (high - low) * share), 0.99


def learning_rate(config, updates):
    """DeepSpeed's schedules: `updates` earlier steps changed the weights."""
    base = config["optimizer"]["params"]["lr"]
    if "scheduler" not in config:
        return base
    kind, params = config["scheduler"]["type"], config["scheduler"]["params"]
    if kind == "LRRangeTest":
        intervals = updates / params["lr_range_test_step_size"]
        return params["lr_range_test_min_lr"] * (1 + params["lr_range_test_step_rate"] * intervals)
    if kind == "OneCycle":
        low, high = params["cycle_min_lr"], params["cycle_max_lr"]
        over = updates - params["cycle_first_step_size"] - params["cycle_second_step_size"]
        if over > 0:
            return low / (1 + params["decay_lr_rate"] * over / params["decay_step_size"])
        return low + (high - low) * height_of_cycle(params, updates)
    i = updates - 1
    steps = max(2, params["warmup_num_steps"])
    if params.get("warmup_type", "log") == "log":
        share = math.log(max(i, 0) + 1) / math.log(steps)
    else:
        share = i / steps
    if kind == "WarmupCosineLR":
        if i < 0:
            return 0.0
        low, floor = params.get("warmup_min_ratio", 0.0), params.get("cos_min_ratio", 1e-4)
        if i < steps:
            return base * (low + (1 - low) * share)
        position = min(1.0, (i - steps + 1) / max(1, params["total_num_steps"] - steps))
        return base * (floor + (1 - floor) * (1 + math.cos(math.pi * position)) / 2)
    low = params.get("warmup_min_lr", 0.0)
    high = params.get("warmup_max_lr", base)  # for WarmupDecayLR DeepSpeed takes 0.001
    if i < 0:
        return low
    if i >= steps:
        total = params.get("total_num_steps", 0)
        share = 1.0 if kind == "WarmupLR" else max(0.0, (total - i) / max(1, total - steps))
    return low + (high - low) * share


class AtMinimumScale(Exception):
    """An overflow that the loss scale cannot answer any more."""


class LossScaler:
    """DeepSpeed's DynamicLossScaler.update_scale; static where the config gives a scale."""

    def __init__(self, fp16):
        self.static = fp16.get("loss_scale", 0) > 0
        self.scale = fp16["loss_scale"] if self.static else 2.0 ** fp16["initial_scale_power"]
        self.window = fp16.get("loss_scale_window", 1000)
        self.full = self.left = fp16.get("hysteresis", 2)
        self.consecutive = fp16.get("consecutive_hysteresis", False)
        self.minimum = fp16.get("min_loss_scale", 1)
        self.iteration, self.last = 0, -1

    def update(self, overflow):
        if self.static:
            return
        if overflow:
            if self.full == 1 or self.left == 1:
                if self.scale == self.minimum:
                    raise AtMinimumScale
                self.scale = max(self.scale / 2, self.minimum)
            else:
                self.left -= 1
            self.last = self.iteration
        else:
            if self.consecutive:
                self.left = self.full
            clean = self.iteration - self.last - 1
            if clean > 0 and clean % self.window == 0:
                if not self.consecutive:
                    self.left = self.full
                self.scale *= 2
        self.iteration += 1


def batches(config, tokens, length):
    """Endless micro-batches (ids, targets) [samples, length] in sequential order."""
    samples = (len(tokens) - 1) // length
    size = config["train_micro_batch_size_per_gpu"]
    number = 0
    while True:
        starts = [(number + k) % samples * length for k in range(size)]
        windows = numpy.stack([tokens[start : start + length + 1] for start in starts])
        windows = torch.from_numpy(windows.astype(numpy.int64))
        yield windows[:, :-1], windows[:, 1:]
        number += size


def load(directory):
    make_first_calls()
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).train()


def make_optimizer(config, parameters):
    params = config["optimizer"]["params"]
    decoupled = params.get("adam_w_mode", True)
    return (torch.optim.AdamW if decoupled else torch.optim.Adam)(
        parameters,
        lr=params["lr"],
        betas=tuple(params["betas"]),
        eps=params["eps"],
        weight_decay=params["weight_decay"],
    )


def cross_entropy(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip_factor(config, norm):
    """What DeepSpeed divides by; its default bound is 1 here as in our program."""
    bound = config.get("gradient_clipping", 1.0)
    return max(1.0, (norm + 1e-6) / bound) if bound > 0 else 1.0


def square_norm(gradients):
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))


def update(config, optimizer, updates):
    lr = learning_rate(config, updates)
    for group in optimizer.param_groups:
        group["lr"] = lr
        group["betas"] = betas(config, updates)
    optimizer.step()
    return lr


def train_fp32(directory, config, tokens, length, steps):
    model = load(directory)
    optimizer = make_optimizer(config, model.parameters())
    source = batches(config, tokens, length)
    accumulation = config["gradient_accumulation_steps"]
    log = []
    for step in range(steps):
        optimizer.zero_grad()
        losses = []
        for _ in range(accumulation):
            ids, targets = next(source)
            loss = cross_entropy(model(input_ids=ids).logits, targets)
            (loss / accumulation).backward()
            losses.append(loss.item())
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = square_norm(gradients)
        for gradient in gradients:
            gradient.div_(clip_factor(config, norm))
        lr = update(config, optimizer, step)
        line = {"step": step + 1, "loss": numpy.mean(losses), "lr": lr, "grad_norm": norm}
        log.append(line | {"loss_scale": 1.0, "overflow": False})
    return Run(log, {name: p.detach() for name, p in model.named_parameters()}, [])


class RoundedGradients:
    """One step's gradients, 16-bit wherever they are kept.

    Each micro-batch's gradient is rounded to `dtype` and added, rounded to `accumulated`. The
    embedding's own part is summed per row in fp32 over the step, rounded, and added once, last."""

    def __init__(self, dtype, accumulated):
        self.dtype, self.accumulated = dtype, accumulated
        self.sums, self.rows, self.largest = {}, None, 0.0

    def add(self, name, gradient):
        self.note(gradient)
        rounded = gradient.to(self.dtype)
        total = rounded.float()
        if name in self.sums:
            total = self.sums[name].float() + total
            self.note(total)
        self.sums[name] = total.to(self.accumulated)

    def add_rows(self, ids, gradient, shape):
        if self.rows is None:
            self.rows = torch.zeros(shape)
        self.rows.index_add_(0, ids.flatten(), gradient.flatten(0, 1))

    def finish(self, embedding):
        self.add(embedding, self.rows)
        return self.sums

    def note(self, values):
        self.largest = max(self.largest, float(values.nan_to_num(nan=math.inf).abs().max()))


def embedding_name(model):
    table = model.get_input_embeddings().weight
    return next(name for name, parameter in model.named_parameters() if parameter is table)


def add_micro_batch(model, gradients, ids, targets, multiplier):
    """Forward and backward in fp32; the tied embedding's two gradients come apart because the
    model is given the looked-up rows. Returns the loss."""
    model.zero_grad()
    table = model.get_input_embeddings().weight
    rows = table.detach()[ids].requires_grad_()
    loss = cross_entropy(model(inputs_embeds=rows).logits, targets)
    (loss * multiplier).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:  # an untied embedding has no gradient but its rows'
            gradients.add(name, parameter.grad)
    gradients.add_rows(ids, rows.grad, table.shape)
    return loss.item()


def sum_gradients(model, master, config, source, multiplier):
    """One step's (RoundedGradients, sums by name, losses of the micro-batches)."""
    name = "fp16" if "fp16" in config else "bf16"
    accumulated = config.get("data_types", {}).get("grad_accum_dtype", name)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(master[parameter_name].to(DTYPES[name]))
    gradients = RoundedGradients(DTYPES[name], DTYPES.get(accumulated, torch.float32))
    losses = [
        add_micro_batch(model, gradients, *next(source), multiplier)
        for _ in range(config["gradient_accumulation_steps"])
    ]
    return gradients, gradients.finish(embedding_name(model)), losses


def master_weights(model):
    return {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}


def first_gradients(directory, config, tokens, length):
    """The first step's sums by name, as they are kept: in 16 bit, times the loss scale."""
    model = load(directory)
    scale = LossScaler(config.get("fp16", {"loss_scale": 1.0})).scale
    source = batches(config, tokens, length)
    multiplier = scale / config["gradient_accumulation_steps"]
    return sum_gradients(model, master_weights(model), config, source, multiplier)[1]


def train_16_bit(directory, config, tokens, length, steps):
    """fp32 master weights; forward and backward in fp32 from weights rounded to 16 bit."""
    model = load(directory)
    master = master_weights(model)
    optimizer = make_optimizer(config, master.values())
    source = batches(config, tokens, length)
    scaler = LossScaler(config.get("fp16", {"loss_scale": 1.0}))
    log, ratios, updates = [], [], 0
    for step in range(steps):
        scale = scaler.scale
        multiplier = scale / config["gradient_accumulation_steps"]
        gradients, sums, losses = sum_gradients(model, master, config, source, multiplier)
        overflow = not all(bool(value.isfinite().all()) for value in sums.values())
        norm = square_norm(sums.values()) / scale
        lr = learning_rate(config, updates)
        if not overflow:
            for name, value in sums.items():
                master[name].grad = value.float() / (scale * clip_factor(config, norm))
            update(config, optimizer, updates)
            updates += 1
        line = {"step": step + 1, "loss": numpy.mean(losses), "lr": lr, "loss_scale": scale}
        log.append(line | {"overflow": overflow, "grad_norm": None if overflow else norm})
        ratios.append(gradients.largest / HALF_MAX)
        scaler.update(overflow)
    return Run(log, {name: value.detach() for name, value in master.items()}, ratios)


def train(directory, config, tokens, length, steps):
    rounded = "fp16" in config or "bf16" in config
    return (train_16_bit if rounded else train_fp32)(directory, config, tokens, length, steps)
