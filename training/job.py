"""A run on disk: the only channel between graph and trainer. Standard library only.

Nodes write job.json, inbox/ and looks/; the page's routes write paused, requests/ and notes.json; the trainer writes everything else. Every file is written whole, then renamed.
"""

# <output>/stepwise_grpo/<run>/   job.json  latest.json  events.jsonl  status.json  inbox/  rejected/  dropped/  state/  looks/
# <output>/loras/stepwise_grpo/<run>/v000012.safetensors  v000012.png

import hashlib
import json
import os
import re
import threading
import time
import unicodedata
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from .config import Job

FOLDER = "stepwise_grpo"
_NAME = r"[\w][\w .+-]{0,62}[\w+-]|[\w]"
_RESERVED = {"con", "prn", "aux", "nul", *(f"com{i}" for i in range(1, 10)), *(f"lpt{i}" for i in range(1, 10))}  # on Windows
WIDGETS = {"pattern": "target_pattern", "start": "start_from (in Live LoRA)"}  # settings of a job that have another name in the graph
_OURS = {"trainer.json", "trainer.lock", "comfyui.json", "stop"}  # files that lie beside the runs


def check_run_name(name: str) -> str:
    """The name if it is a plain file name of at most 64 letters; otherwise a ``ValueError`` that says what is allowed."""
    name = unicodedata.normalize("NFC", name)
    device = unicodedata.normalize("NFKC", name).lower().split(".")[0].strip()
    if not re.fullmatch(_NAME, name) or ".." in name or device in _RESERVED or name.lower() in _OURS or len(name.encode("utf-8")) > 200:
        shown = name if len(name) <= 40 else name[:40] + "..."
        raise ValueError(f"run name {shown!r} is not usable: take 1 to 64 letters, digits, spaces, '-', '_', '+' or '.', no slashes and no '..'")
    return name


