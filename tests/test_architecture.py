"""The packages of ARCHITECTURE.md ("rooms" here) and the arrows between them, from every import.

An import counts wherever it stands: at the top of a module, in a function, or under TYPE_CHECKING.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A room is a package or a module of twml_ops, without its parts that are rooms themselves;
# "" is twml_ops/__init__.py. Each line names the rooms that a room imports, all of them on lines
# further down, so that there is no cycle. A room that the list does not name is an error.
ARROWS = {
    "classifier": "cli report training analysis data layers _frames _known_categories",
    "cli": "report training analysis serving tpu distribute research models peers layers "
    "optimizers checkpoint data planning selfcheck _arrow_columns _known_categories _keras _child "
    "_phases _terminal _startup_log _tensorflow_import ''",
    "report": "training analysis export layers data planning _known_categories _phases",
    "training": "analysis export distribute models peers layers optimizers placement checkpoint "
    "data planning _known_categories _keras _phases _publish _scorer ''",
    "selfcheck": "core ops _keras _startup_log ''",
    "analysis": "layers metrics data _batch ops _core _keras",
    "tpu": "layers optimizers placement ops _keras",
    "distribute": "checkpoint layers optimizers placement ops peers planning _keras _child",
    "estimator": "export checkpoint optimizers ops",
    "serving": "core _scorer _raw_columns _known_categories",
    # No package below imports it: they ask _research.py.
    "research": "export models layers optimizers data placement ops _category_hash _keras _publish",
    "export": "models checkpoint data layers ops ops.stock core _scorer _arrow_columns "
    "_category_hash _known_categories _research _keras _publish",
    "models": "data layers placement _batch ops _research _keras _phases",
    "checkpoint": "layers optimizers data placement ops core _keras _publish",
    "planning": "",
    "peers": "core _child",
    "data": "core _category_hash _arrow_columns _tensorflow_import",
    "metrics": "_keras",
    "layers": "placement _batch core _category_hash ops _research _keras _publish _terminal",
    "optimizers": "placement ops ops.stock _research _keras",
    "placement": "ops _keras",
    "_batch": "ops _keras",
    "_research": "_keras_classes",
    "ops": "ops.xla ops.stock core _keras",
    "ops.xla": "ops.stock",
    "ops.stock": "core",
    "_category_hash": "core",
    "core": "_scorer _core",
    "_scorer": "_raw_columns _frames _core",
    "_raw_columns": "",
    "_frames": "_arrow_columns",
    "_arrow_columns": "",
    "_known_categories": "",
    "_keras": "_keras_classes",
    "_child": "",
    "_phases": "",
    "_publish": "",
    "_terminal": "",
    "_startup_log": "_tensorflow_import",
    "_core": "",
    "": "_keras_classes",
    "_keras_classes": "_tensorflow_import",
    "_tensorflow_import": "",
}

# Module-level __getattr__ makes an import that this test cannot see, and can hide a cycle. That
# of `data` imports what needs TensorFlow.
LAZY = {"twml_ops", "twml_ops.data"}

# The same of #include: folder -> what its files include by quotes, by the start of the path.
INCLUDES = {
    "cc/core": ("cc/core/",),
    "cc/core/scorer": ("cc/core/",),
    "cc/core/simd": ("cc/core/",),
    "cc/cuda": (
        "cc/core/bfloat16.h",
        "cc/core/hash.h",
        "cc/core/simd/update_formulas.h",
        "cc/cuda/",
    ),
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
    "cc/cuda": r"(cub/device|thrust/iterator)/.*",
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


@functools.cache
def whole_graph():
    """Name -> the modules that it imports, of every module."""
    return {
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
    found = arrows_of(whole_graph())
    wrong = [what for pair, what in found.items() if pair not in allowed()]
    assert wrong == []


def test_every_allowed_arrow_is_there():
    assert allowed() - set(arrows_of(whole_graph())) == set()


def test_only_the_door_and_commands_name_the_module_of_research():
    """Others ask the door, so `import twml_ops.models` imports no published method."""
    found = {
        room_of(name)
        for name, path in MODULES.items()
        if any(w.startswith("twml_ops.research") for w in texts_of(path))
    }
    assert found - {"cli"} == {"research", "_research"}


def texts_of(path):
    """The strings and the imported modules of a file, other than docstrings."""
    tree = ast.parse(path.read_text())
    prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_modules_import_each_other_in_a_circle():
    assert cycle_in(whole_graph()) is None


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


def test_a_training_knows_neither_the_command_line_nor_a_console():
    """What it has to say goes to a `Reporter`."""
    modules = {n: p for n, p in MODULES.items() if room_of(n) == "training"}
    assert len(modules) > 10
    packages = {i.split(".")[0] for n, p in modules.items() for i in imports(n, p)}
    assert packages & {"typer", "click", "rich"} == set()
    used = {w for path in modules.values() for w in words_of_python(path)}
    assert used & {"argv", "stderr", "print"} == set()


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
    pages = [
        ROOT / "CONTRIBUTING.md",
        ROOT / "ARCHITECTURE.md",
        *(ROOT / "docs/design").glob("*.md"),
    ]
    text = "".join(page.read_text() for page in pages)
    paths = set(re.findall(r"`((?:cc|python|tests|tools|twml_ops|benchmarks)/[\w./]+)`", text))
    assert "twml_ops/cli/train.py" in paths
    assert [p for p in sorted(paths) if not (ROOT / p).exists()] == []


DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "design").glob("*.md")),
]
FOLDERS = ("benchmarks", "cc", "docker", "docs", "examples", "python", "tests", "tools", "twml_ops")
WORD = re.compile(r"[A-Za-z_]\w*")
# Names of other programs and libraries, and of an example's columns and files.
FOREIGN = (
    r"MPI_\w+|preload_app|MultiInference|HandleReloadConfigRequest|bag_NAME_\w+|rcv1_train\.svm"
)
FOREIGN += r"|on_cpu|\w+\.(json|txt|yaml|md)"
# Metrics of the server whose names are composed, and pages about names of another package and of
# earlier versions.
FOREIGN += r"|twml_serving_\w+"
OTHER_PACKAGE = {"migrate.md", "removed.md"}


@functools.cache
def words_of_python(path):
    """The identifiers of a module, and the words of its strings other than docstrings."""
    return set(words_of(ast.parse(path.read_text(encoding="utf-8"))))


def words_of(tree):
    """Yields the words of a parsed module. Strings that are statements are docstrings."""
    prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            yield from WORD.findall(getattr(node, field, None) or "")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from WORD.findall(node.value)


@functools.cache
def code():
    """The paths of the repository's files, and the words of its code."""
    files = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [p for p in ROOT.iterdir() if p.is_file()]
    words = {p.stem for p in files if p.suffix in (".py", ".cc", ".h", ".cu")}
    for path in files:
        if path == Path(__file__).resolve():
            continue  # it has names of what is not there
        if path.suffix in (".py", ".pyi"):
            words.update(words_of_python(path))
        elif path.suffix in (".cc", ".c", ".h", ".cu", ".cuh"):
            words.update(WORD.findall(re.sub(r"//.*", "", path.read_text(encoding="utf-8"))))
        elif path.suffix in (".bzl", ".html", ".toml", ".yml") or path.name == "Makefile":
            words.update(WORD.findall(path.read_text(encoding="utf-8")))
    return {str(p.relative_to(ROOT)) for p in files}, words


