"""Runs XLA's compiler for TPUs or GPUs in a subprocess, without such a device."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_NEEDED = 'tpu-check needs jax and libtpu ({}); install them: pip install "twml_ops[tpu]"'
_NEEDED_FOR_GPUS = (
    "gpu-check needs jax, jax-cuda12-plugin and nvidia-cuda-nvcc-cu12 ({}); install them in an "
    'environment of their own: pip install "twml_ops[gpu-check]"'
)


class CompileError(Exception):
    """The compiler has rejected a module. The message is the compiler's."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's figures of a compiled module, for one device.

    Attributes:
        device: The kind of device, in the compiler's words.
        devices: The number of devices in the topology.
        flops: Floating-point operations of one call.
        bytes: Bytes read from and written to memory by one call.
        arguments: Size of the arguments in bytes: batch, weights and slots.
        outputs: Size of the results in bytes, without those that reuse the memory of an argument.
        temporary: Size of intermediate results in bytes.
        code: Size of the program in bytes.
        aliased: Size in bytes of the results that reuse the memory of an argument.
    """

    device: str
    devices: int
    flops: float
    bytes: float
    arguments: int
    outputs: int
    temporary: int
    code: int
    aliased: int

    @property
    def memory(self) -> int:
        """Memory that one call needs, in bytes."""
        return self.arguments + self.outputs + self.temporary + self.code


def compile_for(hlo: bytes, topology: str, gpu: str | None = None) -> Compiled:
    """Compiles a serialized HLO module.

    Args:
        hlo: A serialized `HloModuleProto`.
        topology: The target, such as "v5e:2x2", or the shape of a slice of GPUs.
        gpu: Description of a GPU (see `chips.gpu_target_config`); None for TPUs.

    Returns:
        The compiler's figures.

    Raises:
        ImportError: JAX or the plugin for the target is not installed, or has an unsupported
            version.
        CompileError: The compiler has rejected the module or crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.hlo"
        path.write_bytes(hlo)
        program = Path(__file__).parent / "_compile.py"
        command = [sys.executable, str(program), str(path), topology]
        if gpu is not None:
            config = Path(folder) / "gpu.textproto"
            config.write_text(gpu)
            command.append(str(config))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise CompileError(f"the compiler crashed: {done.stderr[-2000:]}") from None
    missing = answer.get("missing")
    if missing is None and "libtpu" in answer.get("error", "") and "flops" not in answer:
        missing = answer["error"]
    if missing is not None:
        raise ImportError((_NEEDED if gpu is None else _NEEDED_FOR_GPUS).format(missing))
    if "error" in answer:
        raise CompileError(answer["error"])
    return Compiled(**answer)
