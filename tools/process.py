"""Child processes that end when we end: started in a group of their own, stopped with everything they started."""

import atexit
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

GRACE_S = 8.0
WINDOWS = os.name == "nt"
_running: list["Child"] = []  # what stop_all ends when this process ends for any reason it can notice


class Child:
    """A running process whose output goes to a log file."""

    def __init__(self, command: Sequence[str | Path], log: Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if WINDOWS else {"start_new_session": True}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", **(environ or {})},
                **flags,
            )
        self.pid = self._process.pid
        _running.append(self)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within ``seconds``."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        try:
            return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def ask_to_stop(self) -> None:
        """What Ctrl-C does in a terminal."""
        if self.exit_code is None:
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.CTRL_BREAK_EVENT if WINDOWS else signal.SIGINT)

    def stop(self, grace: float = GRACE_S) -> None:
        """Ask it to end; after ``grace`` seconds end it and what it started."""
        self.ask_to_stop()
        self.wait(grace)
        self.kill()

    def kill(self) -> None:
        """End it and everything it started, at once."""
        if self not in _running:
            return
        _running.remove(self)
        if not WINDOWS:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        elif self.exit_code is None:
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(self.pid)], capture_output=True)
        self._process.wait()


@atexit.register
def stop_all() -> None:
    """End every child that is still running; they share one time of grace."""
    children, deadline = list(_running), time.monotonic() + GRACE_S
    for child in children:
        child.ask_to_stop()
    for child in children:
        child.wait(max(deadline - time.monotonic(), 0))
        child.kill()


def interrupt_on_signals() -> None:
    """Turn the first Ctrl-C, request to terminate or closed terminal into KeyboardInterrupt; later ones must not disturb the stopping."""
    signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for known in signals:
            signal.signal(known, signal.SIG_IGN)
        raise KeyboardInterrupt

    for known in signals:
        signal.signal(known, interrupt)
