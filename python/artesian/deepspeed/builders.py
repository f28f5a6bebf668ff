"""deepspeed.ops.op_builder: tells whether an operator is available. Nothing is built at run time,
so builders load nothing."""

from __future__ import annotations

from typing import Any

from artesian.errors import UnsupportedError


class OpBuilder:
    """Builder of an operator that is not available."""

    NAME = ""
    SERVED = False

    def absolute_name(self) -> str:
        return f"deepspeed.ops.{self.NAME}"

    def is_compatible(self, verbose: bool = False) -> bool:
        """True if Artesian provides what DeepSpeed does with this operator."""
        return self.SERVED

    def load(self, verbose: bool = True) -> Any:
        raise UnsupportedError(
            f"{type(self).__name__}.load(): not supported: Artesian's operators are compiled into "
            "it, and have no module of their own"
        )


class AsyncIOBuilder(OpBuilder):
    NAME, SERVED = "async_io", True


class CPUAdamBuilder(OpBuilder):
    NAME, SERVED = "cpu_adam", True


class FusedAdamBuilder(OpBuilder):
    NAME, SERVED = "fused_adam", True


OTHERS = {
    "CPUAdagradBuilder": "cpu_adagrad",
    "CPULionBuilder": "cpu_lion",
    "EvoformerAttnBuilder": "evoformer_attn",
    "FPQuantizerBuilder": "fp_quantizer",
    "FusedLambBuilder": "fused_lamb",
    "FusedLionBuilder": "fused_lion",
    "GDSBuilder": "gds",
    "InferenceBuilder": "transformer_inference",
    "PinMemoryBuilder": "pin_memory",
    "QuantizerBuilder": "quantizer",
    "RaggedOpsBuilder": "ragged_device_ops",
    "SparseAttnBuilder": "sparse_attn",
    "SpatialInferenceBuilder": "spatial_inference",
    "TransformerBuilder": "transformer",
    "UtilsBuilder": "utils",
}
BUILDERS: dict[str, type[OpBuilder]] = {
    kind.__name__: kind for kind in (OpBuilder, AsyncIOBuilder, CPUAdamBuilder, FusedAdamBuilder)
} | {name: type(name, (OpBuilder,), {"NAME": own}) for name, own in OTHERS.items()}
globals().update(BUILDERS)


class CompatibleOps(dict[str, bool]):
    """deepspeed.ops.__compatible_ops__; unknown operators are not compatible."""

    def __missing__(self, name: str) -> bool:
        return False


__compatible_ops__ = CompatibleOps(
    {kind.NAME: kind.SERVED for kind in BUILDERS.values() if kind.NAME}
)
