"""The one script for newcomers. Needs nothing but Python 3.10 or newer.

    python dev.py demo      a real ComfyUI and the trainer, one reinforcement run on the small built-in model
    python dev.py compare   stepwise against uniform credit on the same model
    python dev.py test      all tests
    python dev.py bench     what training and the page cost: bench memory, update, sizes, gpu, start, page
    python dev.py vectors   check a file of transition vectors
    python dev.py model     make the built-in model anew
    python dev.py models    write the tables of recommended settings anew
    python dev.py locales   write the English texts of the nodes anew, which translations follow
    python dev.py workflows write the workflows of the template browser anew
    python dev.py pictures  make their thumbnails and the pictures of the help pages anew
    python dev.py setup     make or repair .venv and .comfyui; the other commands do it by themselves

COMFYUI_PATH=<folder> uses a ComfyUI of your own, with COMFYUI_PYTHON or the Python found with it.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - the sentence is for whoever runs an older one
    sys.exit("dev.py needs Python 3.10 or newer; this is " + sys.version.split()[0])

from tools import browser, node
from tools.errors import SetupError
from tools.process import interrupt_on_signals
from tools.setup import Setup, prepare

ROOT = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("demo", "compare", "bench", "test", "vectors", "model", "models", "locales", "workflows", "pictures", "setup"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="options of the command; COMMAND --help lists them")
    asked = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a console that lacks a letter of a path prints '?' instead of failing
    interrupt_on_signals()
    try:
        return COMMANDS.get(asked.command, forward)(asked.command, asked.arguments)
    except SetupError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next run goes on from here", file=sys.stderr)
        return 130


def forward(command: str, arguments: list[str]) -> int:
    """The other commands: tools/<command>.py inside the virtual environment; it parses its own options."""
    drives_browser = command == "pictures" or (command == "bench" and arguments[:1] == ["page"])
    place = prepare(ROOT, dev=drives_browser)
    if drives_browser:
        browser.ensure()
    return run(place, ROOT / "tools" / "run.py", command, *arguments)


def model(command: str, arguments: list[str]) -> int:
    return run(prepare(ROOT), ROOT / "demo" / "recipe", *arguments)


def test(command: str, arguments: list[str]) -> int:
    wants_browser = "--no-browser" not in arguments
    place = prepare(ROOT, dev=True)
    node.ensure(ROOT, place.python)
    if wants_browser:
        browser.ensure()
    left = [argument for argument in arguments if argument != "--no-browser"]
    os.chdir(ROOT)  # where pytest finds its configuration
    return run(place, "-m", "pytest", *([] if wants_browser else ["-m", "not browser"]), *left)


def setup(command: str, arguments: list[str]) -> int:
    place = prepare(ROOT, repair=True)
    print(f"ComfyUI  {place.comfyui}\nPython   {place.python}\npack     {place.pack}\nready in {place.seconds:.0f} s")
    return 0


COMMANDS = {"model": model, "test": test, "setup": setup}


def run(place: Setup, *command: str | Path) -> int:
    """Run the virtual environment's Python; Ctrl-C reaches it too, and we wait while it ends what it started."""
    environ = {**os.environ, **place.environment(), "PYTHONUTF8": "1"}
    child = subprocess.Popen([str(part) for part in (place.python, *command)], env=environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT))
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    sys.exit(main())
