"""The rooms of ARCHITECTURE.md and the arrows between them, read from every import and #include.

An import counts wherever it stands: at the top of a module, in a function, or under TYPE_CHECKING.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A room is a package or a module of twml_ops, without those of its parts that are rooms themselves;
# "" is twml_ops/__init__.py. Each line names the rooms that a room imports, all of them on lines
# further down, so that there is no cycle. A room that the list does not name is an error.
ARROWS = {
    "cli": "cli.commands cli.errors _deferred_imports _garbage_collection _startup_log _terminal",
    "cli.commands": "cli.runs cli.errors checkpoint selfcheck",
    "cli.runs": "cli.render cli.results cli.errors analysis export serving tpu distribute search "
    "models peers layers optimizers placement checkpoint data planning _known_categories _keras "
    "_child _publish _scorer ''",
    "cli.render": "cli.results analysis tpu search data planning _terminal",
    "cli.results": "analysis planning",
    "callbacks": "models placement _keras",
    "search": "models layers optimizers data",
    "cli.errors": "",
    "selfcheck": "core ops _keras _startup_log ''",
    "analysis": "layers metrics data _batch ops _core _keras",
    "tpu": "layers optimizers placement _batch ops _keras",
    "distribute": "checkpoint layers optimizers placement ops peers planning _keras _child",
    "estimator": "export checkpoint optimizers ops",
    "serving": "core _scorer _raw_columns _known_categories",
    "export": "models checkpoint data layers ops ops.stock core _scorer _category_hash "
    "_known_categories _keras _publish",
    "models": "data layers placement _batch ops _keras",
    "checkpoint": "layers optimizers data placement ops core _keras _publish",
    "planning": "",
    "peers": "core _child",
    "data": "core _category_hash",
    "metrics": "_keras",
    "layers": "placement _batch core _category_hash _category_keys ops _keras _publish _terminal",
    "optimizers": "placement ops ops.stock _keras",
    "placement": "ops _keras",
    "_batch": "ops _keras",
    "ops": "ops.xla ops.stock core _keras",
    "ops.xla": "ops.stock",
    "ops.stock": "core",
    "_category_hash": "core",
    "core": "_scorer _core",
    "_scorer": "_raw_columns _core",
    "_raw_columns": "",
    "_known_categories": "",
    "_category_keys": "",
    "_keras": "",
    "_child": "",
    "_publish": "",
    "_terminal": "",
    "_startup_log": "_tensorflow_import",
    "_deferred_imports": "_tensorflow_import",
    "_garbage_collection": "_tensorflow_import",
    "_tensorflow_import": "",
    "_core": "",
    "": "",
}

# Module-level __getattr__ makes an import that this test cannot see, and can hide a cycle.
LAZY = {"twml_ops"}

# The same of #include: folder -> what its files include by quotes, by the start of the path.
INCLUDES = {
    "cc/core": ("cc/core/",),
    "cc/core/scorer": ("cc/core/",),
    "cc/core/simd": ("cc/core/",),
    "cc/cuda": ("cc/core/bfloat16.h", "cc/core/hash.h", "cc/core/simd/update_steps.h", "cc/cuda/"),
    "cc/serving": ("cc/core/", "cc/serving/", "twml_ops/include/"),
    "cc/tf/ops": ("cc/core/", "cc/tf/ops/", "tensorflow/"),
    "cc/tf/kernels": (
        *("cc/core/", "cc/cuda/twml_cuda.h", "cc/tf/kernels/", "absl/", "tensorflow/"),
        "xla/stream_executor/stream.h",
    ),
    "python": ("cc/core/", "cc/serving/", "python/"),
}
# And by angle brackets, beside the standard library.
SYSTEM_INCLUDES = {
    "cc/core": r"(sys/(file|mman|stat|syscall)|linux/io_uring)\.h",
    "cc/core/scorer": r"fcntl\.h|sys/(mman|stat)\.h|unistd\.h",
    "cc/core/simd": r"immintrin\.h",
    "cc/cuda": r"cub/device/.*",
    "cc/tf/kernels": r"(arpa/inet|netinet/(in|tcp)|sys/(socket|time|uio))\.h",
    "python": r"pybind11/.*",
}


def modules():
    """Name -> path of every module."""
    for path in sorted((ROOT / "twml_ops").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(name, path):
    """The modules of this package that a module imports, anywhere in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{start}.{alias.name}"
                yield whole if whole in MODULES or whole == "twml_ops._core" else start


GRAPH = {
    name: {i for i in imports(name, path) if i.split(".")[0] == "twml_ops"} - {name}
    for name, path in MODULES.items()
}


