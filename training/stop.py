"""Ctrl-C as a question that a loop asks between two pieces of work. Standard library only."""

import logging
import signal


class Stop:
    """True once Ctrl-C or a termination was asked for: the running update is finished first, a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.asked = False
        for name, number in signal.Signals.__members__.items():
            if name in ("SIGINT", "SIGTERM", "SIGBREAK"):
                signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise SystemExit(1)
        self.asked = True
        logging.info("stopping after the running update (Ctrl-C again to stop at once; nothing is lost)")

    def __call__(self) -> bool:
        return self.asked
