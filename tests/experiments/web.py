"""A web server of one's own for the tests of downloads: it serves what it is told to, or misbehaves as told."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch

Answer = bytes | Callable[[BaseHTTPRequestHandler], None]
NOWHERE = "http://127.0.0.1:9"  # nobody listens at the discard port


@contextlib.contextmanager
def serving(answers: Mapping[str, Answer], calls: list[str] | None = None) -> Iterator[str]:
    """The address of a server that has these answers by path; the paths that were asked for go into ``calls``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if calls is not None:
                calls.append(self.path)
            answer = answers.get(self.path)
            with contextlib.suppress(ConnectionError):  # who asked may have heard enough
                if callable(answer):
                    answer(self)
                elif answer is None:
                    self.send_error(404)
                else:
                    begin(self, str(len(answer)))
                    self.wfile.write(answer)

        def log_message(self, *words: object) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with patch.dict(os.environ, no_proxy="127.0.0.1"):
            yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def begin(handler: BaseHTTPRequestHandler, length: str | None = None, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    if length is not None:
        handler.send_header("Content-Length", length)
    for name, content in headers.items():
        handler.send_header(name, content)
    handler.end_headers()


def endless(piece: bytes = b"\0" * (1 << 16), length: str | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer that never ends."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin(handler, length)
        while True:
            handler.wfile.write(piece)

    return answer