@functools.cache
def names_in(package):
    """The names in the modules of a package or of a module of twml_ops; None if it is neither."""
    folder = ROOT / "twml_ops" / package.replace(".", "/")
    modules = (folder.with_suffix(".py"), folder.with_name(f"_{folder.name}.pyi"))  # of _core
    files = [*folder.rglob("*.py"), *(p for p in modules if p.exists())]
    found = {w for path in files for w in words_of_python(path)}
    return found | {p.stem for p in files} if files else None


def dead_names(text):
    """What stands in `backticks` like a file, a module or a symbol of this package, and is none."""
    files, words = code()
    ends = {"/" + f for f in files}
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for name in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"[\w./-]+\.(py|cc|h|cu|cuh)", name):
            if not any(end.endswith("/" + name) for end in ends):
                yield name
        elif re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", name):
            parts = name.removesuffix("()").removeprefix("twml_ops.").split(".")
            if re.fullmatch(FOREIGN, name) or parts[0] in ("tf", "np", "out"):
                continue
            package = {"stock": "ops.stock", "xla": "ops.xla"}.get(parts[0], parts[0])
            known = names_in(package) if len(parts) > 1 else None
            unknown = [p for p in parts if re.search(r"_|[a-z][A-Z]", p) and p not in words]
            if unknown or (known is not None and parts[1] not in known):
                yield name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_files_and_symbols_that_a_document_names_are_there(path):
    found = set() if path.name in OTHER_PACKAGE else set(dead_names(path.read_text("utf-8")))
    assert sorted(found) == []


def test_architecture_describes_every_package_of_the_list():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    names = {room.replace(".", "/") for room in ARROWS if room not in ("", "cli", "_core")}
    assert [n for n in sorted(names) if not re.search(rf"\b{n}(/|\.py)", text)] == []


def test_a_dead_name_would_be_found():
    dead = "`stock.WITHOUT_TWIN` `parameter_server/wire.py` `no_such_function` `layers.NoSuchLayer`"
    live = (
        "`stock.LIBRARY_ONLY` `parameter_server/tables.py` `sparse_linear()` `layers.SparseLinear`"
    )
    assert list(dead_names(dead)) == re.findall("`(.*?)`", dead)
    assert list(dead_names(live)) == []


def test_the_documents_that_everyone_reads_are_short():
    lines = {p.name: p.read_text("utf-8").splitlines() for p in DOCUMENTS[:3]}
    assert len(lines["README.md"]) <= 130
    assert len(lines["ARCHITECTURE.md"]) <= 300
    doors = "\n".join(lines["CONTRIBUTING.md"]).split("## Where to change what")[1]
    doors = doors.split("\n## ")[0]
    assert 10 < len(re.findall(r"^\| ", doors, re.M)) - 1 <= 25


def test_prose_names_what_it_speaks_of():
    """The two words in the place of a noun make a sentence that has to be read twice."""
    words = "those " + "of"
    folders = ["benchmarks", "cc", "docs", "examples", "python", "tests", "tools", "twml_ops"]
    paths = [*ROOT.glob("*.md"), *(p for f in folders for p in (ROOT / f).rglob("*"))]
    texts = {p for p in paths if p.suffix in (".cc", ".cu", ".h", ".md", ".py")}
    found = [p.name for p in texts if words in p.read_text(encoding="utf-8")]
    assert set(found) <= {"CHANGELOG.md"}
