"""A real ComfyUI server on a free loopback port, and the trainer process: started, asked through the server's own API, stopped."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import SetupError
from .process import Child

# A proxy set for the internet must not be asked for 127.0.0.1.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
POLL_S = 0.05


class ComfyError(RuntimeError):
    """ComfyUI refused a prompt, failed in a node, or ended."""


class ComfyServer:
    """``with ComfyServer(comfyui, output, log) as server: server.run(prompt)``."""

    def __init__(self, comfyui: Path, output: Path, log: Path, python: Path | None = None, options: Sequence[str] = ()) -> None:
        self.comfyui, self.output, self.log = Path(comfyui), Path(output), Path(log)
        self.python = Path(python or sys.executable)
        self.options = tuple(options)
        self.url = ""
        self._child: Child | None = None

    def __enter__(self) -> "ComfyServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout: float = 300.0) -> "ComfyServer":
        """Start it and wait until it answers."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.output.mkdir(parents=True, exist_ok=True)
        self._child = Child([self.python, self.comfyui / "main.py", *self._arguments(port)], self.log, cwd=self.comfyui)
        deadline = time.monotonic() + timeout
        try:
            while not self._answers():
                self._check_running("did not start")
                if time.monotonic() > deadline:
                    raise ComfyError(f"ComfyUI did not answer within {timeout:.0f} s. Its log: {self.log}\n{self._child.tail()}")
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        return self

    def _arguments(self, port: int) -> list[str]:
        # Its own temp folder and a database in memory: a ComfyUI that already runs from the same folder is not disturbed.
        temp = self.log.resolve().with_suffix(".temp")
        arguments = ["--listen", "127.0.0.1", "--port", str(port), "--disable-auto-launch", "--disable-api-nodes"]
        arguments += ["--output-directory", str(self.output.resolve()), "--temp-directory", str(temp)]
        arguments += ["--database-url", "sqlite:///:memory:", *self.options]
        return arguments if "--cpu" in arguments or has_cuda(self.python) else [*arguments, "--cpu"]

    def stop(self) -> None:
        if self._child:
            self._child.stop()

    def get(self, path: str) -> Any:
        """The JSON answer to ``GET path``."""
        return self._ask(path, None)

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to ``POST path``, None when it is empty."""
        return self._ask(path, json.dumps(body).encode("utf-8"))

    def picture(self, image: dict[str, str]) -> bytes:
        """The file behind an entry of a node's ``images``."""
        return self._fetch("/view?" + urllib.parse.urlencode(image), None)

    def object_info(self, node: str = "") -> dict[str, Any]:
        """What the server says about its nodes, or about one."""
        return self.get(f"/object_info/{urllib.parse.quote(node)}" if node else "/object_info")

    def queue(self, prompt: dict[str, Any], **more: Any) -> str:
        """Queue a graph in API form; returns the id to wait for. A refusal names the nodes and their inputs."""
        return self.post("/prompt", {"prompt": prompt, **more})["prompt_id"]

    def wait(self, prompt_id: str, timeout: float = 600.0, tick: Callable[[], None] | None = None) -> dict[str, Any]:
        """The history entry of a finished prompt; ``tick`` is called at every poll. A failed node is a ``ComfyError``."""
        deadline = time.monotonic() + timeout
        while True:
            entry = self.get(f"/history/{prompt_id}").get(prompt_id)
            if entry:
                return _checked(entry)
            if time.monotonic() > deadline:
                self.post("/interrupt", {})
                raise ComfyError(f"the queued graph did not finish within {timeout:.0f} s. ComfyUI's log: {self.log}")
            if tick:
                tick()
            time.sleep(POLL_S)

    def run(self, prompt: dict[str, Any], timeout: float = 600.0) -> dict[str, Any]:
        """Queue, wait, and return the outputs by node id."""
        return self.wait(self.queue(prompt), timeout)["outputs"]

    def _answers(self) -> bool:
        try:
            self.get("/system_stats")
        except (OSError, ComfyError):
            return False
        return True

    def _check_running(self, how: str) -> None:
        if self._child is None or self._child.exit_code is not None:
            tail = self._child.tail() if self._child else ""
            raise ComfyError(f"ComfyUI {how}. {_remedy(tail, self.python)}Its log: {self.log}\n{tail}")

    def _ask(self, path: str, body: bytes | None) -> Any:
        answer = self._fetch(path, body)
        return json.loads(answer) if answer else None

    def _fetch(self, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"} if body else {})
        try:
            with _DIRECT.open(request, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise ComfyError(_refusal(path, error.code, error.read())) from None
        except OSError:
            if self._child and self._child.wait(0.5):
                self._check_running("ended by itself")
            raise


class Trainer(Child):
    """``python training --output DIR`` from the folder ``pack``, as a user would start it."""

    def __init__(self, pack: Path, output: Path, log: Path, python: Path | None = None, options: Sequence[str] = ()) -> None:
        output = output.resolve()
        output.mkdir(parents=True, exist_ok=True)
        super().__init__([python or sys.executable, pack / "training", "--output", output, *options], log, cwd=output)

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A loopback port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def has_cuda(python: Path) -> bool:
    """Whether torch beside ``python`` can use a GPU through CUDA (or ROCm, which answers to the same name)."""
    asked = subprocess.run([str(python), "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, encoding="utf-8", errors="replace")
    if asked.returncode:
        raise SetupError(f"torch does not load in {python}:\n{asked.stderr.strip()[-600:]}\nRepair it with: python dev.py setup")
    return asked.stdout.strip().endswith("True")


def _remedy(log_tail: str, python: Path) -> str:
    """A sentence for the commonest reason a ComfyUI of one's own does not start."""
    for line in reversed(log_tail.splitlines()):
        if line.startswith("ModuleNotFoundError: No module named "):
            return f"{python} lacks the module {line.split()[-1]}; install ComfyUI's requirements.txt there. "
    return ""


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    status = entry.get("status") or {}
    if status.get("status_str") == "success":
        return entry
    for kind, detail in status.get("messages", []):
        if kind == "execution_error":
            trace = "".join(detail.get("traceback", []))
            raise ComfyError(f"{detail['node_type']}: {detail['exception_message'].strip()}\n{trace}")
        if kind == "execution_interrupted":
            raise ComfyError(f"{detail['node_type']}: the run was cancelled")
    raise ComfyError(f"the run failed without a message: {status}")


def _refusal(path: str, code: int, body: bytes) -> str:
    """ComfyUI's refusal in one line a person can act on."""
    try:
        answer = json.loads(body)
        reasons = [answer["error"]["message"]]
        for number, node in answer.get("node_errors", {}).items():
            reasons += [f"node {number} ({node['class_type']}): {e['message']}: {e['details']}" for e in node["errors"]]
    except (ValueError, KeyError, TypeError):
        reasons = [body.decode("utf-8", "replace")[:400]]
    return f"ComfyUI answered {code} to {path}: " + "; ".join(reasons)
