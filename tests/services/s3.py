"""As much of S3 as we need, in memory: objects, uploads, listings, puts that must not replace.

`python -m tests.services.s3` serves one bucket, whatever its name is, on a port that it prints. In
a process of its own: `deltalake` lets no other thread of its process run while it lists files.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

WHEN = "Tue, 17 Nov 2026 12:00:00 GMT"


class Objects:
    """Objects by key; `replacing` are puts that would have replaced one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.replacing: list[str] = []
        self.uploads: dict[str, dict[int, bytes]] = {}


class Bucket:
    """A bucket that is served by another process."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-m", __spec__.name]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())

    def kill(self) -> None:
        """End it; what it holds is lost."""
        with self._server:
            self._server.kill()

    @property
    def options(self) -> dict[str, str]:
        """What `deltalake` needs to get there."""
        return {
            "aws_endpoint": f"http://127.0.0.1:{self.port}",
            "aws_access_key_id": "somebody",
            "aws_secret_access_key": "${LAKE_KEY}",
            "aws_region": "us-east-1",
            "allow_http": "true",
            "max_retries": "0",
        }

    @property
    def keys(self) -> list[str]:
        """The names of all objects."""
        return list(self._asked()["keys"])

    @property
    def replacing(self) -> list[str]:
        """The names of objects that were put in a way that could have replaced one."""
        return list(self._asked()["replacing"])

    def _asked(self) -> dict[str, list[str]]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        with closing(connection):
            connection.request("GET", "/?told")
            return json.loads(connection.getresponse().read())


@contextmanager
def serving() -> Iterator[Bucket]:
    """Serve a bucket from another process."""
    bucket = Bucket()
    try:
        yield bucket
    finally:
        bucket.kill()


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def main() -> None:
    bucket = Objects()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with suppress(ConnectionError):  # of clients that have heard enough
                super().handle()

        def handle_expect_100(self) -> bool:
            going_on = super().handle_expect_100()
            self.wfile.flush()  # the client waits for it
            return going_on

        def log_message(self, *args: object) -> None:
            pass

        @property
        def key(self) -> str:
            return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

        def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            self.wfile.flush()

        def content(self) -> bytes:
            """Read what comes with a request, in either of the two codings in pieces, or both."""
            if self.headers.get("Transfer-Encoding") == "chunked":
                found = pieces(self.rfile)
            else:
                found = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "aws-chunked" in self.headers.get("Content-Encoding", ""):
                return pieces(io.BytesIO(found))
            return found

        @property
        def asked(self) -> dict[str, list[str]]:
            return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

        def do_POST(self) -> None:
            text = self.content().decode()
            if "delete" in self.asked:
                keys = [unescape(key) for key in re.findall("<Key>(.*?)</Key>", text)]
                with bucket.lock:
                    for key in keys:
                        bucket.objects.pop(key, None)
                inner = "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
                kind = "DeleteResult"
            elif "uploads" in self.asked:
                name = f"upload{len(bucket.uploads)}"
                bucket.uploads[name] = {}
                inner = f"<UploadId>{name}</UploadId>"
                kind = "InitiateMultipartUploadResult"
            else:
                parts = bucket.uploads[self.asked["uploadId"][0]]
                content = b"".join(parts[number] for number in sorted(parts))
                with bucket.lock:
                    bucket.objects[self.key] = content
                inner = f"<ETag>{escape(etag(content))}</ETag>"
                kind = "CompleteMultipartUploadResult"
            self.answer(200, f"<{kind}>{inner}</{kind}>".encode())

        def do_PUT(self) -> None:
            content = self.content()
            if not self.key:
                return self.answer(200)  # a bucket; it is there
            if "uploadId" in self.asked:
                part = int(self.asked["partNumber"][0])
                bucket.uploads[self.asked["uploadId"][0]][part] = content
                return self.answer(200, ETag=etag(content))
            with bucket.lock:
                if self.headers.get("If-None-Match") != "*":
                    bucket.replacing.append(self.key)
                elif self.key in bucket.objects:
                    return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                bucket.objects[self.key] = content
            return self.answer(200, ETag=etag(content))

        def do_DELETE(self) -> None:
            with bucket.lock:
                bucket.objects.pop(self.key, None)
            self.answer(204)

        def do_HEAD(self) -> None:
            content = bucket.objects.get(self.key) if self.key else b""
            if content is None:
                return self.answer(404)
            size = str(len(content))
            return self.answer(200, ETag=etag(content), Last_Modified=WHEN, Content_Length=size)

        def do_GET(self) -> None:
            asked = self.asked
            if "told" in asked:
                told = {"keys": sorted(bucket.objects), "replacing": bucket.replacing}
                return self.answer(200, json.dumps(told).encode())
            if "list-type" in asked:
                return self.answer(200, listing(bucket, asked).encode())
            content = bucket.objects.get(self.key)
            if content is None:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            headers = {"ETag": etag(content), "Last_Modified": WHEN}
            span = self.headers.get("Range")
            if span is None:
                return self.answer(200, content, **headers)
            first, _, last = span.removeprefix("bytes=").partition("-")
            start = int(first) if first else len(content) - int(last)
            end = int(last) + 1 if first and last else len(content)
            part = content[start:end]
            place = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
            return self.answer(206, part, Content_Range=place, **headers)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def pieces(file: Any) -> bytes:
    """Read pieces, each behind its length, to the empty one, and the lines behind that."""
    found = b""
    while size := int(file.readline().partition(b";")[0], 16):
        found += file.read(size)
        file.readline()
    while file.readline().strip():
        pass
    return found


def listing(bucket: Objects, asked: dict[str, list[str]]) -> str:
    """Return keys with a prefix, a page of them; those of folders as the folders."""
    prefix, delimiter, after, token, most = (
        asked.get(name, [""])[0]
        for name in ("prefix", "delimiter", "start-after", "continuation-token", "max-keys")
    )
    after = max(after, token)
    with bucket.lock:
        found = {k: v for k, v in bucket.objects.items() if k.startswith(prefix) and k > after}
    folders, files = set(), []
    page = sorted(found)[: int(most or 1000)]
    more = len(page) < len(found)
    for key in page:
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
        else:
            files.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(found[key])}</Size>"
                f"<ETag>{escape(etag(found[key]))}</ETag>"
                "<LastModified>2026-11-17T12:00:00.000Z</LastModified></Contents>"
            )
    common = "".join(
        f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        for folder in sorted(folders)
    )
    next_page = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{next_page}"
        f"<KeyCount>{len(files)}</KeyCount>{''.join(files)}{common}</ListBucketResult>"
    )


if __name__ == "__main__":
    main()
