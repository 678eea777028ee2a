"""The TPU compiler, asked without a TPU."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_INSTALL = 'install them: pip install "twml_ops[tpu]"'


class CompileError(Exception):
    """The TPU compiler refused the module; its own words."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler says of a module, for one device.

    Attributes:
        device: its kind, in the compiler's words.
        devices: how many there are in the topology.
        flops: floating-point operations of one call.
        bytes: read and written in memory.
        arguments: bytes of the inputs: batch, weights and slots.
        outputs: bytes of results that do not take an input's place.
        temporary: bytes in between.
        code: bytes of the program.
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
        """Bytes in use at most."""
        return self.arguments + self.outputs + self.temporary + self.code


def compile_for(hlo: bytes, topology: str) -> Compiled:
    """Compiles a serialized HLO module, in a process of its own.

    Args:
        hlo: an `HloModuleProto`.
        topology: as in "v5e:2x2".

    Raises:
        ImportError: JAX or libtpu is not installed, or another version than this knows.
        CompileError: the compiler refused.
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
