"""What the server's sockets are set to."""

from __future__ import annotations

import asyncio
import socket

from queueproof.server.config import ServerConfig
from queueproof.server.run import listen


def test_small_pieces_are_sent_at_once() -> None:
    """With Nagle's algorithm the body of an answer would wait 40 ms for the client to acknowledge its head."""

    async def nodelay() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = listen(ServerConfig(model_names=("m",), build="1", port=0))
        async with await asyncio.start_server(connected, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            value = await found
            writer.close()
            await writer.wait_closed()
            return value

    assert asyncio.run(nodelay()) != 0
