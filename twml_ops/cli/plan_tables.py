"""`twml-ops plan --tables`: for each of many tables the way to divide it, and the servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    from twml_ops.planning import ClusterResources, CpuCosts, Job, Table

_REQUIRED = {"name": str, "rows": int, "units": int}
_NUMBERS = ("entries", "unique", "exchanged", "hot_share")
_KNOWN = (*_REQUIRED, *_NUMBERS, "hot_rows", "outputs")


def read_tables(path: Path) -> dict[str, Table]:
    """Reads the tables of a job from a JSON file.

    Args:
        path: the file, with an object {"tables": [...]}. Each table is an object with `name`,
            `rows` and `units`, and optionally `entries`, `unique`, `exchanged`, `hot_rows`,
            `hot_share` and `outputs` of `twml_ops.planning.Table`.

    Returns:
        The tables by name, in the order of the file.

    Raises:
        UserError: the file cannot be read, or has another content.
    """
    from twml_ops.training.run_folder import damage_is_reported

    with damage_is_reported(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        listed = content.get("tables") if isinstance(content, dict) else None
        if not isinstance(listed, list) or not listed:
            raise UserError(f'--tables: {path}: expected an object {{"tables": [...]}} with tables')
        found: dict[str, Table] = {}
        for number, entry in enumerate(listed, 1):
            name, table = _table(entry, f"--tables: {path}: table {number}")
            if name in found:
                raise UserError(f"--tables: {path}: two tables have the name {name!r}")
            found[name] = table
    return found


def _table(entry: Any, where: str) -> tuple[str, Table]:
    from twml_ops.planning import Table

    if not isinstance(entry, dict):
        raise UserError(f"{where}: expected an object, got {entry!r:.100}")
    unknown = sorted(map(str, entry.keys() - set(_KNOWN)))
    if unknown:
        raise UserError(f"{where}: has no {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    for key in _KNOWN:
        if key not in entry:
            if key in _REQUIRED:
                raise UserError(f"{where}: {key} is missing")
            continue
        kinds = (int, float) if key in _NUMBERS else (_REQUIRED.get(key, int),)
        if not isinstance(entry[key], kinds) or isinstance(entry[key], bool):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(f"{where}: {key} must be {expected}, got {entry[key]!r:.100}")
    options = {k: v for k, v in entry.items() if k not in _REQUIRED}
    try:
        return entry["name"], Table(entry["rows"], entry["units"], **options)
    except ValueError as e:
        raise UserError(f"{where} ({entry['name']}): {e}") from e


def plan_tables(
    tables: dict[str, Table],
    make_job: Callable[[tuple[Table, ...]], Job],
    cluster: ClusterResources,
    memory: float | None,
    ways: Sequence[str] | None,
    get_costs: Callable[[], CpuCosts | None],
    out: Path | None,
    out_plan: Path | None,
    as_json: bool,
    overwrite: bool,
) -> None:
    """Plans where each table goes, prints the plan, and writes and draws it.

    Args:
        tables: the tables by name.
        make_job: returns the job with these tables.
        cluster: the hosts; each of `servers` is one.
        memory: bytes that a server can hold; None: unlimited.
        ways: the ways that are allowed; None: all that training follows.
        get_costs: returns the costs of CPU time, or None for typical ones.
        out: PNG to draw into; None: no picture.
        out_plan: JSON file to write the plan to; None: none.
        as_json: print JSON instead of tables.
        overwrite: replace existing files.

    Raises:
        UserError: a file cannot be written.
        ValueError: a number is out of range, or no plan was found that fits.
    """
    from twml_ops.cli.console import make_console, print_json
    from twml_ops.planning import shard
    from twml_ops.planning.sharding_axis import TYPICAL_COSTS
    from twml_ops.planning.sharding_plan import WAYS
    from twml_ops.report.plan import check_plot_path
    from twml_ops.report.sharding import NamedPlan, draw_sharding, print_sharding
    from twml_ops.training.run_folder import optional_file, write_json

    check_plot_path(out)
    job = make_job(tuple(tables.values()))
    with optional_file(out_plan, overwrite) as file, optional_file(out, overwrite) as picture:
        costs = get_costs()
        allowed = ways or WAYS
        found = shard(job, cluster, costs or TYPICAL_COSTS, memory=memory, ways=allowed)
        plan = NamedPlan(tuple(tables), job, found, memory, costs is not None)
        if file is not None:
            write_json(file, found.to_json(plan.names))
        if picture is not None:
            draw_sharding(plan, picture)
    if as_json:
        print_json(found.to_json(plan.names))
    else:
        print_sharding(make_console(), plan, [path for path in (out_plan, out) if path is not None])
