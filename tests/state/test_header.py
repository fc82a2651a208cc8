"""What a store keeps of a state beside its records: written as ever, and refused in one way."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from waterspout.errors import DamagedStoreError, ForeignStoreError, NewerFormatError
from waterspout.state._base import StateKind
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._header import ROW, StoreHeader
from waterspout.state.files._format import DataFile, Manifest, StateShape
from waterspout.state.memcached._state import MemcachedMap, _Placed
from waterspout.state.memcached._wire import Item, Server
from waterspout.state.redis._header import SUMMED, Headers

HEAD = Head(Stamp(Writer("words", 2, "h", "l"), 3, 1), committed=True, resolved={1: 1})
COLUMNS = "word string -> n bigint"
HEADER = StoreHeader("the table", "table", "opaque", COLUMNS)
TEXT = (
    '{"owner":"words","history":"h","lease":"l","epoch":2,"txid":3,"attempt":1,"committed":true,'
    '"resolved":[[1,1]]}'
)
QUOTED = TEXT.replace('"', '\\"')

# Each as version 1 of the format has written it: what stands in a store must stay readable.
ROW_OF_HEAD = (1, "opaque", COLUMNS, TEXT, "881af089ae4c2b8feaa1269ac1be67b9")
ROW_OF_NONE = (1, "opaque", COLUMNS, "", "ff8160663ad171af63be61d39119eaa4")
REDIS = ["format", "1", "state", f"opaque, string layout, slots 1, {COLUMNS}", "head", TEXT]
REDIS += ["fence", "", "checksum", "40d019672714abba9ec800f4f9b77451"]
MEMCACHED = (
    f'{{"format":1,"kind":"opaque","layout":"{COLUMNS}","head":"{QUOTED}","id":"abc","spread":1,'
    '"checksum":"b5b7e3cc5520d5c7dbb039f6ba2a7f8b"}'
).encode()
FILE = (
    f'{{"waterspout":"head","format":1,"kind":"opaque","layout":"{COLUMNS}","head":"{QUOTED}",'
    '"snapshot":[["a",1,"c"]],"deltas":[],"line":["z"]}\n#ead38ba8500c79f01f6409dadd36c35b\n'
).encode()


@pytest.mark.parametrize(("head", "row"), [(HEAD, ROW_OF_HEAD), (None, ROW_OF_NONE)])
def test_a_row_is_written_and_read_as_ever(head, row):
    assert HEADER.row(head) == row
    assert HEADER.from_row(row) == head


def test_the_hash_of_redis_is_written_and_read_as_ever():
    header = StoreHeader("R", "prefix", "opaque", f"string layout, slots 1, {COLUMNS}", SUMMED)
    headers = Headers(header, "p")

    assert headers.fields(HEAD) == REDIS
    assert headers.parsed([word.encode() for word in REDIS], 0) == HEAD


def test_the_item_of_memcached_is_written_and_read_as_ever():
    server = Server("h", 1, 1, 1)
    backing = MemcachedMap([server], "p", StateKind.OPAQUE, COLUMNS, 0)
    placed = _Placed(HEAD, "abc", 1)

    assert backing._header_data(placed) == MEMCACHED
    assert backing._parse_header(Item(MEMCACHED, 0, b"7")) == replace(placed, token=b"7")


def test_the_head_file_is_written_and_read_as_ever():
    manifest = Manifest(StateShape("opaque", COLUMNS), HEAD, (DataFile("a", 1, "c"),), (), ("z",))

    assert manifest.to_bytes() == FILE
    assert Manifest.from_bytes(FILE, where="here") == manifest


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"format": 2}, NewerFormatError, r"the table was .* \(format 2, .* or use another table"),
        ({"head": ""}, DamagedStoreError, "the head of the table does not match its checksum"),
        ({"kind": "transactional"}, DamagedStoreError, "checksum"),
        ({"checksum": None}, DamagedStoreError, "checksum"),
    ],
)
def test_a_header_that_was_changed_is_refused(change, error, words):
    fields = dict(zip(ROW, HEADER.row(HEAD), strict=True)) | change

    with pytest.raises(error, match=words):
        HEADER.opened(fields)


@pytest.mark.parametrize("other", [{"kind": "transactional"}, {"layout": "any"}])
def test_a_state_of_another_kind_or_of_other_columns_is_refused(other):
    row = replace(HEADER, **other).row(HEAD)

    with pytest.raises(ForeignStoreError, match=r"wants an opaque state of word .* another table"):
        HEADER.from_row(row)


def test_the_refusal_of_a_newer_format_can_be_sent_to_another_process():
    error = NewerFormatError("it", 2, 1, instead="another table")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)
