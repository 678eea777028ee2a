"""A program that compiles an HLO module for an absent TPU or GPU, and prints a JSON report.

    python _compile.py MODULE.hlo v5e:2x2
    python _compile.py MODULE.hlo 1x1x1 GPU.textproto

It is a separate process because JAX and TensorFlow each bring their own XLA, and because the
compiler may crash. This is the only file with private imports of JAX, whose public functions
compile only what JAX has traced.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# JAX must not look for a device.
os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
)


def main(path: str, topology: str, gpu: str | None = None) -> dict[str, Any]:
    """Compiles a module.

    Args:
        path: File of the serialized `HloModuleProto`.
        topology: The target, such as "v5e:2x2", or the shape of a slice of GPUs.
        gpu: File of a `GpuTargetConfigProto` as text; None for TPUs.

    Returns:
        The fields of `twml_ops.tpu.compile_subprocess.Compiled`.
    """
    if gpu is not None:
        _find_assembler()
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    if gpu is None:
        target = topologies.get_topology_desc(topology_name=topology, platform="tpu")
    else:
        target = topologies.get_topology_desc(
            topology=topology, platform="cuda", target_config=Path(gpu).read_text()
        )
    devices = target.devices
    stablehlo = _jax.mlir.hlo_to_stablehlo(Path(path).read_bytes())
    module = ir.Module.parse(stablehlo, mlir.make_ir_context())
    _remove_copies(module.operation)
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    compiled = devices[0].client.compile(module, xla_client.DeviceList((devices[0],)), options)
    memory = compiled.get_compiled_memory_stats()
    if gpu is None:
        cost = compiled.cost_analysis()
    else:  # not implemented for absent GPUs: the counts before XLA's optimizations
        computation = xla_client.XlaComputation(Path(path).read_bytes())
        host = xla_client.make_cpu_client()
        cost = _jax.hlo_module_cost_analysis(host, computation.get_hlo_module())
    return {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "flops": cost.get("flops", 0.0),
        "bytes": cost.get("bytes accessed", 0.0),
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
    }


def _find_assembler() -> None:
    """Tells XLA where CUDA's assembler is, and that there is no GPU to measure kernels on."""
    from importlib.util import find_spec

    found = find_spec("nvidia.cuda_nvcc")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'nvidia.cuda_nvcc'")
    folder = next(iter(found.submodule_search_locations))
    os.environ["PATH"] = os.pathsep.join([f"{folder}/bin", os.environ.get("PATH", "")])
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={folder}"
        " --xla_gpu_autotune_level=0"
    )


def _remove_copies(operation: Any) -> None:
    """Removes TensorFlow's `mhlo.copy` ops, which are not StableHLO and have no effect."""
    for region in operation.regions:
        for block in region.blocks:
            for child in list(block.operations):
                if child.operation.name == "mhlo.copy":
                    copied = child.operation.operands[0]
                    child.operation.results[0].replace_all_uses_with(copied)
                    child.operation.erase()
                else:
                    _remove_copies(child.operation)


if __name__ == "__main__":
    del sys.path[0]  # modules in the program's folder must not shadow others
    try:
        result = main(*sys.argv[1:])
    except ImportError as e:
        result = {"missing": str(e)}
    except Exception as e:
        result = {"error": f"{e}"}
    print("\n" + json.dumps(result))
