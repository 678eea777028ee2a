"""The compile flags of native_build.py, for Bazel."""

COPTS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
]

LINKOPTS = [
    "-pthread",
    "-Wl,--as-needed",
]

TF_COPTS = [
    "-DEIGEN_USE_THREADS",
    "-DNDEBUG",
    "-Wno-deprecated-declarations",
]

# x86-64; on another machine only "baseline" applies.
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
