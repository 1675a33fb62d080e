"""What a page sees while a graph runs: the messages on ComfyUI's websocket."""

import asyncio
import io
import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from PIL import Image

from stepwise_grpo.tools.server import ComfyServer

TEXT, PREVIEW = 3, 4  # kinds of binary messages
END = ("execution_success", "execution_error", "execution_interrupted")


@dataclass
class Seen:
    """Everything of one run, in order of arrival; by node id where it belongs to one."""

    end: str = ""
    prompt_id: str = ""
    bars: list[tuple[str, int, int]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[tuple[str, Image.Image]] = field(default_factory=list)
    stopped_at: int = -1
    """How far the bar had come when the server answered to the interruption."""

    def of(self, node: str) -> "Seen":
        """What concerns one node."""
        mine = lambda entries: [entry for entry in entries if entry[0] == node]
        return Seen(self.end, self.prompt_id, mine(self.bars), mine(self.texts), mine(self.pictures), self.stopped_at)


def watch(server: ComfyServer, graph: dict[str, Any], interrupt_when: Callable[[Seen], bool] = lambda seen: False) -> Seen:
    """Run a graph to its end; interrupt it, as the page's cancel does, as soon as ``interrupt_when`` says so."""
    return asyncio.run(asyncio.wait_for(_watch(server, graph, interrupt_when), 300))


async def _watch(server: ComfyServer, graph: dict[str, Any], interrupt_when: Callable[[Seen], bool]) -> Seen:
    seen, id = Seen(), f"page-{time.time_ns()}"
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{server.url}/ws?clientId={id}", max_msg_size=0) as socket:
        await socket.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
        async with session.post(f"{server.url}/prompt", json={"prompt": graph, "client_id": id}) as answer:
            seen.prompt_id = (await answer.json())["prompt_id"]
        stopping = None
        async for message in socket:
            take(seen, message)
            if seen.end:
                break
            if stopping is None and interrupt_when(seen):
                stopping = asyncio.ensure_future(_interrupt(session, server, seen))
        if stopping is not None:
            await stopping
    return seen


async def _interrupt(session: aiohttp.ClientSession, server: ComfyServer, seen: Seen) -> None:
    async with session.post(f"{server.url}/interrupt", json={}):
        seen.stopped_at = seen.bars[-1][1]


def take(seen: Seen, message: aiohttp.WSMessage) -> None:
    """Sort one message in."""
    if message.type == aiohttp.WSMsgType.TEXT:
        kind, data = (json.loads(message.data)[key] for key in ("type", "data"))
        if kind == "progress":
            seen.bars.append((data["node"], data["value"], data["max"]))
        elif kind in END:
            seen.end = kind
    elif message.type == aiohttp.WSMsgType.BINARY:
        kind, length = struct.unpack(">II", message.data[:8])
        head, rest = message.data[8 : 8 + length], message.data[8 + length :]
        if kind == TEXT:
            seen.texts.append((head.decode("utf-8"), rest.decode("utf-8")))
        elif kind == PREVIEW:
            seen.pictures.append((json.loads(head)["node_id"], Image.open(io.BytesIO(rest))))
