"""The pack's addresses on ComfyUI's server, all below /stepwise_grpo. Only here may aiohttp be imported."""

import logging
from typing import Any

from . import credit, runs, watch


def register(server: Any) -> None:
    """Add the routes to ComfyUI's ``PromptServer`` and watch its runs; None, as in a test without one, is passed over."""
    if server is None:
        return
    tables = (runs.ROUTES, credit.ROUTES)  # one table for each file of routes
    if any(getattr(route, "path", "").startswith(f"{runs.PLACE}/") for route in server.routes):
        logging.warning("Stepwise GRPO is in custom_nodes twice: remove one of its folders")
        return  # the same address twice would keep ComfyUI from starting
    for table in tables:
        for route in table:
            server.routes.route(route.method, route.path)(route.handler)  # no options: ComfyUI cannot repeat them below /api
    watch.start(server)
