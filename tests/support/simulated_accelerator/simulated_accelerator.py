"""torch.sim: the simulated accelerator, loaded by `import torch` where this folder is on PYTHONPATH
(an entry point of torch.backends, as any accelerator's package has one)."""

from __future__ import annotations

import _simulated as native
import torch


def is_available():
    return True


def is_initialized():
    return True


def init():
    pass


_lazy_init = init
_initialized = True  # else torch.utils.checkpoint does not restore the generator


def _is_in_bad_fork():
    return False


def device_count():
    return native.device_count()


def current_device():
    return native.current_device()


def _index(device):
    device = torch.device("sim", device) if isinstance(device, int) else torch.device(device)
    return native.current_device() if device.index is None else device.index


def set_device(device):
    native.set_device(_index(device))


class device:
    def __init__(self, device):
        self.index = _index(device)

    def __enter__(self):
        self.before = native.current_device()
        native.set_device(self.index)

    def __exit__(self, *error):
        native.set_device(self.before)


def manual_seed(seed):
    native.default_generator(current_device()).manual_seed(seed)


def manual_seed_all(seed):
    for index in range(device_count()):
        native.default_generator(index).manual_seed(seed)


def get_rng_state(device="sim"):
    return native.default_generator(_index(device)).get_state()


def set_rng_state(state, device="sim"):
    native.default_generator(_index(device)).set_state(state)


def get_rng_state_all():
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states):
    for index, state in enumerate(states):
        set_rng_state(state, index)


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation=True):
    return True


def synchronize(device=None):
    torch.accelerator.synchronize()


def current_stream(device=None):
    return torch.accelerator.current_stream()


def empty_cache():
    torch.accelerator.empty_cache()


def memory_allocated(device=None):
    return torch.accelerator.memory_allocated()


def max_memory_allocated(device=None):
    return torch.accelerator.max_memory_allocated()


def reset_peak_memory_stats(device=None):
    torch.accelerator.reset_peak_memory_stats()


def mem_get_info(device=None):
    return torch.accelerator.get_memory_info()


def alone(store, rank, size, timeout):
    """The accelerator's process group, of one process: an accelerator's package brings its own."""
    import torch.distributed as dist

    def done(value):
        future = torch.futures.Future()
        future.set_result(value)
        return torch._C._distributed_c10d._create_work_from_future(future)

    class Alone(dist.ProcessGroup):
        def getBackendName(self):
            return "alone"

        def allgather(self, outputs, inputs, options=None):
            for each, given in zip(outputs, inputs, strict=True):
                each[0].copy_(given)
            return done(outputs)

        def _allgather_base(self, output, given, options=None):
            output.copy_(given)
            return done(output)

        def allreduce(self, tensors, options=None):
            return done(tensors)

        broadcast = allreduce

        def barrier(self, options=None):
            return done([])

    return Alone(rank, size)


def start():
    import sys

    import torch.distributed

    torch.distributed.Backend.register_backend("alone", alone, devices=["sim"])

    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.__future__.set_swap_module_params_on_conversion(True)  # ties and identity stay
