"""``COMFYUI_PATH``: somebody's own ComfyUI instead of the one in ``.comfyui``. Nothing but this pack is installed there.

Its Python is the first of: ``COMFYUI_PYTHON``; a virtual environment named ``.venv`` or ``venv`` in its folder or beside it;
the ``python_embeded`` of the Windows portable version, in its folder or beside it; the Python that runs dev.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .environment import name_of, python_in
from .errors import SetupError

ALWAYS_NEEDED = ("torch", "torchvision", "aiohttp", "safetensors")


def find(text: str) -> Path:
    """The ComfyUI folder that ``COMFYUI_PATH`` means; quotes and the portable version's outer folder are understood."""
    given = Path(text.strip().strip("\"'")).expanduser().resolve()
    for folder in (given, given / "ComfyUI"):
        if (folder / "main.py").is_file() and (folder / "comfy").is_dir():
            return folder
    raise SetupError(f"COMFYUI_PATH={text} is no ComfyUI: there is no main.py beside a folder comfy in {given}. Set it to the folder that holds main.py.")


def choose_python(comfyui: Path, environ: Mapping[str, str] = os.environ, windows: bool = os.name == "nt") -> Path:
    """The Python to go with ``comfyui``; see the top of this file for the order."""
    named = environ.get("COMFYUI_PYTHON", "").strip().strip("\"'")
    if named:
        python = Path(named).expanduser()
        if not python.is_file():
            raise SetupError(f"COMFYUI_PYTHON={named} is not a file. Set it to the Python executable that runs this ComfyUI.")
        return python.absolute()  # not resolved: a virtual environment's Python is a link that must keep its place
    for folder in (comfyui, comfyui.parent):
        for python in (python_in(folder / ".venv", windows), python_in(folder / "venv", windows), folder / "python_embeded" / "python.exe"):
            if python.is_file():
                return python
    return Path(sys.executable)


def check_packages(python: Path, requirements: Sequence[str]) -> None:
    """Name what ``python`` lacks. Installing it is the owner's decision."""
    names = [*ALWAYS_NEEDED, *map(name_of, requirements)]
    missing = missing_packages(python, names)
    if missing:
        install = " ".join(f'"{requirement}"' for requirement in [*ALWAYS_NEEDED, *requirements] if name_of(requirement) in missing)
        raise SetupError(
            f"{python} lacks {', '.join(missing)}. dev.py installs no packages into a ComfyUI of your own. Install them:\n"
            f'    "{python}" -m pip install {install}\nor set COMFYUI_PYTHON to the Python that runs this ComfyUI.'
        )


def missing_packages(python: Path, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that are not installed beside ``python``."""
    script = (
        "import json, sys\nfrom importlib import metadata\nmissing = []\nfor name in json.loads(sys.argv[1]):\n"
        "    try: metadata.version(name)\n    except metadata.PackageNotFoundError: missing.append(name)\nprint(json.dumps(missing))"
    )
    asked = subprocess.run([str(python), "-c", script, json.dumps(list(names))], capture_output=True, encoding="utf-8", errors="replace")
    if asked.returncode:
        raise SetupError(f"{python} does not run:\n{asked.stderr.strip()}\nSet COMFYUI_PYTHON to the Python that runs this ComfyUI.")
    return json.loads(asked.stdout)