def room_of(module):
    """The smallest room that a module is in; None if it is in no room."""
    inner = module.partition(".")[2]
    names = [r for r in ARROWS if inner == r or (r and inner.startswith(f"{r}."))]
    return max(names, key=len, default=None)


def arrows_of(graph):
    """(room, imported room) -> a module and the one that it imports, for every arrow there is."""
    found = {}
    for module, imported in graph.items():
        for other in sorted(imported):
            pair = room_of(module), room_of(other)
            if pair[0] != pair[1]:
                found.setdefault(pair, f"{module} imports {other}")
    return found


def allowed():
    return {
        (room, "" if to == "''" else to) for room, line in ARROWS.items() for to in line.split()
    }


def cycle_in(graph):
    """The modules of one cycle, or None."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return None
        path.append(module)
        for other in sorted(graph.get(module, ())):
            if (found := visit(other)) is not None:
                return found
        path.pop()
        done.add(module)
        return None

    return next((found for m in sorted(graph) if (found := visit(m)) is not None), None)


def test_every_module_is_in_a_room():
    assert [m for m in MODULES if room_of(m) is None] == []


def test_rooms_import_only_rooms_below_them():
    rooms = list(ARROWS)
    upward = [(a, b) for a, b in allowed() if rooms.index(b) <= rooms.index(a)]
    assert upward == []


def test_no_module_imports_what_its_room_may_not():
    found = arrows_of(GRAPH)
    wrong = [what for pair, what in found.items() if pair not in allowed()]
    assert wrong == []


def test_every_allowed_arrow_is_there():
    assert allowed() - set(arrows_of(GRAPH)) == set()


def test_no_modules_import_each_other_in_a_circle():
    assert cycle_in(GRAPH) is None


def test_imports_at_the_top_of_functions_and_under_type_checking_count(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "from twml_ops import ops\n"
        "if TYPE_CHECKING:\n    from twml_ops.layers import SparseLinear\n"
        "def f():\n    import twml_ops.data.open\n    from . import planning\n"
    )
    found = {i for i in imports("twml_ops.a", path) if i.startswith("twml_ops")}
    assert found == {f"twml_ops.{m}" for m in ("ops", "layers", "data.open", "planning")}


def test_a_circle_and_a_forbidden_arrow_would_be_found():
    circle = {"twml_ops.ops": {"twml_ops.layers.a"}, "twml_ops.layers.a": {"twml_ops.ops"}}
    assert sorted(cycle_in(circle)) == ["twml_ops.layers.a", "twml_ops.ops"]
    assert ("ops", "layers") in set(arrows_of(circle)) - allowed()


def test_no_module_imports_lazily_by_getattr():
    lazy = {
        name
        for name, path in MODULES.items()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    }
    assert lazy == LAZY


def sources():
    for folder in ("cc", "python"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".cu", ".cuh"):
                yield pytest.param(path, id=str(path.relative_to(ROOT)))


@pytest.mark.parametrize("path", list(sources()))
def test_sources_include_only_what_is_below_their_folder(path):
    folder = str(path.parent.relative_to(ROOT))
    found = re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', path.read_text(), re.M)
    ours = [name for mark, name in found if mark == '"']
    assert [n for n in ours if not n.startswith(INCLUDES[folder])] == []
    system = rf"[a-z_]+(\.h)?|{SYSTEM_INCLUDES.get(folder, '(?!)')}"  # <vector>, <math.h>
    assert [n for mark, n in found if mark == "<" and not re.fullmatch(system, n)] == []


# They read or write numbers, or classify characters, as the locale of the program says.
OF_LOCALE = (
    r"\b(strto(d|f|ld|l|ll|ul|ull)|ato(f|i|l|ll)|sto(d|f|ld|i|l|ll|ul|ull)|v?s?n?f?(scanf|printf)"
    r"|setlocale|isspace|isdigit|isalpha|isalnum|isupper|islower|tolower|toupper)\s*\("
)


def test_no_native_code_depends_on_the_locale_of_the_program():
    """The numbers of a folder are the same everywhere: `std::from_chars` and `std::to_chars`."""
    texts = {case.id: case.values[0].read_text(encoding="utf-8") for case in sources()}
    found = {path: re.findall(OF_LOCALE, re.sub(r"//.*", "", t)) for path, t in texts.items()}
    assert {path: calls for path, calls in found.items() if calls} == {}
    assert re.findall(OF_LOCALE, "std::strtod(text, nullptr)")


def test_the_folder_map_names_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text()
    paths = set(re.findall(r"`((?:cc|python|tests|tools|twml_ops|benchmarks)/[\w./]+)`", text))
    assert "twml_ops/cli/commands/train.py" in paths
    assert [p for p in sorted(paths) if not (ROOT / p).exists()] == []
