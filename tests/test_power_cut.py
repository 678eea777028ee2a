"""After a power cut at any moment what is published is whole, or what was there is."""

import numpy as np
import pytest

from tests.disk import Disk
from tests.power_cut import Log, write_state
from tests.test_publish_faults import NEW, OLD, OURS, WAYS, content

STATES = 12  # for each moment


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("way", ["write_file", "new_file", "new_folder", "new_parents"])
def test_a_power_cut_leaves_the_old_or_the_new_and_never_loses_what_was_reported(
    tmp_path, way, overwrite
):
    root, cut = tmp_path / "root", tmp_path / "cut"
    root.mkdir()
    is_folder = way in ("new_folder", "new_parents")
    out = root / "a" / "b" / "out" if way == "new_parents" else root / "out"
    publish = WAYS["new_folder" if is_folder else way]
    if overwrite:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path in [out / name for name in OURS] if is_folder else [out]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(OLD)
    before = content(out)
    log = Log(root)
    with Disk(root, log=log):
        publish(out, overwrite)
    new = content(out)
    assert new == (dict.fromkeys(OURS, NEW) if is_folder else NEW)
    rng = np.random.default_rng(1)
    seen = []
    for count in range(log.before, len(log) + 1):
        for number in range(STATES):
            place = cut / f"{count}-{number}"
            place.mkdir(parents=True)
            write_state(log.state(count, rng if number else None), place)
            found = content(place / out.relative_to(root))
            assert found in (before, new), (count, log.changes[:count])
            assert count < len(log) or found == new
            seen.append(found)
    assert before in seen
    assert new in seen
