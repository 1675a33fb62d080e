"""The runs of an output folder as the page shows them: plain data for JSON, read from disk. A damaged run says what is wrong with it."""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..training import control
from ..training.job import FOLDER, RunFolder, all_runs, read_json
from ..training.looks import read_looks
from .handover import command

RUNS = 200  # at most, the most lately active ones
EVENTS = 1000  # of an answer; looks too
LETTERS = 1000  # of a message
DEPTH = 20  # of nested JSON; nothing of ours comes near
TAIL = 1 << 16  # bytes: the newest reward stands among the last events
DAMAGE = (ValueError, OSError, RecursionError, TypeError, KeyError, AttributeError, OverflowError)  # whatever odd JSON leads to
SIGNS = ("job.json", "latest.json", "events.jsonl", "status.json", "inbox", "looks")  # one of them makes a folder a run
BUSY = ("loading", "training")
_LOOK = r"v(\d{6,9})\.json"


def trainer(output: Path) -> dict[str, Any]:
    """The trainer process: {"alive", "host", "at" (s since 1970), "stopping", "command" (what starts it)}."""
    alive, found = tried(False, RunFolder(output, "any").trainer_is_alive), tried(None, read_json, Path(output) / FOLDER / "trainer.json")
    found = found if isinstance(found, dict) else {}
    host, at = found.get("host"), found.get("at")
    return {
        "alive": alive,
        "host": host if isinstance(host, str) else None,
        "at": at if is_number(at) else None,
        "stopping": alive and control.stop_is_asked(output),
        "command": command(output),
    }


def runs(output: Path) -> list[RunFolder]:
    """The folders that are runs, the most lately active first, at most ``RUNS``."""
    found = [run for run in all_runs(output) if tried(True, is_run, run)]
    return sorted(found, key=lambda run: (-activity(run), run.name))[:RUNS]


def is_run(run: RunFolder) -> bool:
    """Whether the folder is there and a run."""
    return any((run.path / sign).exists() for sign in SIGNS)


def activity(run: RunFolder) -> float:
    """When something last happened to the run, seconds since 1970; 0 where nothing tells."""
    return max(tried(0.0, changed, run.path / name) for name in ("job.json", "latest.json", "status.json", "inbox", "looks"))


def changed(path: Path) -> float:
    return path.stat().st_mtime


def overview(output: Path) -> dict[str, Any]:
    """The trainer and a summary of every run."""
    return {"trainer": trainer(output), "now": time.time(), "runs": [summary(run) for run in runs(output)]}


def summary(run: RunFolder) -> dict[str, Any]:
    """A run in a line. Whatever is wrong with its files stands in ``message``."""
    wrong: list[str] = []
    read = lambda name: file_of(run.path / name, wrong)
    job, latest, status = read("job.json"), read("latest.json"), read("status.json")
    if not job and not wrong and (latest or status or tried([], run.waiting)):  # else its first pictures are being made
        wrong.append("job.json is gone: put it back, or choose another run name")
    version = latest.get("version", 0)
    base = job.get("base") if isinstance(job.get("base"), dict) else {}
    kind, paused = "headless" if base.get("kind") == "diffusers" else "graph", control.is_paused(run)
    said = status.get("message")
    said = said if isinstance(said, str) and said != control.PAUSED else ""  # that it is paused the page says itself
    return {
        "name": run.name,
        "kind": kind,
        "version": version if is_count(version) else 0,
        "phase": phase(run, kind, status.get("phase"), paused),
        "message": ". ".join(wrong) or said[:LETTERS],
        "at": activity(run),
        "waiting": len(tried([], run.waiting)),
        "paused": paused,
        "going_back_to": going_back_to(run),
        "reward": newest_reward(run, version),
        "base": base_name(base),
        "rejected": len(tried([], experiences, run.rejected)),
        "dropped": len(tried([], experiences, run.dropped)),
    }


def phase(run: RunFolder, kind: str, said: Any, paused: bool) -> str:
    """What its trainer does with the run; what it said before it died no longer counts."""
    if not isinstance(said, str) or said == "paused":
        said = "waiting"
    if said in BUSY:
        alive = control.is_headless_now(run) if kind == "headless" else tried(False, run.trainer_is_alive)
        said = said if alive else "stopped"
    return "paused" if paused and said not in BUSY else said[:LETTERS]


