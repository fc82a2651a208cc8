"""States in files, run through the kit: on this machine's disk and on pyarrow's file systems."""

from __future__ import annotations

from itertools import count

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem, _MockFileSystem

from waterspout.state._columns import Layout
from waterspout.state._store import ANY_VALUE
from waterspout.state.files import FileState
from waterspout.state.files._locations import ArrowFolder, LocalFolder
from waterspout.state.files._state import FileMap
from waterspout.testing import StateConformance

LAYOUT = Layout(None, ANY_VALUE)


class TestFileState(StateConformance):
    """As the factory makes it: all clients of a process share the records in its memory."""

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root, self.numbers, self.states = tmp_path, count(), {}

    def make_backing(self, kind):
        return self._made(self.make_recipe(kind))

    def make_recipe(self, kind):
        return FileState(self.root / f"state{next(self.numbers)}", kind=kind)

    def reopen(self, backing):
        return self._made(self.states[id(backing)][0])

    def _made(self, state):
        backing = state.backing()
        self.states[id(backing)] = (state, backing)  # the map too: an id may come again
        return backing


class FolderSuite(StateConformance):
    """Maps over folders that the subclass opens; merges as often as can be."""

    many = 1_000
    snapshot_every = 2

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root, self.numbers, self.paths = tmp_path, count(), {}

    def open_folder(self, path):
        raise NotImplementedError

    def make_backing(self, kind):
        return self._made(f"state{next(self.numbers)}", kind)

    def reopen(self, backing):
        return self._made(*self.paths[id(backing)][:2])

    def _made(self, path, kind):
        every = self.snapshot_every
        backing = FileMap(self.open_folder(path), kind, LAYOUT, title=path, snapshot_every=every)
        self.paths[id(backing)] = (path, kind, backing)
        return backing


class TestManyProcesses(FolderSuite):
    """Each client has records of its own, as it would in a process of its own."""

    def open_folder(self, path):
        folder = LocalFolder(self.root / path)
        folder.key += f" process {next(self.numbers)}"
        return folder


@pytest.mark.soak
class TestArrowFolder(FolderSuite):
    """Through pyarrow, as on HDFS and S3: no links, no fsync, moves that replace."""

    snapshot_every = 50

    def open_folder(self, path):
        filesystem = SubTreeFileSystem(str(self.root), LocalFileSystem())
        return ArrowFolder(filesystem, path, f"arrow {self.root} {path}")


@pytest.mark.soak
class TestMockFileSystem(FolderSuite):
    """A file system that is in nobody's kernel."""

    @pytest.fixture(autouse=True)
    def _filesystem(self):
        self.filesystem = _MockFileSystem()

    def open_folder(self, path):
        return ArrowFolder(self.filesystem, f"bucket/{path}", f"mock {self.root} {path}")


del FolderSuite  # not to be collected itself
