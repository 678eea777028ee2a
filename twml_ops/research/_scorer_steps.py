"""The steps of a scorer for `DHENBlock`, its interactions, `LearnedHash` and towers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twml_ops import research
from twml_ops._keras import LayerCall
from twml_ops.export.scorer_fields import crossed, rows_of_ids
from twml_ops.export.scorer_program import CompileLayer, Dense, Program


class _Interaction:
    """Appends the steps of an interaction, which read its weights by their names.

    Args:
        program: The program.
        layer: The interaction, or the block.
    """

    def __init__(self, program: Program, layer: Any) -> None:
        self.program, self.layer = program, layer

    def weight(self, name: str) -> Any:
        return self.program.value(getattr(self.layer, name))

    def step(self, op: str, *inputs: str, arrays: Any = None, **attributes: Any) -> str:
        out = self.program.new()
        self.program.step(op, list(inputs), [out], arrays, **attributes)
        return out

    def affine(self, x: str, name: str) -> str:
        arrays = {"kernel": self.weight(name), "bias": self.weight(f"{name}_bias")}
        return self.step("dense", x, arrays=arrays)

    def relu(self, x: str) -> str:
        return self.step("activation", x, name="relu")

    def reshape(self, x: str, *shape: int) -> str:
        return self.step("reshape", x, shape=list(shape))

    def combine(self, x: str, name: str = "fields") -> str:
        return self.step("combine_vectors", x, arrays={"kernel": self.weight(name)})

    def normalized_sum(self, x: str, y: str, prefix: str = "") -> str:
        scale, offset = (self.weight(f"{prefix}{name}") for name in ("scale", "offset"))
        total = self.step("add", x, y)
        normal = self.step("layer_normalization", total, epsilon=self.layer.epsilon)
        return self.step("affine", normal, arrays={"factor": scale, "offset": offset})


def _linear(make: _Interaction, x: str) -> str:
    return make.combine(x)


def _dot(make: _Interaction, x: str) -> str:
    layer = make.layer
    last = len(layer.hidden)
    y = make.step("dot_interaction", x)
    for i in range(last):
        y = make.relu(make.affine(y, f"dense_{i}"))
    y = make.affine(y, f"dense_{last}")
    size = make.weight(f"dense_{last}_bias").size
    outputs = layer.num_outputs or _fields_of_pairs(len(make.weight("dense_0")))
    return make.reshape(y, outputs, size // outputs)


def _fields_of_pairs(pairs: int) -> int:
    """F of F (F - 1) / 2."""
    return round((1 + (1 + 8 * pairs) ** 0.5) / 2)


def _attention(make: _Interaction, x: str) -> str:
    parts = [make.affine(x, name) for name in ("query", "key", "value")]
    mixed = make.step("self_attention", *parts, num_heads=make.layer.num_heads)
    x = make.normalized_sum(x, make.affine(mixed, "output_projection"), "attention_norm_")
    dense = make.affine(make.relu(make.affine(x, "dense_0")), "dense_1")
    return make.combine(make.normalized_sum(x, dense, "dense_norm_"))


def _cross(make: _Interaction, x: str) -> str:
    fields = len(make.weight("fields"))
    flat = reduced = make.reshape(x, -1)
    if make.layer.rank is not None:
        reduced = make.step("dense", flat, arrays={"kernel": make.weight("cross_factor")})
    product = make.affine(reduced, "cross")
    crossed = make.step("cross", flat, flat, product, diag_scale=0.0)
    return make.combine(make.reshape(crossed, fields, -1))


def _convolution(make: _Interaction, x: str) -> str:
    fields = len(make.weight("fields"))
    size, _, _, filters = make.weight("kernels").shape
    kernels = make.weight("kernels").reshape(size * size, filters)
    patches = make.step("patches", x, size=int(size))
    arrays = {"kernel": kernels, "bias": make.weight("kernels_bias")}
    images = make.relu(make.step("dense", patches, arrays=arrays))
    return make.combine(make.reshape(make.affine(images, "images"), fields, -1))


def _interaction(append: Callable[[_Interaction, str], str]) -> CompileLayer:
    def compile_layer(program: Program, layer: Any, call: LayerCall) -> list[Any]:
        x = program.dense(call.inputs[0], layer.name)
        return [Dense(append(_Interaction(program, layer), x))]

    return compile_layer


def _tower_module(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    make = _Interaction(program, layer)
    x0 = flat = make.reshape(program.dense(call.inputs[0], layer.name), -1)
    if layer.fields is not None:
        size = layer.units
        x0 = make.step(
            "concatenate",
            *(make.step("slice", flat, begin=f * size, size=size) for f in layer.fields),
            axis=-1,
        )
    x = x0
    for cross in layer.cross_layers():
        x = crossed(program, cross, x0, x)
    arrays = {"kernel": program.value(layer.kernel), "bias": program.value(layer.bias)}
    return [Dense(make.step("dense", x, arrays=arrays))]


def _tower(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    vectors = (call.outputs[0], "vectors")
    program.add(LayerCall(layer.embedding, call.inputs, (vectors,), {}, ()))
    return _tower_module(program, layer.module, LayerCall(layer.module, (vectors,), (), {}, ()))


def _dhen_block(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    make, x = _Interaction(program, layer), program.dense(call.inputs[0], layer.name)
    made = []
    for i, module in enumerate(layer.modules):
        key = (call.outputs[0], i)
        # Refuses modules that no scorer supports by their names.
        program.add(LayerCall(module, call.inputs[:1], (key,), {}, ()))
        made.append(program.dense(key, module.name))
    if layer.module_weights is not None:
        zero = np.zeros(1, np.float32)
        made = [
            make.step("affine", y, arrays={"factor": weight, "offset": zero})
            for y, weight in zip(
                made, np.split(make.weight("module_weights"), len(made)), strict=True
            )
        ]
    concat = layer.ensemble == "concat"
    joined = make.step("concatenate", *made, axis=1) if concat else make.step("add", *made)
    kept = x if layer.shortcut is None else make.combine(x, "shortcut")
    return [Dense(make.normalized_sum(joined, kept))]


def _learned_hash(program: Program, layer: Any, call: LayerCall) -> list[Any]:
    keys, numbers, hashed = (program.value(v) for v in layer.state_variables[:3])
    # The numbers are from 1.
    arrays = {"keys": keys, "rows": numbers - 1, "hashed": hashed}
    return rows_of_ids(program, layer, call, "learned_hash", arrays)


RESEARCH_LAYERS: dict[Any, CompileLayer] = {
    research.DHENBlock: _dhen_block,
    research.FieldAttention: _interaction(_attention),
    research.FieldConvolution: _interaction(_convolution),
    research.FieldCross: _interaction(_cross),
    research.FieldDot: _interaction(_dot),
    research.FieldLinear: _interaction(_linear),
    research.LearnedHash: _learned_hash,
    research.Tower: _tower,
    research.TowerModule: _tower_module,
}
