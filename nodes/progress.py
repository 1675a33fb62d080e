"""The bar, the picture and the line of text on the running node. Every tick is also a chance to cancel."""

import html
import logging
import time
from typing import Any

from PIL import Image

from . import convert

log = logging.getLogger("stepwise_grpo")
PREVIEW_SIZE = 768  # px, longer side of the picture on the node
SPEAK_EVERY = 1.0  # seconds
THROUGH_NETWORK = "pictures through the network"  # a picture counts once a step
THROUGH_BOTH = "pictures through network and VAE"


class Progress:
    """Shows on the node ``node`` (a V3 node class in execution) how many of ``total`` things, ``what`` in words, are done."""

    def __init__(self, node: Any, total: int, what: str = "") -> None:
        self._id = node.hidden.unique_id if node.hidden is not None else None
        self._bar = convert.progress_bar(total)
        self._done, self._total, self._what, self._started, self._spoke = 0, total, what, None, 0.0

    def say(self, text: str) -> None:
        """A line of text on the node, where the page takes it for HTML. The last one stays."""
        from server import PromptServer

        server = getattr(PromptServer, "instance", None)
        if server is not None and self._id is not None:
            server.send_progress_text(html.escape(text, quote=False), self._id)

    def announce(self, text: str) -> None:
        """A line of text on the node and in ComfyUI's log."""
        log.info(text)
        self.say(text)

    def tick(self, amount: int) -> None:
        """``amount`` more is done. Says how long the rest will take once the first call, which may load the model, is over."""
        now = time.monotonic()
        self._bar.update(amount)
        self._done += amount
        if self._started is None:
            self._started = (now, self._done)
            return
        since, already = self._started
        left = (self._total - self._done) * (now - since) / max(self._done - already, 1)
        if now - self._spoke > SPEAK_EVERY:
            self._spoke = now
            self.say(f"{self._done} of {self._total} {self._what}, about {left:.0f} s left")

    def show(self, picture: Image.Image) -> None:
        """A picture on the node, made smaller where it is too big; ComfyUI would also make it bigger."""
        self._bar.update_absolute(self._done, self._total, ("JPEG", picture, min(PREVIEW_SIZE, max(picture.size))))

    def to(self, done: int, total: int) -> None:
        """``done`` of ``total``."""
        self._done, self._total = done, total
        self._bar.update_absolute(done, total)

    def check(self) -> None:
        """Stop here if the artist pressed cancel."""
        convert.stop_if_cancelled()
