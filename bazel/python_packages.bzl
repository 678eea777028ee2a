"""Finds the headers and libraries of the Python packages that the native code is built against."""

load("//bazel:targets.bzl", "TENSORFLOW_DEFINES")

_PROBE = """
import json, sysconfig
import pybind11, tensorflow as tf
print(json.dumps({
    "python_include": sysconfig.get_paths()["include"],
    "pybind11_include": pybind11.get_include(),
    "tensorflow_include": tf.sysconfig.get_include(),
    "tensorflow_lib": tf.sysconfig.get_lib(),
    "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "tag": "tf" + ".".join(tf.__version__.split(".")[:2]),
}))
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "pybind11",
    hdrs = glob(["pybind11/**/*.h", "python/**/*.h"]),
    includes = ["pybind11", "python"],
)

cc_library(
    name = "tensorflow",
    srcs = ["lib/libtensorflow_framework.so.2"],
    hdrs = glob(["tensorflow/**"], exclude = ["**/*.so"]),
    defines = %r,
    includes = ["tensorflow"],
)
"""

def _python_packages_impl(repository_ctx):
    python = repository_ctx.os.environ.get("PYTHON_BIN_PATH") or repository_ctx.which("python3")
    done = repository_ctx.execute([python, "-c", _PROBE], environment = {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if done.return_code != 0:
        fail("%s cannot import tensorflow and pybind11:\n%s" % (python, done.stderr))
    found = json.decode(done.stdout.strip().split("\n")[-1])
    repository_ctx.symlink(found["python_include"], "python")
    repository_ctx.symlink(found["pybind11_include"], "pybind11")
    repository_ctx.symlink(found["tensorflow_include"], "tensorflow")
    repository_ctx.symlink(
        found["tensorflow_lib"] + "/libtensorflow_framework.so.2",
        "lib/libtensorflow_framework.so.2",
    )
    repository_ctx.file("BUILD", _BUILD % TENSORFLOW_DEFINES)
    repository_ctx.file(
        "names.bzl",
        "CORE_LIBRARY = %r\nOPS_LIBRARY = %r\n" % (
            "_core" + found["ext_suffix"],
            "_twml_ops.%s.so" % found["tag"],
        ),
    )

python_packages = repository_rule(
    implementation = _python_packages_impl,
    environ = ["PYTHON_BIN_PATH"],
    local = True,
)