def base_name(base: dict[str, Any]) -> str:
    """The base model for people: the name of its file, without folders."""
    name = base.get("name")
    if isinstance(name, str):
        return name.replace("\\", "/").rsplit("/", 1)[-1]
    return "Demo Model" if base.get("kind") == "demo" else ""


def going_back_to(run: RunFolder) -> int | None:
    """The version that the trainer was asked to go back to and has not yet."""
    asked = [tried(None, read_json, path) for path in tried([], control.requests, run)]
    return next((request["version"] for request in reversed(asked) if isinstance(request, dict) and is_count(request.get("version"))), None)


def newest_reward(run: RunFolder, version: Any) -> float | None:
    """The mean reward of the newest version, from the end of events.jsonl; None where it came by going back."""
    for line in reversed(tried([], tail, run.path / "events.jsonl")):
        event = tried(None, json.loads, line)
        if isinstance(event, dict) and is_count(event.get("version")) and is_count(version) and event["version"] <= version:
            return event["reward_mean"] if is_number(event.get("reward_mean")) else None
    return None


def tail(path: Path) -> list[bytes]:
    """The last lines of a file; the first of them may be cut."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        return file.read(TAIL).splitlines()


def detail(run: RunFolder, after: int = 0) -> dict[str, Any]:
    """Everything the page shows of one run; events and versions are those after ``after``, at most the newest ``EVENTS``."""
    events = [clean(event) for event in tried([], run.events) if is_count(event["version"]) and event["version"] > after][-EVENTS:]
    looks = looks_of(run)
    job, check = tried(None, run.job), tried(None, read_json, run.path / "check.json")
    return {
        "summary": summary(run),
        "job": clean(job) if isinstance(job, dict) else None,
        "events": events,
        "versions": versions(run, events, {look["version"] for look in looks}),
        "looks": looks,
        "notes": tried({}, control.notes, run),
        "findings": clean(check.get("findings")) if isinstance(check, dict) else None,
    }


def versions(run: RunFolder, events: list[dict[str, Any]], looked_at: set[int]) -> list[dict[str, Any]]:
    """What there is of each version of ``events``."""
    there = set(tried([], os.listdir, run.loras))
    return [
        {
            "version": event["version"],
            "at": event.get("at"),
            "lora_name": run.lora_name(event["version"]),
            "reward": event.get("reward_mean"),
            "picture": run.picture_file(event["version"]).name in there,
            "look": event["version"] in looked_at,
            "ema": run.version_file(event["version"], ema=True).name in there,
            "back_to": event.get("back_to"),
        }
        for event in events
    ]


def looks_of(run: RunFolder) -> list[dict[str, Any]]:
    """What is told about the held-out pictures, without their prompts, by version; at most the newest ``EVENTS``."""
    return [clean({key: value for key, value in look.items() if key != "prompts"}) for look in tried([], read_looks, run)[-EVENTS:]]


def file_of(path: Path, wrong: list[str]) -> dict[str, Any]:
    """The object in a JSON file, {} where there is none; whatever is wrong with the file is added to ``wrong``."""
    try:
        found = read_json(path)
        if found is None or isinstance(found, dict):
            return found or {}
        wrong.append(f"{path.name} does not hold what it should: put it back, or choose another run name")
    except OSError as error:
        wrong.append(f"{path.name} cannot be read ({error.strerror}): put it back, or choose another run name")
    except DAMAGE:
        wrong.append(f"{path.name} is damaged: put it back, or choose another run name")
    return {}


def tried(otherwise: Any, read: Callable[..., Any], *of: Any) -> Any:
    """What ``read(*of)`` gives, or ``otherwise`` where the files are damaged; ``summary`` tells about those."""
    try:
        return read(*of)
    except DAMAGE:
        return otherwise


def clean(value: Any, depth: int = DEPTH) -> Any:
    """A JSON value with null in place of NaN and infinities, which a browser cannot read, and of what is nested too deeply."""
    if isinstance(value, dict | list) and not depth:
        return None
    if isinstance(value, dict):
        return {key: clean(entry, depth - 1) for key, entry in value.items()}
    if isinstance(value, list):
        return [clean(entry, depth - 1) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def experiences(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors"))
