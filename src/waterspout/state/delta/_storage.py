"""The folder of a Delta table, reached in the way in which `deltalake` reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from waterspout.state.files._locations import ArrowFolder, Folder, LocalFolder, local_path

__all__ = ["store_folder", "table_folder"]


def table_folder(uri: str, options: Mapping[str, str]) -> Folder:
    """Return the folder of a table: on this machine, or in an object store."""
    path = local_path(uri)
    return store_folder(uri, options) if path is None else LocalFolder(path, shared=True)


def store_folder(uri: str, options: Mapping[str, str]) -> ArrowFolder:
    """Return a folder of an object store, opened with the options of the table."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    class Handler(DeltaStorageHandler):
        """Hands bytes to the stream: pyarrow gives it buffers, of which it knows nothing."""

        def open_output_stream(self, path: str, metadata: Any = None) -> pa.PythonFile:
            stream = self._handler.open_output_stream(path, metadata)
            return pa.PythonFile(_BytesStream(stream), mode="w")

    return ArrowFolder(PyFileSystem(Handler(uri, dict(options))), "", uri)


class _BytesStream:
    """A stream that is written to and then closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.closed = False

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()

    def flush(self) -> None:
        """Do nothing: the object is there as a whole, once it is closed."""
