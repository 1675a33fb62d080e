"""The routes of the runs and of the trainer: what the page reads of them, and what it may ask of them."""

import re
from typing import Any

from aiohttp import web

from .. import run_view
from .guard import Ask, Picture, Refused, reading

PLACE = "/stepwise_grpo"
PICTURES = ("look", "best")


def overview(ask: Ask) -> dict[str, Any]:
    return run_view.overview(ask.output)


def detail(ask: Ask) -> dict[str, Any]:
    return run_view.detail(ask.run(), number(ask.query.get("after", "0"), "after"))


def picture(ask: Ask) -> Picture:
    run, version, kind = ask.run(), number(ask.parts["version"], "the version"), ask.query.get("kind", "look")
    if kind not in PICTURES:
        raise Refused(400, "kind must be look or best")
    found = Picture(run_view.look_picture(run, version), "image/jpeg") if kind == "look" else Picture(run.picture_file(version), "image/png")
    if not found.path.is_file():
        raise Refused(404, f"the run {run.name!r} has no picture of version {version} of this kind")
    return found


def number(text: str, what: str) -> int:
    """A number in an address."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise Refused(400, f"{what} must be a whole number, 0 or more")
    return int(text)


READING = (
    web.get(f"{PLACE}/runs", reading(overview)),
    web.get(f"{PLACE}/runs/{{run}}", reading(detail)),
    web.get(f"{PLACE}/runs/{{run}}/pictures/{{version}}", reading(picture)),
)
ROUTES = READING
