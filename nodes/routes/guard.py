"""What every route shares: names checked, bodies small, work off the event loop, and every error a sentence as JSON."""

import asyncio
import errno
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import folder_paths
from aiohttp import web

from ...training.job import RunFolder
from ..run_view import is_run

BODY = 16 * 1024  # bytes, the largest body of an action
PATIENCE = 10.0  # seconds a body may take to arrive
PORTS = {"http": 80, "https": 443}
log = logging.getLogger("stepwise_grpo")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refused(Exception):
    """A request that is not served: the HTTP status and a sentence with the remedy."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Picture:
    """An answer that is a file; ``kind`` is its media type."""

    path: Path
    kind: str


@dataclass(frozen=True)
class Ask:
    """A request as the work of a route sees it."""

    output: Path
    """ComfyUI's output folder."""
    parts: Mapping[str, str]
    """The named parts of the address, decoded."""
    query: Mapping[str, str]
    body: dict[str, Any]
    """The JSON object of an action; {} otherwise."""

    def run(self) -> RunFolder:
        """The run that ``{run}`` in the address names; its name is checked by ``RunFolder``."""
        run = RunFolder(self.output, self.parts["run"])
        if not is_run(run):
            raise Refused(404, f"there is no run {run.name!r} in {self.output}")
        return run


def reading(work: Callable[[Ask], Any]) -> Handler:
    """A route that only reads: ``work`` runs in a thread and gives a JSON value or a ``Picture``."""
    return _handler(work, acts=False)


def action(work: Callable[[Ask], Any]) -> Handler:
    """A route that changes something: as ``reading``, but with a JSON body and from the same page."""
    return _handler(work, acts=True)


def _handler(work: Callable[[Ask], Any], acts: bool) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await _body(request) if acts else {}
            ask = Ask(Path(folder_paths.get_output_directory()), dict(request.match_info), dict(request.query), body)
            found = await asyncio.to_thread(_worked, work, ask)
        except Refused as refusal:
            return web.json_response({"error": str(refusal)}, status=refusal.status)
        if isinstance(found, Picture):
            headers = {"Content-Type": found.kind, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}  # kept, and asked for again with its date
            return web.FileResponse(found.path, headers=headers)
        return web.Response(body=found, content_type="application/json", headers={"Cache-Control": "no-store"})

    return handle


def _worked(work: Callable[[Ask], Any], ask: Ask) -> Any:
    """A ``Picture``, or JSON as bytes: a long answer is put together here and not on the event loop."""
    try:
        found = work(ask)
        return found if isinstance(found, Picture) else json.dumps(found, allow_nan=False).encode("ascii")
    except Refused:
        raise
    except ValueError as error:
        raise Refused(400, str(error)) from None
    except OSError as error:
        raise Refused(*_of_disk(error, ask.output)) from None
    except Exception as error:
        log.exception("a page of Stepwise GRPO asked for something that failed")
        raise Refused(500, f"this failed inside Stepwise GRPO ({type(error).__name__}); ComfyUI's log says where") from None


def _of_disk(error: OSError, output: Path) -> tuple[int, str]:
    if error.errno == errno.ENOSPC:
        return 507, f"no space left on the disk of {output}: nothing was changed; make room and try again"
    return 500, f"the disk of {output} refuses: {error.strerror or type(error).__name__}; look at the folder's permissions and try again"


async def _body(request: web.Request) -> dict[str, Any]:
    """The JSON object that an action needs."""
    _refuse_other_pages(request)
    if request.content_type != "application/json":
        raise Refused(415, "this action needs the header Content-Type: application/json")
    try:
        data = await asyncio.wait_for(_read(request), PATIENCE)
    except Refused:
        raise
    except Exception as error:  # cut off, too slow, or packed wrongly
        raise Refused(400, f"the body of this action did not arrive whole ({type(error).__name__}); send it again") from None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(400, "the body of this action is not JSON: send an object, for example {}") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body of this action must be a JSON object, for example {}")
    return found


async def _read(request: web.Request) -> bytes:
    too_large = Refused(413, f"the body of this action is larger than {BODY // 1024} KiB: send less")
    if (request.content_length or 0) > BODY:
        raise too_large
    data = b""
    async for part in request.content.iter_chunked(4096):
        data += part
        if len(data) > BODY:
            raise too_large
    return data


def _refuse_other_pages(request: web.Request) -> None:
    """Only ComfyUI's own page may act. Programs send no Origin and pass; browsers always send one with a POST."""
    origin = request.headers.get("Origin")
    if origin is not None and _address(origin, "") != _address(f"//{request.host}", urlsplit(origin).scheme):
        raise Refused(403, f"this action came from the page of {origin[:100]}, but this ComfyUI is {request.host}; a proxy between them must pass on the Host header")


def _address(url: str, scheme: str) -> tuple[str | None, int | None] | None:
    """Host and port; None where it is no address, as in "null"."""
    try:
        parts = urlsplit(url.lower(), scheme)
        return (parts.hostname, parts.port or PORTS.get(parts.scheme)) if parts.hostname else None
    except ValueError:
        return None
