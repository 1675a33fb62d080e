"""Tells every open page which runs changed on disk, within half a second. While no page is open it reads nothing."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import folder_paths

from ...training.job import FOLDER, RunFolder, all_runs
from .. import run_view

EVERY = 0.3  # seconds between two looks
FRESH = 3.0  # seconds: times on disks are coarse, so what changed just now is looked at again
MESSAGE = "stepwise_grpo.runs"
FOLDERS = ("", "inbox", "requests", "looks")  # files are renamed into them, which changes their time; rejected and dropped ones are told in status.json
FILES = ("job.json", "latest.json", "events.jsonl", "status.json", "check.json", "notes.json", "paused")
log = logging.getLogger("stepwise_grpo")


class Watch:
    """What the pages were told last. ``look`` is called again and again, in a thread."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._output = Path()
        self._runs: dict[str, RunFolder] = {}
        self._folders: dict[str, tuple] = {}
        self._told: dict[str, tuple] = {}
        self._trainer: tuple = ()

    def look(self, output: Path) -> dict[str, Any] | None:
        """The message for the pages, or None where nothing changed. The first one tells everything."""
        now, trainer = time.time(), run_view.trainer(output)
        state = tuple(trainer[key] for key in ("alive", "host", "stopping"))  # the heartbeat alone is no news
        there = self._there(output)
        gone = [name for name in self._told if name not in there]
        for name in gone:
            del self._told[name]
            self._folders.pop(name, None)
        changed = [name for name, run in there.items() if self._changed(run, now)]
        if state == self._trainer and not changed and not gone:
            return None
        self._trainer = state
        return {"trainer": trainer, "now": now, "runs": [self._told[name][1] for name in changed], "gone": gone}

    def _there(self, output: Path) -> dict[str, RunFolder]:
        """The folders beside each other. Made anew only where their names changed: it is asked three times a second."""
        names = sorted(run_view.tried([], os.listdir, output / FOLDER))
        if names != self._names or output != self._output:
            self._names, self._output = names, output
            self._runs = {run.name: run for run in all_runs(output)}
        return self._runs

    def _changed(self, run: RunFolder, now: float) -> bool:
        """Whether the run differs from what was told. Cheap where its folders are as they were."""
        folders = tuple(stamp(os.path.join(run.path, name))[0] for name in FOLDERS)
        told = self._told.get(run.name)
        busy = told is not None and told[1]["phase"] in run_view.BUSY  # it may die without changing a file
        if folders == self._folders.get(run.name) and now - max(folders) > FRESH and not busy:
            return False
        self._folders[run.name] = folders
        if not run_view.tried(True, run_view.is_run, run):
            return False
        # The time of the run's own folder does not count here: the heartbeat of a headless run changes it.
        now_told = ((folders[1:], tuple(stamp(os.path.join(run.path, name)) for name in FILES)), run_view.summary(run))
        self._told[run.name] = now_told
        return now_told != told


def stamp(path: str) -> tuple[float, int]:
    """Time and size of a file or folder; zeros where there is none."""
    try:
        found = os.stat(path)
        return found.st_mtime, found.st_size
    except (OSError, ValueError):
        return 0.0, 0


async def keep_watching(server: Any) -> None:
    """Look and tell, for as long as the server runs; an error is told once and watching goes on."""
    watch, said = Watch(), ""
    while True:
        await asyncio.sleep(EVERY)
        if not server.sockets:
            continue
        try:
            message = await asyncio.to_thread(watch.look, Path(folder_paths.get_output_directory()))
            if message is not None:
                server.send_sync(MESSAGE, message)
        except Exception as error:
            if str(error) != said:
                log.warning("Stepwise GRPO cannot look at its runs: %s", error)
            said = str(error)


def start(server: Any) -> None:
    """Begin to watch when the server starts to serve."""

    async def watching(app: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(keep_watching(server))
        yield
        task.cancel()

    server.app.cleanup_ctx.append(watching)
