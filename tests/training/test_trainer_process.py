"""The real trainer process on the demo model: a kill -9 during an update loses nothing, Ctrl-C finishes what it is at.

The experiences are made in this process by the graph's own code (rollout, preview, pack) on the same model.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.demo.captions import all_captions
from stepwise_grpo.demo.words import encode
from stepwise_grpo.tools.server import Trainer
from stepwise_grpo.training import control
from stepwise_grpo.training.base import DEMO
from stepwise_grpo.training.comfyui import prepare, write_place
from stepwise_grpo.training.config import Job, Origin, PreviewSettings, UpdateSettings, to_json
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.experience import pack
from stepwise_grpo.training.job import RunFolder, read_json
from stepwise_grpo.training.preview import preview
from stepwise_grpo.training.rollout import rollout
from stepwise_grpo.training.trajectory import Prompt, Trajectory

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (16, 16, 16)
JOB = Job(base=DEMO, rank=4, alpha=8.0)
ORIGIN = Origin()  # the base model
FOREVER = 900.0  # seconds, for a machine that is busy with other things
WINDOWS = sys.platform == "win32"


class Redness:
    """Mean of the picture's first channel: enough to tell members apart."""

    spec = {"reward": "redness"}

    def score(self, images, prompts):
        return images[..., 0].mean((1, 2))


def entries(text: str) -> list:
    cond, pooled = encode(text)
    return [[cond, {"pooled_output": pooled}]]


def decode(latents: torch.Tensor) -> torch.Tensor:
    return latents[:, :3].movedim(1, -1).sigmoid()


@pytest.fixture(scope="module")
def policy(comfyui_folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # the trainers': two threads wait for each other where other processes want the cores
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends.comfy import open_policy

        yield open_policy(JOB)


def packed(policy: Any, seed: int, steps: int, group_size: int, origin: Origin = ORIGIN, **update: Any) -> bytes:
    """An iteration of the policy as the graph writes it."""
    schedule = Schedule(tuple(1 - k / steps for k in range(steps + 1)), "ddim", 0.7)
    prompts = tuple(Prompt(caption.text(), i, entries(caption.text())) for i, caption in enumerate(all_captions()[seed::601][:2]))
    with torch.no_grad(), policy.prompts([p.conditioning for p in prompts], entries(""), 1.0, [2 * group_size, *SHAPE]):
        path = rollout(policy.velocity, schedule, [0, 1], group_size, SHAPE, seed)
        trajectory = Trajectory(path.states, path.velocities, schedule, prompts, entries(""), 1.0, seed, origin, DEMO, path.evaluations)
        credit, _ = preview(trajectory, policy.velocity, decode, Redness(), PreviewSettings(substeps=1))
    return pack(trajectory, credit, JOB, UpdateSettings(learning_rate=1e-3, **update))


@pytest.fixture(scope="module")
def inbox(policy: Any) -> list[bytes]:
    """A quick experience, a slow one (one row a network call) to be interrupted in, and one more."""
    return [packed(policy, 0, 4, 2, updates=1), packed(policy, 1, 10, 6, updates=2, rows_per_call=1, ema=0.5), packed(policy, 2, 4, 2, updates=1)]


def new_run(output: Path, inbox: list[bytes], comfyui_folder: Path) -> RunFolder:
    folder = RunFolder(output, "été 1")
    folder.agree_on_job(to_json(JOB))
    for data in inbox:
        folder.queue(data)
    write_place(output, comfyui_folder, ["--cpu"], {}, {})
    return folder


def start(folder: RunFolder, comfyui_folder: Path) -> Trainer:
    return Trainer(ROOT, folder.output, folder.output / "trainer.log", options=["--comfy", str(comfyui_folder)])


def wait(condition: Callable[[], bool], trainer: Trainer) -> None:
    end = time.monotonic() + FOREVER
    while not condition():
        assert trainer.exit_code is None, f"the trainer ended:\n{trainer.tail()}"
        assert time.monotonic() < end, f"waited in vain:\n{trainer.tail()}"
        time.sleep(0.02)


def trains_version(folder: RunFolder, version: int) -> Callable[[], bool]:
    status = lambda: read_json(folder.path / "status.json") or {}
    return lambda: status().get("phase") == "training" and status().get("message", "").startswith(f"training version {version}")


def files(folder: RunFolder) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for place in (folder.loras, folder.state) for path in sorted(place.iterdir())}


