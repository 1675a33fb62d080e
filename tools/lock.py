"""One set-up at a time: a lock that ends with the processes that hold it, however they end."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .progress import Progress

_held: list[int] = []

if os.name == "nt":
    import msvcrt

    def _try(file: IO[bytes]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def to_share() -> tuple[int, ...]:
    """File descriptors for a child that must keep the lock when this process is killed: pip would go on writing alone."""
    return tuple(_held) if os.name != "nt" else ()


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for another process that holds it."""
    with path.open("ab") as file, contextlib.ExitStack() as waiting:
        told = False
        while True:
            try:
                _try(file)
                break
            except OSError:
                if not told:
                    told = True
                    waiting.enter_context(Progress("waiting for another dev.py that is setting up"))
                time.sleep(0.2)
        waiting.close()
        _held.append(file.fileno())
        try:
            yield
        finally:
            _held.remove(file.fileno())
