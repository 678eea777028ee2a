"""The commands that read a trained run, with odd and damaged data and files of the run.

The commands are found by their parameters: a new one is tested as well.
"""

import inspect
import json
import shutil
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import typer

from tests.cli.degenerate_files import (
    OTHER_ROWS,
    REFUSED,
    ROW,
    ROWS,
    cases,
    columns,
    csv_text,
)
from tests.pairwise import each_value
from twml_ops.classifier.fitted import Fitted
from twml_ops.cli import main
from twml_ops.cli.app import app
from twml_ops.data import Block, DataError
from twml_ops.training.errors import UserError
from twml_ops.training.trained_run import TrainedRun

# What is read, and the commands, do not depend on the TensorFlow version.
pytestmark = [pytest.mark.one_tf, pytest.mark.usefixtures("bare_runs")]

FACTS, METRICS, MODEL = "run.json", "metrics.json", "model.keras"
FILES = (FACTS, METRICS, MODEL, "report.html", "categories.npz", "statistics.npz")
LONGEST = 3000  # characters of an error
RUNS = {"run", "subject", "from_run"}  # parameters that are the folder of a run
INFO = typer.models.ParameterInfo
GIVEN = {"out", "data", *RUNS}


def command_lines():
    """Command → its words, with {run}, {data} and {out}: all commands that take a run."""
    found = {}
    for command in app.registered_commands:
        hints = get_type_hints(command.callback, include_extras=True)
        if not RUNS & {*hints}:
            continue
        name = command.name or command.callback.__name__
        words = [name]
        for parameter, default in inspect.signature(command.callback).parameters.items():
            known = [
                x for x in getattr(hints[parameter], "__metadata__", ()) if isinstance(x, INFO)
            ]
            needed = default.default is inspect.Parameter.empty
            if not known or not (needed or parameter in GIVEN):
                continue
            value = "{run}" if parameter in RUNS else f"{{{parameter}}}"  # others: add a value
            names = (known[0].default, *(known[0].param_decls or ()))
            option = next((n for n in names if str(n).startswith("--")), f"--{parameter}")
            is_argument = isinstance(known[0], typer.models.ArgumentInfo)
            words += [value] if is_argument else [option, value]
        found[name] = words
    return found


COMMANDS = command_lines()
CASES = {case.name: case for case in cases()}
OF_DATA = [name for name, words in COMMANDS.items() if "--data" in words]


def test_the_commands_are_found():
    known = {"train", "calibrate", "evaluate", "predict", "explain", "export", "info"}
    assert known <= {*COMMANDS}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("degenerate")
    (folder / "train.csv").write_text(csv_text(columns(200, 0)))
    options = ["--model", "logistic", "--epochs", "1", "--categorical", "code"]
    data = ["--data", str(folder / "train.csv"), "--time-features", "hour", "--time", "at"]
    main(["train", *data, "--out", str(folder / "run"), *options])
    return folder / "run"


def ended(name, run, data, tmp_path, capsys):
    """The status, the errors and what was printed. A failure is a line, and writes nothing."""
    out = tmp_path / "out"
    capsys.readouterr()
    status = 0
    try:
        main([word.format(run=run, data=data, out=out) for word in COMMANDS[name]])
    except SystemExit as e:
        status = e.code
    printed, errors = capsys.readouterr()
    lines = [x for x in errors.splitlines() if not x.startswith(("twml-ops: warning", "warning "))]
    assert "internal error" not in errors, errors
    assert "Traceback" not in errors, errors
    if status:
        assert status in (1, 2)
        (line,) = lines
        assert line.startswith("twml-ops: ")
        assert len(line) < LONGEST
        assert not out.exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out.tmp")]
    return status, errors, (out.read_text() if out.is_file() else printed)


