"""What the browser tests share: a page, and the errors it reports. What they do on a page is in tools/page.py."""

import re
from collections.abc import Iterator

import pytest

from stepwise_grpo.tools.page import browser_page

# What the stock page says on a fresh ComfyUI without internet, with this pack or without it:
STOCK = (
    r"Failed to load resource: .* 404 .*/(api/)?(user\.css|userdata[/?])",  # files of a user who has saved none yet
    r"/favicon\.ico",  # the browser asks for it by itself
    r"api\.comfy\.org",  # the registry's list of known nodes; the internet is closed to a test
    r"missingModelMetadata",  # newer pages ask the internet about the models of the workflow they open with
    r"ComfyApp graph accessed before initialization",  # frontend 1.49, said to itself
    r"Cannot read properties of undefined \(reading 'id'\).*onChange",  # frontend 1.32.9: a setting is read before the canvas is there
)


@pytest.fixture
def page(browser_path) -> Iterator:
    with browser_page(browser_path) as page:
        yield page


@pytest.fixture
def complaints(page) -> list[str]:
    """Errors on the page that the stock page does not have by itself."""
    found: list[str] = []

    def note(text: str) -> None:
        if not any(re.search(pattern, text, re.DOTALL) for pattern in STOCK):
            found.append(text)

    page.on("pageerror", lambda error: note(f"{error} {error.stack}"))
    page.on("console", lambda message: note(f"{message.text} {message.location.get('url', '')}") if message.type == "error" else None)
    return found
