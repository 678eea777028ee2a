"""Runs the TPU compiler in a subprocess, without a TPU."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_INSTALL = 'install them: pip install "twml_ops[tpu]"'


class CompileError(Exception):
    """The TPU compiler has rejected a module. The message is the compiler's."""


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
    """

    device: str
    devices: int
    flops: float
    bytes: float
    arguments: int
    outputs: int
    temporary: int
    code: int

    @property
    def memory(self) -> int:
        """Memory that one call needs, in bytes."""
        return self.arguments + self.outputs + self.temporary + self.code


def compile_for(hlo: bytes, topology: str) -> Compiled:
    """Compiles a serialized HLO module.

    Args:
        hlo: A serialized `HloModuleProto`.
        topology: The target, such as "v5e:2x2".

    Returns:
        The compiler's figures.

    Raises:
        ImportError: JAX or libtpu is not installed, or has an unsupported version.
        CompileError: The compiler has rejected the module or crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.hlo"
        path.write_bytes(hlo)
        program = Path(__file__).parent / "_compile.py"
        command = [sys.executable, str(program), str(path), topology]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise CompileError(f"the TPU compiler crashed: {done.stderr[-2000:]}") from None
    missing = answer.get("missing")
    if missing is None and "libtpu" in answer.get("error", "") and "flops" not in answer:
        missing = answer["error"]
    if missing is not None:
        raise ImportError(f"tpu-check needs jax and libtpu ({missing}); {_INSTALL}")
    if "error" in answer:
        raise CompileError(answer["error"])
    return Compiled(**answer)
