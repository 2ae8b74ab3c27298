"""The puts of Google's XML API before fake-gcs-server, which knows those of the JSON API alone: a put with a
precondition, and an upload in parts; and a list that begins after a name. The server decides which put with a
precondition it takes."""

from __future__ import annotations

import html
import itertools
import json
import re
import sys
from contextlib import AbstractContextManager
from http.client import HTTPConnection, HTTPResponse
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.harness.store_faults import HOP, AnsweringHandler, in_front, serve

_SECONDS: Final = 60.0
_CONDITION: Final = "x-goog-if-generation-match"


def gcs_xml(server: str) -> AbstractContextManager[str]:
    """The URL before the server at this one."""
    return in_front(server, __name__)


class _XmlHandler(AnsweringHandler):
    server_address: str
    parts: Final[dict[str, dict[int, bytes]]] = {}
    numbers: Final = itertools.count(1)

    def do_PUT(self) -> None:  # noqa: N802
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        upload = asked.get("uploadId", [""])[0]
        if self.command == "POST" and "uploads" in asked:
            name = f"upload-{next(self.numbers)}"
            self.parts[name] = {}
            self._xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        elif self.command == "PUT" and upload:
            self.parts[upload][int(asked["partNumber"][0])] = body
            self.answer(200, [("ETag", f'"{asked["partNumber"][0]}"')], b"")
        elif self.command == "POST" and upload:
            parts = self.parts.pop(upload)
            status, headers, text = self._upload(b"".join(parts[number] for number in sorted(parts)))
            if status == 200:
                self._xml("CompleteMultipartUploadResult", f"<ETag>{headers['ETag']}</ETag>", headers)
            else:
                self.answer(status, headers.items(), text)
        elif self.command == "DELETE" and upload:
            self.parts.pop(upload, None)
            self.answer(204, (), b"")
        elif self.command == "PUT":
            status, headers, text = self._upload(body)
            self.answer(status, headers.items(), text)
        else:
            response, text = self._ask(self.command, self.path, body, dict(self.headers.items()))
            if after := asked.get("start-after"):
                text = _after(text, after[0])
            self.answer(response.status, response.getheaders(), text)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815

    def _upload(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Put an object by the JSON API."""
        bucket, _, name = urlsplit(self.path).path.removeprefix("/").partition("/")
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(name), safe='')}"
        if (condition := self.headers.get(_CONDITION)) is not None:
            path += f"&ifGenerationMatch={condition}"
        response, text = self._ask("POST", path, body, {"Content-Type": "application/octet-stream"})
        if response.status != 200:
            return response.status, {}, text
        made = json.loads(text)
        return 200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])}, b""

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        conn = HTTPConnection(self.server_address, timeout=_SECONDS)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in HOP | {"host"}}
            conn.request(method, path, body, {**kept, "Host": self.server_address})
            response = conn.getresponse()
            return response, response.read()
        finally:
            conn.close()

    def _xml(self, kind: str, inside: str, headers: dict[str, str] | None = None) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?><{kind}>{inside}</{kind}>'
        given = {"Content-Type": "application/xml", **(headers or {})}
        self.answer(200, given.items(), text.encode())


def _after(listed: bytes, name: str) -> bytes:
    """A list of objects without those up to a name."""

    def kept(entry: re.Match[bytes]) -> bytes:
        return entry[0] if html.unescape(entry[1].decode()) > name else b""

    return re.sub(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", kept, listed)


if __name__ == "__main__":
    _XmlHandler.server_address = sys.argv[1]
    serve(_XmlHandler)
