"""The sign that a trainer lives: trainer.json beside the runs, renewed every two seconds. Standard library only."""

import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

from .job import write_json

BEAT = 2.0  # seconds between heartbeats


class Heartbeat:
    """trainer.json: host, pid and the time, every two seconds, also during a long update; "stopped" on a clean end."""

    def __init__(self, folder: Path) -> None:
        self._path, self._end = folder / "trainer.json", threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> None:
        self._write()
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()
        self._write(stopped=True)

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            self._write()

    def _write(self, **more: Any) -> None:
        try:
            write_json(self._path, {"host": platform.uname().node, "pid": os.getpid(), "at": time.time(), **more})
        except OSError:
            pass  # a full disk is reported by the loop
