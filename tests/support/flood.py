"""Many tiny requests over few connections, with as little work for the client as can be."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.support.raw_http import post


async def flood(port: int, requests: int, connections: int) -> Counter[int]:
    """How many answers had each status. Every connection asks one after another."""
    found: Counter[int] = Counter()
    left = iter(range(requests))

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for number in left:
                writer.write(post("/v1/completions", {"prompt": f"{number}", "max_tokens": 1, "temperature": 0}))
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().lower().split("\r\n")
                (length,) = (int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
                await reader.readexactly(length)
                found[int(lines[0].split()[1])] += 1
        finally:
            writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    return found