def rows_of(trained, path):
    """The features of each example, as bytes."""
    block = Block.concat([*trained.unlabeled_source(str(path)).blocks()])
    rows = [block.slice(i, i + 1) for i in range(len(block))]
    numbers = [row.groups["continuous"].table.tobytes() for row in rows]
    categories = [row.groups["categorical"] for row in rows]
    bags = [[bag.ids.tobytes() for bag in c.bags.values()] for c in categories]
    return [*zip(numbers, [c.table.tobytes() for c in categories], bags, strict=True)]


@pytest.fixture(scope="module")
def trained(run):
    return TrainedRun(run)


@pytest.fixture(scope="module")
def whole_rows(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "whole.csv"
    path.write_bytes(CASES[path.name].content)
    rows = rows_of(trained, path)
    assert len(rows) == ROWS
    return rows


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_odd_data_are_read_as_the_whole_file_or_refused_by_name(
    case, trained, whole_rows, tmp_path
):
    whole = whole_rows
    path = tmp_path / case.name
    path.write_bytes(case.content)
    if case.expected == REFUSED:
        with pytest.raises(DataError, match="^" + str(path)) as e:
            rows_of(trained, path)
        assert len(str(e.value)) < LONGEST
        assert "\n" not in str(e.value)
        return
    got = rows_of(trained, path)
    if case.expected == OTHER_ROWS:
        assert got[ROW] != whole[ROW]
        got[ROW] = whole[ROW]
    assert got == whole


# `train --from`, which takes seconds, is in the slow laws.
SHORT = [name for name in COMMANDS if name != "train"]


@each_value(
    name=[name for name in OF_DATA if name != "train"],
    case=["no_site.csv", "price_3.csv", "cut.csv.gz", "page.parquet", "wide_without_a_column.csv"],
)
def test_commands_name_the_data_that_they_refuse(name, case, run, tmp_path, capsys):
    path = tmp_path / case
    path.write_bytes(CASES[case].content)
    status, errors, _ = ended(name, run, path, tmp_path, capsys)
    assert status
    assert str(path) in errors


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_DATA)
def test_commands_end_with_a_result_or_a_line_for_all_odd_data(name, run, tmp_path, capsys):
    for number, case in enumerate(CASES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / case.name).write_bytes(case.content)
        status, *_ = ended(name, run, folder / case.name, folder, capsys)
        labels = name == "predict" or case.name != "no_labels.csv"
        assert (status == 0) == (case.expected != REFUSED and labels), case.name


def nested(levels, content):
    """JSON with a list of that many levels in a new entry."""
    deep = "[" * levels + "]" * levels
    return content.rstrip()[:-1] + f', "more": {deep}}}'.encode()


DAMAGES = {
    "emptied": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "object": lambda content: b"{}",
    "nested": lambda content: nested(400, content),
    "far_nested": lambda content: nested(100_000, content),
    "noise": lambda content: b"\xff\x00" * 50,
    "gone": None,
}
ANY_FILE = [damage for damage in DAMAGES if "nested" not in damage]
OF_FILE = {f: [*DAMAGES] if f in (FACTS, METRICS) else ANY_FILE for f in FILES}


