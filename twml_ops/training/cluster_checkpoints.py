"""The folder OUT.checkpoints of a cluster: of which run it is, and who may continue it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from twml_ops._publish import write_file
from twml_ops.checkpoint import CheckpointError, CheckpointReader
from twml_ops.checkpoint.facts import FACTS, difference_of_facts
from twml_ops.distribute import Cluster
from twml_ops.distribute.parameter_server.checkpoint import manager_of
from twml_ops.distribute.parameter_server.chief_decisions import BEAT
from twml_ops.training.checkpoints import unfinished_run
from twml_ops.training.cluster import EVALUATIONS, STAGES, checkpoint_dir, stages_dir
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.kept_results import MEMBERS, MemberStore, TrialStore

START = "start"
_OF_STAGE = ("stage", "epoch_steps", "step_examples", "examples")  # the trainer compares them

# With these a run may be continued: they do not change what is computed, or only its speed.
_MAY_DIFFER = ("checkpoint_policy",)
_OF_CLUSTER = ("mode", "wire_dtype", "gradient_wire_dtype", "exchange_every")


def cluster_facts(config: RunConfig, start: str | None = None) -> dict[str, Any]:
    """The facts that must be equal in a run and in the checkpoint from which it continues.

    Args:
        config: configuration of the run.
        start: id of the start of the cluster; None: of the one that `TF_CONFIG` describes.
    """
    fields = config.to_json()
    options = fields.pop("cluster")
    facts = {name: value for name, value in fields.items() if name not in _MAY_DIFFER}
    if options is not None:  # peers have none
        facts |= {name: options[name] for name in _OF_CLUSTER}
        if options["micro_batches"] is not None:  # checkpoints of earlier versions have none
            facts["micro_batches"] = options["micro_batches"]
    facts[START] = _start_id() if start is None else start
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


def _start_id() -> str:
    return Cluster.from_environment().start_id


def is_of_start(checkpoint: CheckpointReader) -> bool:
    """Whether a checkpoint was written in this start of the cluster."""
    facts = checkpoint.manifest.values.get(FACTS, {})
    return bool(facts.get(START) == _start_id())


RUN = "run"  # the name of the file with the facts of the run, in the folder of its stages


class ClusterCheckpoints:
    """The checkpoints and the stages of a run, as its chief finds them.

    A process that its supervisor has restarted continues without `--resume`: the checkpoints have
    the start id of the cluster. Checkpoints of another start are treated as a single process treats
    the ones that it finds: they are continued with --resume, and removed with --overwrite.

    Args:
        out: final folder of the run.
        config: configuration of the run, with a learning rate.
        resume: whether the checkpoints of another start are to be continued.
        overwrite: whether they are removed.
        start: id of the start of the cluster; None: of the one that `TF_CONFIG` describes.

    Raises:
        UserError: the folder has checkpoints of another start, and the run is neither to continue
            nor to replace them; or they are of another run; or another process writes to it.
    """

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        resume: bool,
        overwrite: bool,
        start: str | None = None,
    ) -> None:
        self.folder = checkpoint_dir(out)
        self._manager = manager_of(self.folder)
        self._facts = cluster_facts(config, start)
        own = stages_dir(out, self._facts[START])
        if self._manager.is_empty and not self._stages():
            self._write_facts(own)
            return
        try:
            self._manager.lock()
        except CheckpointError as e:
            raise UserError(str(e)) from e
        found = self._facts_of_newest()
        if found is None:  # all are damaged, which the trainer refuses
            if overwrite:
                self.remove()
            self._write_facts(own)
            return
        where, facts = found
        expected = self._facts
        problem = difference_of_facts(facts, expected, may_differ=(START, *_OF_STAGE))
        continues = resume or (facts.get(START) == expected[START] and not (problem and overwrite))
        if continues and problem:
            raise UserError(f"{where}: {problem}; use --overwrite to begin again")
        if continues:
            before = stages_dir(out, str(facts.get(START)))
            if before.is_dir() and not own.exists():
                before.rename(own)
        elif overwrite:
            self.remove()
        else:
            raise unfinished_run(self.folder)
        self._write_facts(own)

    def _stages(self) -> list[Path]:
        return sorted(self.folder.glob(f"{STAGES}-*")) if self.folder.is_dir() else []

    def _facts_of_newest(self) -> tuple[Path, Mapping[str, Any]] | None:
        """The facts of the newest checkpoint or, if there is none yet, of the stages."""
        newest = self._manager.latest()
        if newest is not None:
            return Path(str(newest.folder)), newest.manifest.values.get(FACTS, {})
        for folder in self._stages():
            try:
                facts = json.loads((folder / f"{RUN}.json").read_text())
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(facts, dict):
                return folder, facts
        return None

    @contextlib.contextmanager
    def kept_if_begun(self) -> Iterator[None]:
        """Removes everything if the `with` block fails before there is something to go on with.

        A process that its supervisor starts again ends by `SystemExit`, and nothing is removed.

        Yields:
            Nothing.
        """
        try:
            yield
        except Exception:
            if self._manager.is_empty and not self._has_results():
                with contextlib.suppress(OSError, UserError):  # the error is what the user needs
                    self.remove()
            raise

    def _has_results(self) -> bool:
        """Whether an epoch has ended, or a trial or a member of an ensemble is kept."""
        kept = any(TrialStore(f).has_trials or any(f.glob("*-epoch-*")) for f in self._stages())
        return kept or (self.folder / MEMBERS).exists()

    def remove(self) -> None:
        """Removes the checkpoints, the stages and the evaluations, and the folder if it is empty.

        Raises:
            UserError: another process writes to the folder.
        """
        if not self.folder.is_dir():
            return
        for folder in self._stages():
            TrialStore(folder).remove()
            for path in (*folder.glob("stage-*"), folder / f"{RUN}.json", folder / BEAT):
                if path.is_dir():  # the best weights of a stage
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the user may have put something there
                folder.rmdir()
        (self.folder / EVALUATIONS).unlink(missing_ok=True)
        MemberStore(self.folder / MEMBERS).remove()
        try:
            self._manager.remove_all()
        except CheckpointError as e:
            raise UserError(str(e)) from e

    def _write_facts(self, folder: Path) -> None:
        """Says of which run the stages in a folder are."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{RUN}.json", json.dumps(self._facts).encode())