def retry_sharing(action: Any, seconds: float = 2.0) -> Any:
    """Run ``action``; on Windows a reader may hold the file for a moment, so a refusal is tried again for 2 s."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except PermissionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, flush it to the disk, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{digest_of(path.name.encode())[:8]}.{os.getpid()}.{threading.get_ident() % 10**6}.part")  # short: Windows counts a path's letters
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        retry_sharing(lambda: os.replace(part, path))
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole, then rename."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8"))


def read_json(path: Path) -> Any:
    """The JSON value of a file, or None where there is none."""
    try:
        return json.loads(retry_sharing(path.read_bytes))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); put it back, or choose another run name") from None


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class RunFolder:
    """Paths and small files of one run below an output folder. Holds no state of its own."""

    def __init__(self, output: Path, name: str) -> None:
        self.name = check_run_name(name)
        self.output = Path(output)
        self.path = self.output / FOLDER / self.name
        self.inbox = self.path / "inbox"
        self.rejected = self.path / "rejected"
        self.dropped = self.path / "dropped"
        self.state = self.path / "state"
        self.looks = self.path / "looks"
        self.loras = self.output / "loras" / FOLDER / self.name

    # what the graph writes

    def agree_on_job(self, job: dict[str, Any]) -> None:
        """Write job.json the first time; later a different value is an error that names the widget.

        Until something is queued or made, nothing depends on it, and it may still change.
        """
        known = read_json(self.path / "job.json")
        if known is None or (self.latest() is None and not self.waiting()):
            write_json(self.path / "job.json", job)
            return
        known, job = ({**defaults_of_job(), **values} for values in (known, job))
        for key in sorted({*known, *job}):
            if known.get(key) != job.get(key):
                if key == "base":
                    raise ValueError(f"run {self.name!r} was started with {_other_base(known['base'], job['base'])}. Put it back, or choose another run name for a new run.")
                widget = WIDGETS.get(key, key)
                if key == "start" and (known[key] or {}).get("name") == (job[key] or {}).get("name"):
                    raise ValueError(f"run {self.name!r} was started with {widget} = {known[key]['name']}, and that file has changed. Put it back, or choose another run name for a new run.")
                shown = lambda value: value["name"] if isinstance(value, dict) else "none" if value is None else repr(value)
                raise ValueError(
                    f"run {self.name!r} was started with {widget} = {shown(known.get(key))}; this graph says {shown(job.get(key))}. "
                    f"Set {widget} back, or choose another run name for a new run."
                )

    def queue(self, experience: bytes) -> str:
        """Put an experience into the inbox; returns its id, the sha256 of its content. Order of arrival is kept."""
        id = digest_of(experience)
        if not list(self.inbox.glob(f"*-{id}.safetensors")):
            write_whole(self.inbox / f"{time.time_ns():020d}-{id}.safetensors", experience)
        return id

    # what everyone reads

    def waiting(self) -> list[Path]:
        """Queued experience files, oldest first."""
        return sorted(p for p in self.inbox.glob("*.safetensors") if p.is_file() and not p.name.startswith("."))  # "._name": what macOS leaves on shared disks

    def job(self) -> dict[str, Any] | None:
        return read_json(self.path / "job.json")

    def latest(self) -> dict[str, Any] | None:
        """{version, file, digest, experience} of the newest version, or None before the first."""
        return read_json(self.path / "latest.json")

    def version_file(self, version: int, ema: bool = False) -> Path:
        return self.loras / f"v{version:06d}{'_ema' if ema else ''}.safetensors"

    def picture_file(self, version: int) -> Path:
        """Beside the version and of the same name, as LoRA managers look for it."""
        return self.version_file(version).with_suffix(".png")

    def look_file(self, version: int) -> Path:
        """What the held-out pictures of a version showed; their contact picture lies beside it as .jpg."""
        return self.looks / f"v{version:06d}.json"

    def lora_name(self, version: int) -> str:
        """The name under which ComfyUI's stock loaders list the file, with this system's separator as they do."""
        return str(Path(FOLDER) / self.name / self.version_file(version).name)

    def events(self) -> list[dict[str, Any]]:
        """Committed events in order: of several with one version the last counts, a line cut by a crash is skipped."""
        newest = (self.latest() or {}).get("version", 0)
        by_version: dict[int, dict[str, Any]] = {}
        try:
            lines = (self.path / "events.jsonl").read_bytes().splitlines()  # bytes: a crash may cut a letter in two
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                event = json.loads(line)
                by_version[int(event["version"])] = event
            except (ValueError, KeyError, TypeError, OverflowError):  # an int of Infinity overflows
                continue
        return [by_version[version] for version in sorted(by_version) if version <= newest]

    def fate(self, id: str) -> dict[str, Any] | None:
        """What became of an experience: its event, or {"rejected" or "dropped": reason}, or None while it waits."""
        for event in reversed(self.events()):
            if event.get("experience") == id:
                return event
        if list(self.inbox.glob(f"*-{id}.safetensors")):
            return None  # queued again after it was put aside
        for kind in ("rejected", "dropped"):
            for note in (self.path / kind).glob(f"*{id}*.json"):
                return {kind: (read_json(note) or {}).get("reason", "no reason given")}
        return None

    # what the trainer writes

    def append_event(self, event: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "events.jsonl"
        # A crash may have cut the last line; a fresh line must not be glued to it.
        torn = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
        with open(path, "ab") as file:
            file.write((b"\n" if torn else b"") + json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def put_aside(self, path: Path, kind: str, reason: str) -> None:
        """Move an experience to rejected/ or dropped/ with the reason beside it. The reason is written first."""
        folder = self.path / kind
        write_json(folder / f"{path.stem}.json", {"reason": reason, "at": time.time()})
        retry_sharing(lambda: os.replace(path, folder / path.name))

    def write_latest(self, latest: dict[str, Any]) -> None:
        write_json(self.path / "latest.json", latest)

    def write_status(self, **status: Any) -> None:
        write_json(self.path / "status.json", {**status, "at": time.time()})

    def trainer_is_alive(self, within: float = 15.0) -> bool:
        """Whether a trainer serves this output folder."""
        return is_alive(self.output / FOLDER, within)


def is_alive(folder: Path, within: float = 15.0) -> bool:
    """Whether a trainer wrote its heartbeat into ``folder`` during the last ``within`` seconds."""
    status = read_json(folder / "trainer.json")
    return status is not None and not status.get("stopped") and time.time() - status.get("at", 0) < within


def _other_base(known: dict[str, Any], new: dict[str, Any]) -> str:
    """What the base model of a run was and what differs now: the LoRAs on it, its precision, or the model itself."""
    optional = ("loras", "weight_dtype")
    if any(known.get(key) != new.get(key) for key in {*known, *new} - {*optional}):
        return f"the base model {known.get('name', 'the demo model')!r}; this graph has another one, or the file has changed"
    if known.get("weight_dtype") != new.get("weight_dtype"):
        return f"weight_dtype = {known.get('weight_dtype', 'default')}; this graph says {new.get('weight_dtype', 'default')}"
    before, now = (", ".join(f"{lora['name']!r} at {lora['strength']:g}" for lora in base.get("loras", ())) or "none" for base in (known, new))
    return f"other LoRAs on the base model: {before}; this graph has {now if now != before else 'the same, but a file has changed'}"


def defaults_of_job() -> dict[str, Any]:
    """What a job.json means that was written before a setting existed."""
    return {field.name: field.default for field in fields(Job) if field.default is not MISSING}


def all_runs(output: Path) -> list[RunFolder]:
    """Every run of an output folder, by name."""
    folder = Path(output) / FOLDER
    runs = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir():
            try:
                runs.append(RunFolder(output, path.name))
            except ValueError:
                continue
    return runs
