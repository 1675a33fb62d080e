"""The routes of the Credit Visualizer: a stored view, and a group's thumbnails."""

import re
from pathlib import Path
from typing import Any

from aiohttp import web

from ...training.job import read_json
from ..credit_view import folder_of
from .guard import Ask, Picture, Refused, reading

PLACE = "/stepwise_grpo/credit"
GONE = "this view is not stored any more (the newest 40 are kept)"


def view(ask: Ask) -> dict[str, Any]:
    try:
        found = read_json(folder(ask) / "view.json")
    except ValueError:
        raise Refused(400, "this view is damaged") from None
    if found is None:
        raise Refused(404, GONE)
    return found


def thumbnails(ask: Ask) -> Picture:
    group = ask.parts["group"]
    if not re.fullmatch("[0-9]{1,4}", group):
        raise Refused(400, "the group must be a whole number, 0 or more")
    path = folder(ask) / f"group_{int(group):03d}.jpg"
    if not path.is_file():
        raise Refused(404, GONE)
    return Picture(path, "image/jpeg")


def folder(ask: Ask) -> Path:
    """The folder of the view that the address names; nothing but 16 hex digits can name one."""
    id = ask.parts["id"]
    if not re.fullmatch("[0-9a-f]{16}", id):
        raise Refused(400, "a view is named by 16 hex digits")
    return folder_of(ask.output) / id


ROUTES = (
    web.get(f"{PLACE}/{{id}}", reading(view)),
    web.get(f"{PLACE}/{{id}}/{{group}}", reading(thumbnails)),
)
