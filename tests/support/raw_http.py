"""HTTP by hand, for what no client sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """Of the error object."""
        try:
            code: str | None = json.loads(self.body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None
        return code


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60.0)
    connection.connect(("127.0.0.1", port))
    return connection


def head(path: str, *more: str, method: str = "POST", length: int | None = None) -> bytes:
    """The head of a request with a JSON body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def post(path: str, body: Any, *more: str) -> bytes:
    """A whole request. body: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, *more, length=len(data)) + data


def exchange(port: int, data: bytes) -> Reply | None:
    """What the server says to these bytes; None if it closes the connection without a word."""
    with connect(port) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have heard enough
            connection.sendall(data)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> Reply | None:
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return None
    finally:
        response.close()
