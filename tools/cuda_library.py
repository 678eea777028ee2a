"""Builds the library of CUDA kernels for GPUs, with a compiler from packages. No GPU is needed.

    python tools/cuda_library.py twml_ops/libtwml_cuda.so

Clang 19 and the wheels of requirements/cuda.txt are unpacked in .cache/cuda, which neither needs
root nor changes the system. With --nvcc the compiler of a CUDA toolkit is used instead. The library
contains code for GPUs from Volta to Hopper, and PTX for newer ones. It needs no other CUDA library,
and loads where there is no driver.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "cuda"
ARCHITECTURES = ("sm_70", "sm_80", "sm_90")
CLANG = "clang++-19"
DEBIAN_PACKAGES = (
    "clang-19",
    "libclang-common-19-dev",
    "libclang-cpp19",
    "libllvm19",
    "llvm-19-linker-tools",
)
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    # Only explicit fused multiply-add: the CPU's kernels round in the same places.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    # This CUDA is newer than the compiler knows.
    "-Wno-unknown-cuda-version",
    "-Wno-pass-failed",
)


def run(*command: str | Path, folder: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Runs a command, which must succeed."""
    subprocess.run([str(c) for c in command], cwd=folder, env=env, check=True)


def clang() -> tuple[Path, dict[str, str]]:
    """Finds clang 19 on the system, or unpacks the packages of Debian.

    Returns:
        The compiler, and the environment in which it runs.
    """
    installed = shutil.which(CLANG)
    if installed is not None:
        return Path(installed), dict(os.environ)
    root = CACHE / "debian"
    if not (root / "complete").exists():
        if shutil.which("apt-get") is None:
            raise SystemExit(
                f"{CLANG} is not installed, and there is no apt-get to download it with"
            )
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        run("apt-get", "download", "-q", *DEBIAN_PACKAGES, folder=root)
        for package in root.glob("*.deb"):
            run("dpkg", "-x", package, root)
            package.unlink()
        (root / "complete").touch()
    libraries = os.pathsep.join(str(p) for p in (root / "usr/lib").glob("*-linux-gnu"))
    inherited = os.environ.get("LD_LIBRARY_PATH")
    path = libraries if not inherited else f"{libraries}{os.pathsep}{inherited}"
    return root / "usr/lib/llvm-19/bin/clang++", {**os.environ, "LD_LIBRARY_PATH": path}


def toolkit() -> Path:
    """Unpacks the wheels into one folder, as clang expects CUDA to be.

    Returns:
        The folder.
    """
    root = CACHE / "toolkit"
    if (root / "complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    wheels = root / "wheels"
    wheels.mkdir(parents=True)
    pins = ROOT / "requirements" / "cuda.txt"
    run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "-r", pins)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                parts = Path(name).parts  # nvidia/<component>/<folder of CUDA>/...
                if parts[0] == "nvidia" and len(parts) > 3 and not name.endswith("/"):
                    target = root.joinpath(*parts[2:])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
    shutil.rmtree(wheels)
    # A header of cuRAND that clang includes and the kernels do not need.
    (root / "include" / "curand_mtgp32_kernel.h").touch()
    (library,) = (root / "lib").glob("libnvfatbin.so*")
    program = root / "bin" / "fatbinary"
    program.write_text(
        "#!/bin/sh\n"
        f'NVFATBIN="{library}" exec "{sys.executable}" "{ROOT}/tools/fatbinary.py" "$@"\n'
    )
    for executable in ("fatbinary", "ptxas"):
        (root / "bin" / executable).chmod(0o755)
    (root / "complete").touch()
    return root


# Approximations, flushing of denormals, and functions of a library.
_INEXACT = re.compile(
    r"\b(?:(?:sqrt|rsqrt|rcp|div|ex2|lg2|sin|cos)\.(?:approx|full)|\w+\.ftz)[\w.]*"
)
_MAY_BE_INEXACT = "UpdateRuleE5E"  # Ftrl has a learning_rate_power, for which it calls powf


