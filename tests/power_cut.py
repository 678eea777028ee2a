"""What a disk may hold after a power cut: what an fsync covers, and any of the rest.

A name in a folder is on the disk after the fsync of the folder, bytes of a file after the fsync of
the file. Until then each creation, renaming and removal, and each write, may be on the disk or not,
whatever the order in which they were made. A renaming is there as a whole or not at all.
"""

import os
from pathlib import Path


class Log:
    """What changes a disk, in order; a `Disk` calls it.

    Args:
        root: the folder, whose content is on the disk.
    """

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self.changes = []
        self._names, self._next = {self.root: 0}, 1  # numbers of files and folders
        for path in sorted(Path(self.root).rglob("*")):
            kind = "mkdir" if path.is_dir() else "create"
            self.call(kind, str(path))
            if kind == "create":
                self.write(str(path), 0, path.read_bytes())
        self.before = len(self.changes)

    def __len__(self):
        return len(self.changes)

    def call(self, kind, path, other=None):
        """Notes a call that has succeeded."""
        if kind in ("mkdir", "create") or (kind == "truncate" and path not in self._names):
            node, self._next = self._next, self._next + 1
            self._names[path] = node
            self._note(("new", kind == "mkdir", node), ("put", *self._place(path), node))
        elif kind == "truncate":
            self._note(("data", self._names[path], None, b""))
        elif kind == "fsync":
            node = self._names.get(path)
            self.changes.append(("fsync", node))
        elif kind in ("unlink", "remove", "rmdir"):
            self._note(("take", *self._place(path), self._names.pop(path)))
        elif kind == "link":
            node = self._names[path]
            self._names[os.fspath(other)] = node
            self._note(("put", *self._place(os.fspath(other)), node))
        elif kind in ("rename", "replace"):
            self._rename(path, os.path.abspath(other))
        elif kind == "exchange":
            one, two = self._names[path], self._names[other]
            self._note(("swap", *self._place(path), one, *self._place(other), two))
            self._move(path, other + "\0")
            self._move(other, path)
            self._move(other + "\0", other)

    def write(self, path, offset, data):
        """Notes bytes of a file."""
        self._note(("data", self._names[path], offset, data))

    def _rename(self, old, new):
        node = self._names[old]
        self._note(("move", *self._place(old), node, *self._place(new)))
        self._names.pop(new, None)
        self._move(old, new)

    def _move(self, old, new):
        for path in [p for p in self._names if p == old or p.startswith(old + "/")]:
            self._names[new + path[len(old) :]] = self._names.pop(path)

    def _place(self, path):
        return self._names[os.path.dirname(path)], os.path.basename(path)

    def _note(self, *parts):
        self.changes.extend(parts)

    def state(self, count, rng):
        """The files after a power cut.

        Args:
            count: how many of the changes were made before it.
            rng: a NumPy generator; None: nothing is there that no fsync covers.

        Returns:
            Paths relative to the folder and their bytes; None: a folder.
        """
        covered = [None] * count
        seen = set()
        for number in reversed(range(count)):
            change = self.changes[number]
            if change[0] == "fsync":
                seen.add(change[1])
            covered[number] = number < self.before or any(n in seen for n in _nodes(change))
        share = 0 if rng is None else rng.choice([0.1, 0.5, 0.9, 1])
        entries, data = {0: {}}, {}
        for number, change in enumerate(self.changes[:count]):
            if change[0] == "new":
                (entries if change[1] else data)[change[2]] = {} if change[1] else b""
            elif change[0] != "fsync" and (
                covered[number] or (rng is not None and rng.random() < share)
            ):
                _apply(change, entries, data)
        files = {}

        def visit(node, path):
            for name, inner in entries[node].items():
                here = f"{path}{name}"
                files[here] = data.get(inner)
                if inner in entries:
                    visit(inner, here + "/")

        visit(0, "")
        return files


def _nodes(change):
    """The folders or the file whose fsync brings a change to the disk."""
    kind = change[0]
    if kind in ("move", "swap"):
        return {change[1], change[4]}
    return set() if kind in ("new", "fsync") else {change[1]}


def _apply(change, entries, data):
    kind, node, *rest = change
    if kind == "data":
        offset, new = rest
        old = data[node]
        data[node] = b"" if offset is None else old[:offset].ljust(offset, b"\0") + new
    elif kind == "put":
        entries[node][rest[0]] = rest[1]
    elif kind == "take":
        if entries[node].get(rest[0]) == rest[1]:
            del entries[node][rest[0]]
    elif kind == "move":
        name, moved, folder, new = rest
        if entries[node].get(name) == moved:
            del entries[node][name]
            entries[folder][new] = moved
    else:
        name, one, folder, other, two = rest
        if entries[node].get(name) == one and entries[folder].get(other) == two:
            entries[node][name], entries[folder][other] = two, one


def write_state(files, folder):
    """Writes the files of a state to a folder, which is empty."""
    for name, content in files.items():
        path = Path(folder, name)
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
