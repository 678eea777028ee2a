"""Sources and flags of the native targets.

The BUILD files load these constants, and native_build.py reads the same file as Python literals. A
new flag or SIMD level is therefore added here and nowhere else. New source files need no change,
because the patterns below match them.
"""

# Patterns of the source files, relative to the folder of the BUILD file that loads them.
CORE_SOURCES = ["*.cc", "scorer/*.cc"]  # cc/core
SIMD_SOURCES = ["simd/*.cc"]  # cc/core, compiled once for each level of SIMD_COPTS
SERVING_SOURCES = ["*.cc"]  # cc/serving
OP_SOURCES = ["ops/*.cc"]  # cc/tf; native_build.py compiles them as one file
KERNEL_SOURCES = ["kernels/*.cc"]  # cc/tf
BINDING_SOURCES = ["*.cc"]  # python
TEST_SOURCES = ["*_test.cc"]  # tests/cc

# Flags of all source files.
COPTS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    # Compilers, and their versions, differ in which products and sums they fuse by themselves.
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
]

# Further flags of the C++ tests, which are mostly calls of GoogleTest: -O1 halves the time of their compilation.
TEST_COPTS = ["-O1"]

# Flags of each SIMD level; cc/core/simd_dispatch.h chooses one at run time. "baseline" is compiled on
# every machine and the other levels on x86-64.
SIMD_COPTS = {
    "baseline": [],
    "avx2": [
        "-mavx2",
        "-mfma",
        "-mf16c",
    ],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ],
}

# Flags of the TensorFlow ops. Minor versions of TensorFlow deprecate what older ones still need.
OPS_COPTS = [
    "-DEIGEN_USE_THREADS",
    "-DNDEBUG",
    "-Wno-deprecated-declarations",
]

# Macros that the headers of TensorFlow require, from 2.15 on.
TENSORFLOW_DEFINES = [
    "EIGEN_MAX_ALIGN_BYTES=64",
    "_GLIBCXX_USE_CXX11_ABI=1",
]

# Flags for linking the two shared libraries.
LINKOPTS = [
    "-pthread",
    "-Wl,--as-needed",
]
