"""FileSpout's driver side: which files go into which batch, once each, whatever happens."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.trident.support import Meddling, capture, put, wait_for
from waterspout import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import DataLossError, SourceError, TopologyError
from waterspout.spouts._base import SpoutContext
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, run_in_process
from waterspout.trident import Count, TridentTopology


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "ledger"
    path.mkdir()
    return path


def aged(path, seconds, text="line\n"):
    """A complete file that is so many seconds younger than the first."""
    put(path, text)
    os.utime(path, ns=(10**18 + seconds * 10**9,) * 2)
    return path


def opened(spout, folder=None, known=None, current=1):
    return spout.open(SpoutContext(Config(), "lines", folder, known or {}, current))


def batches(planner, spout, since=1):
    """All batches that there are now, as lists of file names."""
    found = []
    while planner.is_ready(None):
        metadata = planner.plan(since + len(found), None)
        found.append([os.path.basename(path) for path, _, _ in metadata["files"]])
    return found


def all_names(spout):
    return [name for batch in batches(opened(spout), spout) for name in batch]


def test_files_come_oldest_first(source):
    aged(source / "b.txt", 1)
    aged(source / "a.txt", 2)
    aged(source / "deep" / "er" / "c.txt", 0)

    assert all_names(FileSpout(source)) == ["c.txt", "b.txt", "a.txt"]


def test_files_of_one_time_come_by_name(source):
    for name in "cab":
        aged(source / name, 5)

    assert all_names(FileSpout(source)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "hidden",
    ["_SUCCESS", ".part.crc", "_temporary/0/part.txt", ".git/x.txt", "big.txt._COPYING_"],
)
@pytest.mark.parametrize("glob", [False, True])
def test_hidden_files_and_folders_are_left_alone(source, hidden, glob):
    aged(source / "seen.txt", 1)
    path = source / hidden
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("not for us\n")

    spout = FileSpout(source / "**" if glob else source)

    assert all_names(spout) == ["seen.txt"]


def test_a_glob_takes_what_it_matches(source):
    for name in ("a.txt", "b.txt", "c.log"):
        aged(source / name, 0)
    (source / "d.txt").mkdir()

    assert all_names(FileSpout(f"{source}/*.txt")) == ["a.txt", "b.txt"]


def test_a_folder_that_a_glob_spells_out_is_not_hidden(source):
    aged(source / "_raw" / "a.txt", 0)

    assert all_names(FileSpout(f"{source}/_raw/*.txt")) == ["a.txt"]


def test_one_file_is_a_source_too(source):
    path = aged(source / "a.txt", 0)

    assert all_names(FileSpout(path)) == ["a.txt"]


def test_an_empty_directory_has_no_batch(source):
    assert not opened(FileSpout(source)).is_ready(None)


def test_max_files_bounds_a_batch(source):
    for i in range(5):
        aged(source / f"{i}", i)
    spout = FileSpout(source, max_files=2)

    assert batches(opened(spout), spout) == [["0", "1"], ["2", "3"], ["4"]]


def test_max_bytes_bounds_a_batch_but_one_file_always_goes(source):
    for i, size in enumerate([4, 4, 50, 3, 3, 3]):
        aged(source / f"{i}", i, "x" * size)
    spout = FileSpout(source, max_bytes=8)

    assert batches(opened(spout), spout) == [["0", "1"], ["2"], ["3", "4"], ["5"]]


def test_max_rows_bounds_a_batch_of_text(source):
    for i, text in enumerate(["a\nb\n", "c", "d\ne\nf", "g\n", "", "h\n"]):
        aged(source / f"{i}", i, text)
    spout = FileSpout(source, max_rows=3)

    # A last line without a newline is a row too; an empty file has none.
    assert batches(opened(spout), spout) == [["0", "1"], ["2"], ["3", "4", "5"]]


@pytest.mark.parametrize(("form", "write"), [("parquet", pq.write_table), ("orc", orc.write_table)])
def test_max_rows_bounds_a_batch_of_columns(source, form, write):
    for i, rows in enumerate([2, 1, 3]):
        write(pa.table({"n": list(range(rows))}), source / f"{i}")
        os.utime(source / f"{i}", ns=(i, i))
    spout = FileSpout(source, form, schema="n bigint", max_rows=3)

    assert batches(opened(spout), spout) == [["0", "1"], ["2"]]


@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_a_file_that_is_not_of_the_format_is_named_and_none_is_lost(source, form):
    aged(source / "0", 0, "not at all")
    spout = FileSpout(source, form, schema="n bigint", max_rows=3)
    planner = opened(spout)
    assert planner.is_ready(None)

    with pytest.raises(SourceError, match=rf"{source}/0 cannot be read as {form}: "):
        planner.plan(1, None)

    assert planner.is_ready(None)


def test_an_error_while_planning_leaves_no_file_out(source):
    pq.write_table(pa.table({"n": [1]}), source / "0")
    os.utime(source / "0", ns=(0, 0))
    aged(source / "1", 1, "broken")
    spout = FileSpout(source, "parquet", schema="n bigint", max_rows=9)
    planner = opened(spout)
    assert planner.is_ready(None)
    with pytest.raises(SourceError):
        planner.plan(1, None)

    pq.write_table(pa.table({"n": [2]}), source / "1")

    assert batches(planner, spout) == [["0", "1"]]


def test_a_file_that_goes_before_it_is_in_a_batch_is_forgotten(source):
    aged(source / "0", 0)
    aged(source / "1", 1)
    spout = FileSpout(source)
    planner = opened(spout)
    assert planner.is_ready(None)
    (source / "0").unlink()

    assert batches(planner, spout) == [["1"]]


def test_a_file_that_grows_before_it_is_in_a_batch_is_taken_as_it_is_then(source):
    path = aged(source / "0", 0, "one\n")
    spout = FileSpout(source)
    planner = opened(spout)
    assert planner.is_ready(None)
    aged(path, 1, "one\ntwo\n")

    metadata = planner.plan(1, None)

    assert metadata["files"] == [[str(path), 8, 10**18 + 10**9]]
    assert spout.read(metadata).paths == (str(path),)


def test_new_files_are_found_also_with_an_old_time(source):
    aged(source / "b", 100)
    spout = FileSpout(source)
    planner = opened(spout)
    first = batches(planner, spout)

    aged(source / "c", 200)
    aged(source / "a", 0)
    wait_for(lambda: planner.is_ready(None))

    assert (first, batches(planner, spout, since=2)) == ([["b"]], [["a", "c"]])


def test_a_file_is_in_one_batch_only_while_batches_overlap(source):
    aged(source / "a", 0)
    planner = opened(FileSpout(source))
    assert planner.is_ready(None)
    planner.plan(1, None)

    assert not planner.is_ready(None)


def planned(spout):
    planner = opened(spout)
    assert planner.is_ready(None)
    return planner.plan(1, None)


def test_a_batch_is_read_as_often_as_wanted(source):
    path = aged(source / "a.txt", 0, "x\n")
    spout = FileSpout(source)
    metadata = planned(spout)

    first, second = spout.read(metadata), spout.read(metadata)

    assert first == second
    assert (first.paths, first.size_bytes, first.format) == ((str(path),), 2, "text")


def test_a_changed_file_of_an_unfinished_batch_is_an_error(source):
    path = aged(source / "a.txt", 0, "one\n")
    spout = FileSpout(source)
    metadata = planned(spout)
    aged(path, 0, "one\ntwo\n")

    with pytest.raises(SourceError) as refused:
        spout.read(metadata)
    assert str(refused.value) == (
        f"{path} was changed after it was put into a batch (4 bytes then, 8 now). Put the old "
        "file back; new rows go into new files. `waterspout batch show` tells more; `batch skip` "
        "goes on without it, `batch accept` takes a file as it is now. min_age_secs=... lets files "
        "that are still written wait first."
    )


def test_a_file_of_the_same_size_and_another_time_has_changed_too(source):
    path = aged(source / "a.txt", 0, "one\n")
    spout = FileSpout(source)
    metadata = planned(spout)
    aged(path, 1, "two\n")

    said = "the same size, 4 bytes, but other content; of 2001-09-09 01:46:40 UTC then, of 2001"
    with pytest.raises(DataLossError, match=said):
        spout.read(metadata)


def test_a_file_that_was_touched_or_put_back_from_a_copy_goes_on(source, caplog):
    path = aged(source / "a.txt", 0, "one\n")
    spout = FileSpout(source)
    planner = opened(spout)
    assert planner.is_ready(None)
    metadata = planner.plan(1, None)
    path.unlink()
    aged(path, 7, "one\n")

    assert spout.read(metadata).paths == (str(path),)
    planner.confirm(metadata)
    (told,) = caplog.messages
    assert told.endswith(
        "a.txt goes on as it is: the same content; of 2001-09-09 01:46:40 UTC then, of 2001-09-09 "
        "01:46:47 UTC now"
    )


def test_without_a_digest_another_time_is_another_file_and_that_is_said(source, monkeypatch):
    path = aged(source / "a.txt", 0, "one\n")
    spout = FileSpout(source)
    older = planned(spout)
    del older["content"]  # an older version planned it
    monkeypatch.setattr("waterspout.spouts._pinned.DIGEST_MAX_BYTES", 3)
    large = planned(FileSpout(source))
    aged(path, 1, "one\n")

    with pytest.raises(DataLossError, match="cannot be told: the file is too large for a digest"):
        spout.read(large)
    monkeypatch.undo()
    with pytest.raises(DataLossError, match="cannot be told: no digest was kept"):
        spout.read(older)


def test_a_source_that_is_gone_as_a_whole_is_away_and_not_lost(source):
    aged(source / "a.txt", 0, "one\n")
    spout = FileSpout(source / "*.txt")
    metadata = planned(spout)
    source.rename(source.with_name("elsewhere"))

    with pytest.raises(SourceError, match="cannot be read: No such file") as away:
        spout.read(metadata)
    assert not isinstance(away.value, DataLossError)


def test_a_deleted_file_of_an_unfinished_batch_is_an_error(source):
    path = aged(source / "a.txt", 0)
    spout = FileSpout(source)
    metadata = planned(spout)
    path.unlink()

    with pytest.raises(SourceError) as refused:
        spout.read(metadata)
    assert str(refused.value) == (
        f"{path} belongs to a batch that is not finished, but cannot be read: No such file or "
        "directory. Put it back. `waterspout batch show` tells more; `batch skip` goes on without "
        "it, `batch accept` takes a file as it is now."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("grown", r"in/0 was changed after it was put into a batch \(8 bytes then, 43 now\)"),
        ("deleted", r"in/0 belongs to a batch that is not finished, but cannot be read: No such"),
    ],
)
def test_a_file_that_changes_while_it_is_read_fails_its_batch(source, tmp_path, change, said):
    path = aged(source / "0", 0, "one\ntwo\n")
    counts = SQLiteState.opaque(tmp_path / "counts.db", table="counts")

    def run(*filters):
        topology = TridentTopology("files")
        lines = topology.new_stream("lines", FileSpout(source))
        for each in filters:
            lines = lines.each("value", each)
        state = lines.group_by("value").persistent_aggregate(counts, Count(), out="n")
        store = EmbeddedStore(tmp_path / "home", "files")
        run = LocalRun(topology, Config(max_retries=0), store=store)
        try:
            run.finish()
        finally:
            run.close()
            assert run.loop.ledger.begun == ()
        return state.multi_get([["one"], ["two"]])

    with pytest.raises(SourceError, match=said):
        run(Meddling(path, change))

    aged(path, 0, "one\ntwo\n")
    assert run() == [1, 1]


def test_an_empty_file_holds_no_rows_and_is_not_read(source):
    aged(source / "empty", 0, "")
    path = aged(source / "full", 1, "x\n")
    spout = FileSpout(source)
    metadata = planned(spout)

    assert [size for _, size, _ in metadata["files"]] == [0, 2]
    assert spout.read(metadata).paths == (str(path),)


def test_committed_files_are_not_read_again_and_others_are(source, folder):
    for i in range(3):
        aged(source / f"{i}", i)
    spout = FileSpout(source, max_files=1)
    planner = opened(spout, folder)
    planner.is_ready(None)
    first, second = planner.plan(1, None), planner.plan(2, None)
    planner.succeeded(1, first)
    planner.close()

    # Batch 2 was emitted and not committed: the loop replays it from its metadata.
    again = opened(spout, folder, {1: first, 2: second}, current=2)

    assert batches(again, spout) == [["2"]]


def test_a_crash_between_mark_and_telling_the_spout_repeats_nothing(source, folder):
    aged(source / "0", 0)
    spout = FileSpout(source)
    planner = opened(spout, folder)
    planner.is_ready(None)
    metadata = planner.plan(1, None)
    planner.close()

    again = opened(spout, folder, {1: metadata}, current=2)
    assert not again.is_ready(None)
    again.close()

    # Nor later, when the ledger has moved on and the spout's own memory must do.
    assert not opened(spout, folder, {}, current=3).is_ready(None)


def test_telling_twice_that_a_batch_committed_is_no_error(source, folder):
    aged(source / "0", 0)
    planner = opened(FileSpout(source), folder)
    planner.is_ready(None)
    metadata = planner.plan(1, None)

    planner.succeeded(1, metadata)
    planner.succeeded(1, metadata)

    assert not planner.is_ready(None)
    planner.close()


def test_the_spouts_memory_is_for_its_owner_only(source, folder):
    opened(FileSpout(source), folder).close()

    assert (folder / "files-lines.db").stat().st_mode & 0o777 == 0o600


def test_the_path_is_part_of_what_must_not_change(source):
    # In another place every file would count as new, and be counted twice.
    identity = FileSpout(source).identity()

    assert identity == {
        "spout": "FileSpout",
        "kind": "transactional",
        "path": str(source),
        "format": "text",
        "fields": "value string",
    }
    assert FileSpout(os.path.relpath(source)).identity() == identity


def test_a_missing_directory_is_refused_by_name(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere is not there; create the directory first"):
        FileSpout(tmp_path / "nowhere").check()


def test_an_empty_directory_or_glob_is_fine(source):
    FileSpout(source).check()
    FileSpout(f"{source}/*.txt").check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_a_directory_that_cannot_be_listed_is_refused(source):
    source.chmod(0)
    try:
        with pytest.raises(SourceError, match="cannot be listed"):
            FileSpout(source).check()
    finally:
        source.chmod(0o700)


def test_an_unknown_format_is_refused_with_those_there_are(source):
    with pytest.raises(TopologyError, match="cannot read 'xml'; it reads text, json, csv, parquet"):
        FileSpout(source, "xml")


@pytest.mark.parametrize("form", ["json", "csv", "orc"])
def test_a_format_without_a_schema_of_its_own_needs_one(source, form):
    with pytest.raises(
        TopologyError, match=f"of format {form} needs a schema, for example schema="
    ):
        FileSpout(source, form)


def test_parquet_brings_its_schema(source):
    pq.write_table(
        pa.table(
            {"word": ["a"], "n": [1], "tags": [["x"]], "at": pa.array([0], pa.timestamp("us"))}
        ),
        source / "a.parquet",
    )

    assert str(FileSpout(source, "parquet").schema) == (
        "word string, n bigint, tags array<string>, at timestamp_ntz"
    )


def test_parquet_without_a_file_to_look_at_needs_a_schema(source):
    with pytest.raises(TopologyError, match=r"no Parquet file at .* put one there, or give schema"):
        FileSpout(source, "parquet")
    assert str(FileSpout(source, "parquet", schema="n long").schema) == "n bigint"


def test_text_has_the_field_of_sparks_reader(source):
    assert str(FileSpout(source, "text", schema="line string").schema) == "value string"


@pytest.mark.parametrize("bad", [{"max_files": 0}, {"max_bytes": 0}, {"max_rows": 0}])
def test_a_bound_below_one_is_refused(source, bad):
    with pytest.raises(TopologyError, match="max_files, max_bytes and max_rows must be at least 1"):
        FileSpout(source, **bad)


def test_a_schema_needs_types(source):
    with pytest.raises(TopologyError, match=r"FileSpout does not know the type .* 'n'"):
        FileSpout(source, "json", schema="n")


def test_every_line_of_every_file_is_in_exactly_one_batch(source):
    for i in range(5):
        aged(source / f"{i}", i, f"{i} a\n{i} b\n")
    topology = TridentTopology("files")
    kept = capture(topology.new_stream("lines", FileSpout(source, max_files=2)))

    run_in_process(topology, Config(max_spout_pending=2))

    assert kept.batches == {
        1: [("0 a",), ("0 b",), ("1 a",), ("1 b",)],
        2: [("2 a",), ("2 b",), ("3 a",), ("3 b",)],
        3: [("4 a",), ("4 b",)],
    }
