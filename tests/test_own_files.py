"""Files of waterspout's own: for this user alone, whatever the umask, and never behind a link."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.coordination.drivers import FINGERPRINT
from tests.state_support import Batches
from waterspout import Config
from waterspout._own_files import FileKind, OwnFile, make_private, open_private, private_folder
from waterspout.cli.logs import logging_to
from waterspout.cli.screen import Screen
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.zookeeper_records import Home
from waterspout.errors import ForeignStoreError
from waterspout.state.files import FileState
from waterspout.state.sqlite import SQLiteState

UMASKS = pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277], ids=oct)
KIND = FileKind("notes", 0x77746E74, 1, "CREATE TABLE notes (text TEXT) STRICT")


@contextmanager
def masked_by(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of a folder and all in it that are not what they should be."""
    found = [folder, *folder.rglob("*")]
    wanted = {True: 0o700, False: 0o600}
    held = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    return {
        str(path.relative_to(folder)): oct(mode)
        for path, mode in held.items()
        if mode != wanted[path.is_dir()]
    }


@UMASKS
@pytest.mark.parametrize("backend", ["sqlite", "files"])
def test_a_state_is_for_this_user_alone(backend, umask, tmp_path):
    folder = tmp_path / "states"
    private_folder(folder)
    recipe = {
        "sqlite": lambda: SQLiteState.opaque(folder / "s.db", table="t"),
        "files": lambda: FileState.opaque(folder / "deep" / "er", snapshot_every=2),
    }[backend]()

    with masked_by(umask):
        state = recipe.make_state(Config(), 0, 1)
        batches = Batches(state)
        for number in (1, 2, 3):
            batches.commit({"a": number})
        found = sorted(path.name for path in folder.rglob("*"))

    assert modes(folder) == {}
    assert backend != "sqlite" or found == ["s.db", "s.db-shm", "s.db-wal"]


@UMASKS
def test_a_home_and_all_in_it_is_for_this_user_alone(umask, tmp_path):
    home = tmp_path / "ws" / "home"

    with masked_by(umask):
        store = EmbeddedStore(home, "words")
        store.acquire(FINGERPRINT)
        notes = OwnFile(home / "words" / "notes.db", KIND)
        notes.transaction(lambda db: db.execute("INSERT INTO notes VALUES ('x')"), create=True)
        Home(home / "other").note("a")
        Home(home / "other").forget_all_but("a")
        with Screen() as screen, logging_to(home / "logs" / "run.log", screen.warn):
            pass
        found = {path.name for path in home.rglob("*")}
        wrong = modes(tmp_path / "ws")

    assert wrong == {}
    assert {"words", "notes.db", "other", "logs", "run.log"} <= found
    store.release()
    notes.close()


def test_what_is_there_keeps_its_mode(tmp_path):
    """Its owner may have opened it to others."""
    folder, file = tmp_path / "open", tmp_path / "open" / "s.db"
    folder.mkdir()
    folder.chmod(0o755)
    file.touch()
    file.chmod(0o644)

    private_folder(folder)
    make_private(file)
    batches = Batches(SQLiteState.opaque(file, table="t").make_state(Config(), 0, 1))
    batches.commit({"a": 1})

    assert modes(tmp_path)["open"] == "0o755"
    assert modes(tmp_path)["open/s.db"] == "0o644"


def test_a_file_of_our_own_is_not_opened_behind_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere.db"
    (tmp_path / "notes.db").symlink_to(elsewhere)
    notes = OwnFile(tmp_path / "notes.db", KIND)

    with pytest.raises(ForeignStoreError, match="is a symbolic link"):
        notes.transaction(lambda db: None, create=True)
    with pytest.raises(OSError, match="symbolic links"):
        open_private(tmp_path / "notes.db", os.O_WRONLY)

    assert not elsewhere.exists()


def test_a_link_to_another_file_of_our_own_is_not_read(tmp_path):
    other = OwnFile(tmp_path / "other.db", KIND)
    other.transaction(lambda db: None, create=True)
    other.close()
    (tmp_path / "notes.db").symlink_to(tmp_path / "other.db")
    notes = OwnFile(tmp_path / "notes.db", KIND)

    with pytest.raises(ForeignStoreError, match="is a symbolic link"):
        notes.transaction(lambda db: None)


def test_a_state_that_the_user_put_behind_a_link_is_used_there(tmp_path):
    target = tmp_path / "target.db"
    (tmp_path / "s.db").symlink_to(target)

    state = SQLiteState.opaque(tmp_path / "s.db", table="t").make_state(Config(), 0, 1)
    Batches(state).commit({"a": 1})

    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_only_one_module_makes_folders():
    source = Path(__file__).parents[1] / "src" / "waterspout"
    # The demo's input is inside the folder of the demo, which is private.
    allowed = {"_own_files.py", "demo_source.py"}

    makers = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if path.name not in allowed and re.search(r"mkdir\(|makedirs\(", path.read_text("utf-8"))
    ]

    assert makers == []