def committed(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key not in ("at", "seconds")} for event in folder.events()]


@pytest.fixture(scope="module")
def undisturbed(inbox: list[bytes], comfyui_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Trainer]:
    """A run of two versions, made by a trainer that was asked to stop in the middle of the second."""
    folder = new_run(tmp_path_factory.mktemp("undisturbed"), inbox, comfyui_folder)
    with start(folder, comfyui_folder) as trainer:
        wait(trains_version(folder, 2), trainer)
        time.sleep(0.2)
        assert (folder.latest() or {})["version"] == 1
        trainer.ask_to_stop()
        assert trainer.wait(FOREVER), trainer.tail()
    return folder, trainer


def test_ctrl_c_finishes_the_running_update_and_leaves_the_rest_queued(undisturbed, inbox):
    folder, trainer = undisturbed
    assert trainer.exit_code == 0
    assert folder.latest()["version"] == 2 and [path.read_bytes() for path in folder.waiting()] == inbox[2:]
    assert "stopping after the running update" in trainer.tail() and "stopped; start it again at any time" in trainer.tail()
    assert "Traceback" not in trainer.tail(200)
    heartbeat = read_json(folder.path.parent / "trainer.json")
    assert heartbeat["stopped"] and not folder.trainer_is_alive()


def test_what_the_trainer_computes_agrees_with_what_the_graph_recorded(undisturbed):
    for event in undisturbed[0].events():
        assert event["keys_matched"] == event["keys_total"] > 0
        assert event["graph_velocity_error"] < 1e-4
    assert undisturbed[0].events()[0]["ratio_error_max"] == 0


@pytest.mark.skipif(WINDOWS, reason="kill -9 is how it is done elsewhere; taskkill /F is the same, but not tried")
def test_a_kill_during_an_update_loses_nothing_and_the_next_trainer_makes_the_same_bits(undisturbed, inbox, comfyui_folder, tmp_path):
    folder, reference = new_run(tmp_path, inbox, comfyui_folder), undisturbed[0]
    with start(folder, comfyui_folder) as killed:
        wait(trains_version(folder, 2), killed)
        time.sleep(0.3)  # somewhere in the middle: the update takes seconds
        killed.kill()
    assert killed.exit_code == -signal.SIGKILL
    assert folder.latest()["version"] == 1 and [path.read_bytes() for path in folder.waiting()] == inbox[1:]

    with start(folder, comfyui_folder) as again:
        wait(lambda: (folder.latest() or {})["version"] >= 2, again)
        again.ask_to_stop()
        assert again.wait(FOREVER), again.tail()
    assert again.exit_code == 0
    made, wanted = files(folder), files(reference)
    if folder.latest()["version"] == 3:  # it had begun with the last experience
        del wanted["state/v000001.safetensors"]  # only the two newest states are kept
    assert {name: made[name] for name in wanted} == wanted
    assert committed(folder)[:2] == committed(reference)


def test_a_paused_run_goes_back_in_a_real_trainer_which_ends_when_the_stop_file_says_so(inbox, comfyui_folder, tmp_path):
    folder = new_run(tmp_path, [inbox[0], inbox[2]], comfyui_folder)
    with start(folder, comfyui_folder) as trainer:
        wait(lambda: (folder.latest() or {}).get("version") == 2 and not folder.waiting(), trainer)
        control.pause(folder, True)
        id = folder.queue(inbox[1])
        control.ask_to_go_back(folder, 1)
        wait(lambda: folder.latest()["version"] == 3 and not control.requests(folder), trainer)
        one, three = (safetensors.torch.load_file(folder.version_file(version)) for version in (1, 3))
        assert one.keys() == three.keys() and all(one[name].equal(three[name]) for name in one)
        assert len(folder.waiting()) == 1 and read_json(folder.path / "status.json")["phase"] == "paused"
        control.pause(folder, False)
        wait(lambda: not folder.waiting(), trainer)
        assert "made before the run went back to version 1" in folder.fate(id)["dropped"] and folder.latest()["version"] == 3
        control.ask_to_stop(tmp_path)
        assert trainer.wait(FOREVER), trainer.tail()
    assert trainer.exit_code == 0 and "stopped; start it again at any time" in trainer.tail() and "Traceback" not in trainer.tail(200)
    assert not control.stop_file(tmp_path).exists() and not folder.trainer_is_alive()
