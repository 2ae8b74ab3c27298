"""`python -m tests.harness.moto_store PORT`: moto's S3 on the loopback, whose conditional puts are atomic.

moto 5 looks whether a key exists and puts it in two steps (`S3Response.put_object`), and serves each request
in a thread, so that now and then two writers of one key both win. S3 lets one win.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class AtomicPuts:
    """Serves one conditional put at a time."""

    def __init__(self, served: Any) -> None:
        self._served = served
        self._putting = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request as WSGI (PEP 3333) has it."""
        if "HTTP_IF_NONE_MATCH" not in environ:
            answer: Iterable[bytes] = self._served(environ, start_response)
            return answer
        with self._putting:
            return list(self._served(environ, start_response))


if __name__ == "__main__":
    # moto's own dispatcher looks for the service in each request, which takes as long as to answer it.
    application = AtomicPuts(create_backend_app("s3"))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
