"""Which files make up the published pack, and putting them where a ComfyUI looks for custom nodes."""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from .errors import SetupError

NAME = "stepwise-flow-grpo"  # the registry's name; the folder's name after an installation
MANIFEST = ".installed-by-dev.json"


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file, in the part of git's language this project uses: no ``!``, no ``**``, no ``[``."""

    text: str
    anchored: bool
    folders_only: bool

    @classmethod
    def parse(cls, line: str) -> "Pattern":
        if line.startswith("!") or "**" in line or "[" in line or "?" in line:
            raise ValueError(f"the ignore pattern {line!r} uses more than names, folders and '*'; write it without")
        text = line.rstrip("/")
        return cls(text.lstrip("/"), "/" in text, line.endswith("/"))

    def matches(self, path: str, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        if not self.anchored:
            return fnmatchcase(path.rsplit("/", 1)[-1], self.text)
        return path.count("/") == self.text.count("/") and fnmatchcase(path, self.text)


def ignore_patterns(*files: Path) -> list[Pattern]:
    lines = [line.strip() for file in files if file.is_file() for line in file.read_text("utf-8").splitlines()]
    return [Pattern.parse(line) for line in lines if line and not line.startswith("#")]


def archive_files(root: Path) -> list[str]:
    """The files the registry's archive holds, as paths with '/' below ``root``: all but what .gitignore and .comfyignore name."""
    patterns = ignore_patterns(root / ".gitignore", root / ".comfyignore")

    def kept(folder: str, names: Iterable[str], are_folders: bool) -> list[str]:
        paths = [os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/") for name in names]
        return [path for path in paths if path != ".git" and not any(p.matches(path, are_folders) for p in patterns)]

    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [path.rsplit("/", 1)[-1] for path in kept(folder, folders, True)]
        found += kept(folder, files, False)
    return sorted(found)


def install(root: Path, comfyui: Path) -> Path:
    """Copy the pack into ``comfyui``'s custom nodes as its manager would, and return the folder it is loaded from.

    A pack that already lies there is used in place. Only files that changed are written; files of an earlier copy that
    are no longer part of the pack are removed, so that no module of an old version is left to import.
    """
    custom_nodes = comfyui / "custom_nodes"
    custom_nodes.mkdir(exist_ok=True)
    target = custom_nodes / NAME
    for folder in custom_nodes.iterdir():
        if folder.resolve() == root.resolve():
            return folder
        if folder != target and _is_this_pack(folder):
            raise SetupError(_second_copy(folder))
    before = _manifest(target)
    if before is None:
        raise SetupError(_second_copy(target))
    files = archive_files(root)
    for name in {*before} - {*files}:
        (target / name).unlink(missing_ok=True)
    target.mkdir(exist_ok=True)
    (target / MANIFEST).write_text(json.dumps(sorted({*before, *files})), encoding="utf-8")
    for name in files:
        _copy(root / name, target / name)
    (target / MANIFEST).write_text(json.dumps(files), encoding="utf-8")
    return target


def _copy(source: Path, target: Path) -> None:
    """Copy what differs in size or time, whole-file-then-rename: a running ComfyUI reads the old file or the new one."""
    new = source.stat()
    if target.is_file() and (target.stat().st_size, target.stat().st_mtime_ns) == (new.st_size, new.st_mtime_ns):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    shutil.copy2(source, part)
    os.replace(part, target)


def _manifest(target: Path) -> list[str] | None:
    """The files a former ``install`` put there; nothing when the folder is new; None when it was made by someone else."""
    try:
        return json.loads((target / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        return None if target.is_dir() and any(target.iterdir()) else []
    except ValueError:
        return []


def _is_this_pack(folder: Path) -> bool:
    try:
        return f'name = "{NAME}"' in (folder / "pyproject.toml").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return False


def _second_copy(folder: Path) -> str:
    return (
        f"{folder} already holds this pack, and dev.py did not put it there. Move it away, or run that folder's own dev.py; "
        "two copies of one pack would hide each other's nodes."
    )
