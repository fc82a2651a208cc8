"""A file system in memory, whose folders say when they have changed, and which counts questions."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass

from waterspout.spouts._places import FileStat, Place


@dataclass(frozen=True)
class Entry:
    name: str
    path: str
    folder: bool = False

    def is_dir(self) -> bool:
        return self.folder

    def is_symlink(self) -> bool:
        return False


class FakePlace(Place):
    """Files by path; `still` folders keep their mark though something has come."""

    has_digests = False

    def __init__(self, root: str = "/in") -> None:
        self.files: dict[str, FileStat] = {}
        self.folders = {root}
        self.changes: Counter[str] = Counter()
        self.still = False
        self.asked: Counter[str] = Counter()
        self.error: Exception | None = None

    def put(self, path: str, time_ns: int = 0, size: int = 1) -> str:
        folder = path.rpartition("/")[0]
        while folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]
            self.changes[folder] += 1
        if not self.still:
            self.changes[path.rpartition("/")[0]] += 1
        self.files[path] = FileStat(size, time_ns)
        return path

    def remove(self, path: str) -> None:
        del self.files[path]
        self.changes[path.rpartition("/")[0]] += 1

    def mark(self, folder):
        self.asked["mark"] += 1
        if folder not in self.folders:
            raise FileNotFoundError(folder)
        return (folder, 0, self.changes[folder])

    def entries(self, folder):
        self.asked["entries"] += 1
        if self.error is not None:
            raise self.error
        for path in [*self.files, *self.folders]:
            parent, _, name = path.rpartition("/")
            if parent == folder:
                yield Entry(name, path, path in self.folders)

    def stat_entry(self, entry):
        return self.files.get(entry.path) if self.asked.update(["stat"]) is None else None

    def name(self, path):
        return path

    def stat(self, name):
        self.asked["stat"] += 1
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def open(self, name):
        return io.BytesIO(b"x" * self.files[name].size)

    def exists(self, path):
        return path in self.files or path in self.folders

    def is_file(self, path):
        return path in self.files
