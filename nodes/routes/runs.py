"""The routes of the runs and of the trainer: what the page reads of them, and what it may ask of them."""

import re
from typing import Any

from aiohttp import web

from ...training import control
from ...training.job import RunFolder
from ...training.looks import look_picture
from .. import run_view
from .guard import Ask, Picture, Refused, action, reading

PLACE = "/stepwise_grpo"
PICTURES = ("look", "best")


def overview(ask: Ask) -> dict[str, Any]:
    return run_view.overview(ask.output)


def detail(ask: Ask) -> dict[str, Any]:
    return run_view.detail(ask.run(), number(ask.query.get("after", "0"), "after"))


def summary(ask: Ask) -> dict[str, Any]:
    return {"summary": run_view.summary(ask.run())}


def picture(ask: Ask) -> Picture:
    run, version, kind = ask.run(), number(ask.parts["version"], "the version"), ask.query.get("kind", "look")
    if kind not in PICTURES:
        raise Refused(400, "kind must be look or best")
    found = Picture(look_picture(run, version), "image/jpeg") if kind == "look" else Picture(run.picture_file(version), "image/png")
    if not found.path.is_file():
        raise Refused(404, f"the run {run.name!r} has no picture of version {version} of this kind")
    return found


def number(text: str, what: str) -> int:
    """A number in an address."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise Refused(400, f"{what} must be a whole number, 0 or more")
    return int(text)


def pause(ask: Ask) -> dict[str, Any]:
    check_fields(ask)
    run = of_graph(ask.run(), "paused")
    control.pause(run, True)
    return after_action(run)


def resume(ask: Ask) -> dict[str, Any]:
    check_fields(ask)
    run = ask.run()
    control.pause(run, False)
    return after_action(run)


def go_back(ask: Ask) -> dict[str, Any]:
    check_fields(ask, "version")
    run, version = ask.run(), version_in(ask)
    if version is not None:
        if control.is_headless_now(run):
            raise Refused(409, f"the run {run.name!r} is being trained headless: stop that process first, then go back")
        if reason := control.why_not_back(run, version):
            raise Refused(409, reason)
    control.ask_to_go_back(run, version)
    return after_action(run)


def notes(ask: Ask) -> dict[str, Any]:
    check_fields(ask, "version", "text")
    run, version, text = ask.run(), version_in(ask), ask.body.get("text")
    if not isinstance(text, str) or len(text) > control.NOTE_LETTERS or not is_writable(text):
        raise Refused(400, f"text must be a text of at most {control.NOTE_LETTERS} letters")
    newest = (run.latest() or {}).get("version", 0)
    if version is not None and version > newest:
        raise Refused(404, f"the run {run.name!r} has no version {version}; the newest is {newest}")
    control.write_note(run, version, text)
    return after_action(run)


def stop_trainer(ask: Ask) -> dict[str, Any]:
    check_fields(ask)
    if not RunFolder(ask.output, "any").trainer_is_alive():
        raise Refused(409, "no trainer is running here, so there is nothing to stop")
    control.ask_to_stop(ask.output)
    return {"trainer": run_view.trainer(ask.output)}


def check_fields(ask: Ask, *known: str) -> None:
    """A mistyped field must not pass for one that was left out."""
    if odd := [key for key in ask.body if key not in known]:
        raise Refused(400, f"this action has no field {odd[0][:40]!r}; it has {', '.join(known) or 'none'}")


def version_in(ask: Ask) -> int | None:
    """The version of an action; None where it is null."""
    version = ask.body.get("version", 0.5)  # left out is not null
    if version is None or run_view.is_count(version):
        return version
    raise Refused(400, "version must be a whole number, 0 or more, or null")


def of_graph(run: RunFolder, done: str) -> RunFolder:
    """The run, unless it is one that no graph feeds."""
    if run_view.summary(run)["kind"] == "headless":
        raise Refused(409, f"a headless run cannot be {done} from here: press Ctrl-C where it runs, and start it again to go on")
    return run


def is_writable(text: str) -> bool:
    """Whether the text can be written to a file: JSON may hold halves of letters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def after_action(run: RunFolder) -> dict[str, Any]:
    return {"summary": run_view.summary(run), "notes": run_view.tried({}, control.notes, run)}


ROUTES = (
    web.get(f"{PLACE}/runs", reading(overview)),
    web.get(f"{PLACE}/runs/{{run}}", reading(detail)),
    web.get(f"{PLACE}/runs/{{run}}/summary", reading(summary)),
    web.get(f"{PLACE}/runs/{{run}}/pictures/{{version}}", reading(picture)),
    web.post(f"{PLACE}/runs/{{run}}/pause", action(pause)),
    web.post(f"{PLACE}/runs/{{run}}/resume", action(resume)),
    web.post(f"{PLACE}/runs/{{run}}/go_back", action(go_back)),
    web.post(f"{PLACE}/runs/{{run}}/notes", action(notes)),
    web.post(f"{PLACE}/trainer/stop", action(stop_trainer)),
)