def damaged(run, tmp_path, file, damage):
    """A copy of the run with one file that is damaged, or missing."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    if damage is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(damage((run / file).read_bytes()))
    return copy


def check_damage(name, file, damage, run, tmp_path, capsys):
    """The command fails and names the file or the run, or does as with the whole run."""
    data = tmp_path / "whole.csv"
    data.write_text(csv_text(columns()))
    copy = damaged(run, tmp_path, file, DAMAGES[damage])
    status, errors, result = ended(name, copy, data, tmp_path, capsys)
    if status:
        assert str(copy) in errors
        return
    assert file not in (FACTS, MODEL) or name == "info", "a damaged file was read"
    if name == "predict":
        (tmp_path / "out").unlink()
        assert result == ended(name, run, data, tmp_path, capsys)[2]


@each_value(name=[*COMMANDS], damage=[*DAMAGES])
def test_commands_name_a_damaged_run_json(name, damage, run, tmp_path, capsys):
    check_damage(name, FACTS, damage, run, tmp_path, capsys)


@each_value(name=SHORT, damage=ANY_FILE)
def test_commands_name_a_damaged_model(name, damage, run, tmp_path, capsys):
    check_damage(name, MODEL, damage, run, tmp_path, capsys)


READ = {"info": METRICS, "explain": "report.html", "predict": "categories.npz"}
READ |= {"evaluate": "statistics.npz"}


@each_value(name=[*READ], damage=["emptied", "half", "noise", "object"])
def test_commands_name_another_damaged_file(name, damage, run, tmp_path, capsys):
    check_damage(name, READ[name], damage, run, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "damage"), [(f, d) for f in FILES for d in OF_FILE[f]])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_name_any_damaged_file_of_a_run(name, file, damage, run, tmp_path, capsys):
    check_damage(name, file, damage, run, tmp_path, capsys)


REFUSED_BY_CLASSIFIERS = [
    *((file, damage) for file in (FACTS, MODEL) for damage in OF_FILE[file]),
    *((METRICS, damage) for damage in DAMAGES if damage != "object"),
    *((f, d) for f in ("categories.npz", "statistics.npz") for d in ANY_FILE if d != "gone"),
    *(("report.html", damage) for damage in ("noise", "gone")),
]


@pytest.mark.parametrize(("file", "damage"), REFUSED_BY_CLASSIFIERS)
def test_a_classifier_names_a_damaged_file_of_a_run(file, damage, run, tmp_path):
    copy = damaged(run, tmp_path, file, DAMAGES[damage])
    with pytest.raises((UserError, ValueError), match=str(copy)):
        Fitted.load(copy)


@pytest.mark.parametrize("other", [None, [], [1], ["a", 1], [[0], [1]], [0, 1, 2], {"x": 1}])
def test_a_classifier_names_damaged_classes(other, run, tmp_path):
    facts = json.loads((run / FACTS).read_text())
    of_classifier = {"classes": other, "columns": ["site"], "named": True}
    changed = json.dumps({**facts, "classifier": of_classifier}).encode()
    copy = damaged(run, tmp_path, FACTS, lambda _: changed)
    with pytest.raises(UserError, match=FACTS):
        Fitted.load(copy)


OTHERS = (None, -1, "x", [None], {"x": None}, {"trials": [{}]}, float("nan"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("train", "export")])
def test_commands_name_run_json_if_an_entry_is_missing_or_another(name, run, tmp_path, capsys):
    """Without --data, so that the entries about the data count."""
    facts = json.loads((run / FACTS).read_text())
    used = ("data", "eval", "seed", "holdout", "calibration", "train_source", "schema", "model",
            "versions", "finished", "command", "leaks", "speeds", "model_choice", "epoch_choice",
            "cluster", "members", "files")  # fmt: skip
    copy = shutil.copytree(run, tmp_path / "run")
    words = COMMANDS[name]
    if name != "predict" and "--data" in words:
        at = words.index("--data")
        words = [*words[:at], *words[at + 2 :]]
    for key in used:
        without = {k: v for k, v in facts.items() if k != key}
        for changed in (without, *({**facts, key: other} for other in OTHERS)):
            (copy / FACTS).write_text(json.dumps(changed))
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(COMMANDS, name, words)
                ended(name, copy, Path(facts["data"]), tmp_path, capsys)
            for path in tmp_path.glob("out*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.slow
def test_scores_do_not_depend_on_other_rows(run, tmp_path, capsys):
    """Nor on the order of the columns or the format."""
    scores = {}
    for case in CASES.values():
        if case.name in ("whole.csv", "reversed.csv", "whole.parquet", "site_4.csv"):
            (tmp_path / case.name).write_bytes(case.content)
            text = ended("predict", run, tmp_path / case.name, tmp_path, capsys)[2]
            (tmp_path / "out").unlink()
            scores[case.name] = np.array(text.split(), float)
    whole = scores.pop("whole.csv")
    for found in scores.values():
        found[ROW] = whole[ROW]
        np.testing.assert_allclose(found, whole, rtol=1e-6)
