"""A line that says what is going on, for work that takes longer than two seconds."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

QUIET_S = 2.0
REDRAW_S = 0.5
LOG_EVERY_S = 15.0


class Progress:
    """``with Progress("making .venv") as p: p.note("torch")``: elapsed seconds and the last note, redrawn in place.

    Where the output is no terminal it becomes a line every 15 s, so that a log stays readable.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._note: Callable[[], str] = lambda: ""
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def note(self, text: str | Callable[[], str]) -> None:
        """What is being worked on: a text, or a function asked at every redraw."""
        self._note = text if callable(text) else lambda: text

    def __enter__(self) -> "Progress":
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        seconds = time.monotonic() - self._began
        if seconds >= QUIET_S:
            self._write(f"{self.what}: {'done in' if kind is None else 'stopped after'} {seconds:.0f} s", last=True)

    def _draw(self) -> None:
        pause = QUIET_S
        while not self._stop.wait(pause):
            pause = REDRAW_S if self._terminal else LOG_EVERY_S
            self._write(f"{self.what} ({time.monotonic() - self._began:.0f} s) {self._note()}", last=False)

    def _write(self, line: str, last: bool) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            line = "\r" + line[:width].ljust(width) + ("\n" if last else "")
        else:
            line += "\n"
        sys.stderr.write(line)
        sys.stderr.flush()