def inexact_instructions(ptx: str) -> dict[str, set[str]]:
    """Finds instructions that do not round as instructions of CPUs do.

    Args:
        ptx: The assembly of kernels.

    Returns:
        Name of a function -> its instructions. Kernels of Ftrl are left out.
    """
    found = {}
    for function in re.split(r"^(?=\.(?:visible|weak|func|entry)\b)", ptx, flags=re.MULTILINE):
        head = re.match(r"[^(]*\b(_Z\w+)\(", function.replace("\n", " "))
        name = head[1] if head else ""
        inexact = set(_INEXACT.findall(function))
        if inexact and _MAY_BE_INEXACT not in name:
            found[name] = inexact
    return found


def build(output: Path, architectures: tuple[str, ...] = ARCHITECTURES) -> None:
    """Compiles the kernels and links the library.

    Args:
        output: The library.
        architectures: The GPUs that it has code for. It has PTX for the last of them.
    """
    compiler, env = clang()
    cuda = toolkit()
    objects = CACHE / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    offload = [f"--offload-arch={a}" for a in architectures]
    offload += ["--no-cuda-include-ptx=all", f"--cuda-include-ptx={architectures[-1]}"]
    compiled = []
    for source in sorted((ROOT / "cc" / "cuda").glob("*.cu")):
        compiled.append(objects / f"{source.stem}.o")
        include = [f"-I{ROOT}", "-isystem", cuda / "include"]
        run(
            compiler, "-x", "cuda", f"--cuda-path={cuda}", *offload, *FLAGS, *include,
            "-save-temps=obj", "-c", source, "-o", compiled[-1], env=env,
        )  # fmt: skip
        for ptx in objects.glob(f"{source.stem}-cuda-*.s"):
            inexact = inexact_instructions(ptx.read_text())
            if inexact:
                raise SystemExit(f"{source.name} has instructions that round wrongly: {inexact}")
    partial = output.with_suffix(".partial")
    run(
        compiler, "-shared", *compiled, cuda / "lib" / "libcudart_static.a", "-o", partial,
        "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-s", "-ldl", "-lrt", "-lpthread", env=env,
    )  # fmt: skip
    partial.replace(output)


def build_with_nvcc(output: Path, nvcc: Path, architecture: str) -> None:
    """Compiles the kernels with nvcc, of CUDA 13, and links the library.

    Args:
        output: The library.
        nvcc: The compiler.
        architecture: The GPU that it has code for.
    """
    virtual = architecture.replace("sm_", "compute_")
    code = f"arch={virtual},code=[{architecture},{virtual}]"

    def compile_file(source: Path) -> Path:
        # nvcc names its intermediate files by the source.
        folder = objects / source.stem
        folder.mkdir()
        run(
            nvcc, "-std=c++17", "-O3", "-gencode", code,
            # Only explicit fused multiply-add, as above; cc/core has constexpr functions for both.
            "-fmad=false", "--expt-relaxed-constexpr",
            "-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror", f"-I{ROOT}",
            "--keep", "--keep-dir", folder, "-c", source, "-o", folder / "object.o",
        )  # fmt: skip
        (ptx,) = folder.glob("*.ptx")
        inexact = inexact_instructions(ptx.read_text())
        if inexact:
            raise SystemExit(f"{source.name} has instructions that round wrongly: {inexact}")
        return folder / "object.o"

    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = Path(temporary)
        compiled = list(pool.map(compile_file, sorted((ROOT / "cc" / "cuda").glob("*.cu"))))
        partial = output.with_suffix(".partial")
        # The wheels of CUDA have their libraries where nvcc does not look for them.
        wheel = nvcc.resolve().parent.parent / "lib"
        run(
            nvcc, "-shared", "-cudart", "static", f"-L{wheel}", *compiled, "-o", partial,
            "-Xlinker", "--exclude-libs=ALL", "-Xlinker", "--gc-sections", "-Xlinker", "-s",
        )  # fmt: skip
        partial.replace(output)


def main() -> None:
    """Parses the command line and builds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("output", type=Path, help="the library")
    parser.add_argument(
        "--arch", nargs="+", default=ARCHITECTURES, help="GPUs to compile for (%(default)s)"
    )
    parser.add_argument("--nvcc", type=Path, help="compile with this nvcc, for the last of --arch")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    if arguments.nvcc is None:
        build(output, tuple(arguments.arch))
    else:
        build_with_nvcc(output, arguments.nvcc, arguments.arch[-1])


if __name__ == "__main__":
    main()
