"""Headless training: a whole run on a tiny diffusers pipeline, stopped, killed, and split among processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests import pipelines, twins
from stepwise_grpo.training import control, headless
from stepwise_grpo.training.config import Job, PreviewSettings, UpdateSettings
from stepwise_grpo.training.headless_settings import read_settings
from stepwise_grpo.training.job import RunFolder

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = "a red cube\nthe blue ball on the table\n\n# not this one\na green cube on the table\n"
# Rewards that differ clearly within a group: normalised credit makes rounding as large as rewards are alike.
CONFIG = {
    "output": "output", "run": "été 1", "prompts": "prompts.txt", "reward": {"reward": "contrast"}, "precision": "float32", "iterations": 3,
    "prompts_per_iteration": 2, "group_size": 4, "steps": 4, "law": "flow", "eta": 1.0, "cfg": 2.0, "negative": "green", "width": 16, "height": 16,
    "lora": {"rank": 4, "alpha": 8.0}, "update": {"updates": 1, "ema": 0.5}, "preview": {"substeps": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return pipelines.save("sd3", tmp_path_factory.mktemp("a model é") / "sd3 tiny")


@pytest.fixture
def here(tmp_path, model) -> Path:
    return prepared(tmp_path, model)


def prepared(folder: Path, model: Path) -> Path:
    """A folder with a prompt file; ``configured`` puts configuration files there."""
    (folder / "prompts.txt").write_text(PROMPTS, encoding="utf-8")
    (folder / "model.txt").write_text(str(model), encoding="utf-8")
    return folder


def configured(here: Path, without: str = "", **changes: Any) -> Path:
    config = {"model": (here / "model.txt").read_text("utf-8"), **CONFIG, **changes}
    path = here / f"{config['run']}.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if key != without}), encoding="utf-8")
    return path


def run(path: Path, until=lambda: False) -> RunFolder:
    settings = read_settings(path)
    headless.train(path.parent, settings, until)
    return RunFolder(path.parent / settings.output, settings.run)


def files(folder: RunFolder) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for place in (folder.loras, folder.state) for path in sorted(place.glob("*.safetensors"))}


def tensors(folder: RunFolder) -> dict[str, dict[str, torch.Tensor]]:
    """Of every version and state; the bytes of a version name its run."""
    return {name: safetensors.torch.load(data) for name, data in ((name.split("/")[1], data) for name, data in files(folder).items())}


def same(a: RunFolder, b: RunFolder) -> bool:
    one, two = tensors(a), tensors(b)
    return one.keys() == two.keys() and all(one[f].keys() == two[f].keys() and all(torch.equal(one[f][key], two[f][key]) for key in one[f]) for f in one)


def told(folder: RunFolder) -> list[dict]:
    """Events but for the time they took, the gains of the steps one by one."""
    steps = lambda event: {f"gain of step {k}": gain for k, gain in enumerate(event.get("gain_by_step") or [])}
    plain = lambda event: {key: value for key, value in event.items() if key not in ("at", "gain_by_step") and "seconds" not in key}
    return [plain(event) | steps(event) for event in folder.events()]


# one process


def test_a_run_leaves_what_comfyui_reads(here):
    folder = run(configured(here))
    latest, events = folder.latest(), folder.events()
    assert latest["version"] == 3 and (folder.output / latest["file"]).is_file()
    assert [event["version"] for event in events] == [1, 2, 3] and [event["behaviour_version"] for event in events] == [0, 1, 2]
    assert all(event["keys_matched"] == event["keys_total"] > 0 and event["ratio_error_max"] <= 1e-5 and event["pictures"] == 8 for event in events)
    assert all(set(event["rollout_seconds"]) == {"rollout", "preview", "decode", "reward"} for event in events)
    status, beat = (json.loads((folder.path / name).read_text("utf-8")) for name in ("status.json", "trainer.json"))
    assert (status["phase"], status["version"]) == ("done", 3) and beat["stopped"] and beat["pid"] == os.getpid()
    job = folder.job()
    assert job["base"]["name"] == "sd3 tiny" and job["base"]["architecture"] == "sd3" and job["rank"] == 4
    assert str(here) not in json.dumps(job) and folder.picture_file(3).read_bytes()[1:4] == b"PNG"
    version = safetensors.torch.load(folder.version_file(3).read_bytes())
    assert all(key.startswith("transformer.transformer_blocks.") for key in version)
    assert any(weight.any() for key, weight in version.items() if "lora_B" in key) and folder.version_file(3, ema=True).is_file()
    run(configured(here))  # finished: nothing is added
    assert folder.latest() == latest and folder.events() == events


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(here):
    straight, answers = run(configured(here, run="straight")), iter([False, False, True])
    stopped = run(configured(here, run="stopped"), until=lambda: next(answers))
    assert stopped.latest()["version"] == 2 and json.loads((stopped.path / "status.json").read_text("utf-8"))["phase"] == "stopped"
    run(configured(here, run="stopped"))
    assert same(stopped, straight) and told(stopped) == told(straight)


def test_a_run_that_was_asked_to_go_back_does_so_and_goes_on_from_there(here):
    folder = run(configured(here, iterations=2))
    control.ask_to_go_back(folder, 1)
    run(configured(here, iterations=4))
    assert [event.get("back_to") for event in folder.events()] == [None, None, 1, None] and not control.requests(folder)
    one, three, four = (safetensors.torch.load(folder.version_file(version).read_bytes()) for version in (1, 3, 4))
    assert one.keys() == three.keys() == four.keys() and all(one[name].equal(three[name]) for name in one) and not all(three[name].equal(four[name]) for name in four)
    assert folder.events()[3]["behaviour_version"] == 3 and folder.events()[3]["ratio_error_max"] <= 1e-5


def test_another_seed_is_another_run(here):
    one, two = run(configured(here, run="one", iterations=1)), run(configured(here, run="two", iterations=1, seed=1))
    assert told(one)[0]["reward_mean"] != told(two)[0]["reward_mean"] and not same(one, two)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_other_precisions_train_an_fp32_lora(here, precision):
    folder = run(configured(here, iterations=2, precision=precision))
    assert {w.dtype for w in safetensors.torch.load(folder.version_file(2).read_bytes()).values()} == {torch.float32}
    for event in folder.events():
        assert event["grad_norm"] > 0 and event["ratio_error_max"] <= 1e-5 and event["graph_velocity_error"] < 0.05


@pytest.mark.parametrize("name", ["flux", "qwen_image", "z_image", "wan"])
def test_every_architecture_makes_versions(name, here):
    model = pipelines.save(name, here / name)
    sizes = {"width": 16, "height": 16, "frames": 5 if name == "wan" else 1}
    folder = run(configured(here, model=str(model), iterations=1, prompts_per_iteration=1, group_size=2, **sizes))
    (event,) = folder.events()
    assert event["grad_norm"] > 0 and event["ratio_error_max"] <= 1e-5 and event["keys_matched"] == event["keys_total"] > 0


def test_prompts_that_processes_cannot_share_are_refused():
    """What two processes would be told, without starting them."""

    class Two:
        rank, count = 0, 2

    class Connected:
        state = type("State", (), {})()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        headless._check_processes(Connected, Two(), 3)
        with pytest.raises(ValueError, match="at least the number of processes, 2; there are 1"):
            headless._check_processes(Connected, Two(), 1)
        Connected.state.fsdp_plugin = object()
        with pytest.raises(ValueError, match="with FSDP prompts_per_iteration must be a multiple"):
            headless._check_processes(Connected, Two(), 3)
        patch.setenv("WORLD_SIZE", "4")
        with pytest.raises(ValueError, match="4 processes were started, but accelerate connects 2"):
            headless._check_processes(Connected, Two(), 4)


def test_the_reward_rises(here):
    """The warmth of a random network's pictures of one prompt."""
    (here / "prompts.txt").write_text("a red cube", encoding="utf-8")
    settings = {"cfg": 1.0, "reward": {"reward": "warmth"}, "lora": {"rank": 8, "alpha": 16.0}, "update": {"learning_rate": 0.01, "clip": 0.05, "updates": 2}}
    events = run(configured(here, iterations=12, group_size=8, **settings)).events()
    curve = [event["reward_mean"] for event in events]
    assert sum(curve[-3:]) / 3 > curve[0] + 2 * events[0]["reward_std"]


def command(*words: str | Path) -> list[str]:
    return [sys.executable, *map(str, words)]


ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_that_was_killed_goes_on_from_its_last_version(here):
    straight, path = run(configured(here, run="straight", iterations=4)), configured(here, run="killed", iterations=4)
    folder = RunFolder(here / "output", "killed")
    process = subprocess.Popen(command(ROOT / "training", "headless", path), env=ENVIRON, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: folder.latest() is not None)
    process.kill()
    process.wait()
    assert folder.latest()["version"] < 4
    run(path)
    assert same(folder, straight) and told(folder) == told(straight)


@pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C to a console, not to a process")
def test_ctrl_c_ends_after_the_running_iteration(here):
    path, folder = configured(here, iterations=1000), RunFolder(here / "output", CONFIG["run"])
    process = subprocess.Popen(command(ROOT / "training", "headless", path), env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    wait_for(lambda: folder.latest() is not None)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in said and "stopping after the running update" in said
    assert json.loads((folder.path / "status.json").read_text("utf-8"))["phase"] == "stopped"
    assert folder.latest()["version"] == len(folder.events()) < 1000


# several processes

WORKER = ROOT / "tests" / "headless_worker.py"
CONFIGURATIONS = ROOT / "docs" / "accelerate"


def launched(configuration: str, *words: str | Path, script: Path = WORKER) -> str:
    """What the processes say that accelerate starts by one of our configuration files, on the CPU."""
    start = ("-m", "accelerate.commands.launch", "--config_file", CONFIGURATIONS / f"{configuration}.yaml", "--main_process_port", "0")
    done = subprocess.run(command(*start, script, *words), env=ENVIRON, capture_output=True, encoding="utf-8", errors="replace", timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


def distance(a: list[torch.Tensor | None], b: list[torch.Tensor | None]) -> float:
    assert [x is None for x in a] == [x is None for x in b]
    pairs = [(x.double(), y.double()) for x, y in zip(a, b) if x is not None]
    return (sum((x - y).square().sum() for x, y in pairs) / sum(x.square().sum() for x, _ in pairs)).sqrt().item()


def product_distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest relative distance of B A in one layer."""
    layers = [key.removesuffix("lora_A.weight") for key in a if key.endswith("lora_A.weight")]
    product = lambda found, layer: found[f"{layer}lora_B.weight"].double() @ found[f"{layer}lora_A.weight"].double()
    return max(((product(a, layer) - product(b, layer)).norm() / product(a, layer).norm().clamp_min(1e-20)).item() for layer in layers)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, model) -> dict[int, tuple[list, RunFolder]]:
    """Gradients and run folder of one process with 3 and with 2 prompts an iteration."""
    found = {}
    for prompts in (3, 2):
        here = prepared(tmp_path_factory.mktemp("one"), model)
        launched("one", configured(here, prompts_per_iteration=prompts), here / "gradients.pt")
        found[prompts] = torch.load(here / "gradients.pt"), RunFolder(here / "output", CONFIG["run"])
    return found


@pytest.mark.parametrize(("configuration", "prompts"), [("ddp", 3), ("fsdp", 2)])
def test_two_processes_train_what_one_does(here, alone, configuration, prompts, comfyui_folder):
    """With the whole base in each (3 prompts: one process has two of them), and with the base spread over both."""
    said = launched(configuration, configured(here, prompts_per_iteration=prompts), here / "gradients.pt", *["shard"] * (configuration == "fsdp"))
    assert said.count("of the base") == (2 if configuration == "fsdp" else 0)
    (expected, one), found, two = alone[prompts], torch.load(here / "gradients.pt"), RunFolder(here / "output", CONFIG["run"])
    assert len(expected) == len(found) == 3
    gradients = [distance(*pair) for pair in zip(expected, found)]
    versions = [safetensors.torch.load(folder.version_file(3).read_bytes()) for folder in (one, two)]
    product = product_distance(*versions)
    print("gradients:", *(f"{value:.1e}" for value in gradients), f"product: {product:.1e}")
    assert max(gradients) <= 1e-5 and product <= 1e-3
    for x, y in zip(told(one), told(two)):
        assert x == {key: pytest.approx(value, rel=1e-3, abs=1e-5) if isinstance(value, float) else value for key, value in y.items()}
    assert twins.layers_loaded("sd3", comfyui_folder, versions[1]) == len(versions[1]) // 3


def test_accelerate_launches_the_command_itself_and_a_run_goes_on_with_more_processes(here):
    one = run(configured(here, run="one"))
    folder = run(configured(here, run="two", iterations=1))
    launched("ddp", "headless", configured(here, run="two"), script=ROOT / "training")
    assert folder.latest()["version"] == 3
    assert product_distance(*(safetensors.torch.load(each.version_file(3).read_bytes()) for each in (one, folder))) <= 1e-3


# what goes wrong


def refused(path: Path) -> str:
    """What the command says, one sentence without a traceback."""
    with pytest.raises(SystemExit) as stopped:
        headless.main([str(path)])
    return str(stopped.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "nowhere"}, "model: there is no folder or file .*nowhere"),
        ({"model": "prompts.txt"}, r"model: prompts\.txt is not a \.safetensors file"),
        ({"model": "."}, r"is not the folder of a diffusers pipeline \(it has no model_index\.json\)"),
        ({"prompts": "none.txt"}, "prompts: there is no file .*none.txt"),
        ({"iteratons": 3}, "has no setting 'iteratons'; did you mean 'iterations'"),
        ({"lora": {"rnk": 3}}, "lora: Job has no setting 'rnk'; did you mean 'rank'"),
        ({"lora": {"rank": "three"}}, "lora: "),
        ({"update": {"clip": 2}}, r"update: clip must lie in \(0, 1\)"),
        ({"preview": {"substep": 2}}, "preview: PreviewSettings has no setting 'substep'; did you mean 'substeps'"),
        ({"reward": {"reward": "beauty"}}, "unknown reward 'beauty'"),
        ({"group_size": 1}, "group_size must be at least 2"),
        ({"steps": "four"}, "steps must be a whole number; got 'four'"),
        ({"shift": -1}, "shift must be above 0"),
        ({"precision": "fp8"}, "precision must be one of"),
        ({"run": "../x"}, "run name '../x' is not usable"),
        ({"width": 17}, "width must be a multiple of 4 for this model; got 17"),
        ({"architecture": "sd4"}, "architecture must be one of sd3, .*; got 'sd4'"),
        ({"architecture": "flux"}, "its network is a SD3Transformer2DModel, but flux needs a FluxTransformer2DModel"),
        ({"law": "brownian"}, "brownian"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_wrong_configuration_is_said_in_one_sentence(here, changes, said):
    message = refused(configured(here, **changes))
    assert re.search(said, message) and "\n" not in message


def test_missing_settings_files_and_prompts_are_named(here):
    assert "does not say reward" in refused(configured(here, without="reward"))
    assert "there is no configuration file" in refused(here / "none.json")
    (here / "broken.json").write_text("{", encoding="utf-8")
    assert "is not valid JSON" in refused(here / "broken.json")
    (here / "prompts.txt").write_text("# nothing\n\n", encoding="utf-8")
    assert "the prompt list is empty" in refused(configured(here))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"_class_name": "StableDiffusionPipeline"}, "a StableDiffusionPipeline cannot be trained; known are StableDiffusion3Pipeline"),
        ({"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTransformer3DModel"], "boundary_ratio": 0.9}, "only Wan 2.1 can be trained"),
    ],
)
def test_a_pipeline_that_cannot_be_trained_is_named(here, change, said):
    folder = here / "other"
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "X", "transformer": ["diffusers", "Y"], **change}), encoding="utf-8")
    assert said in refused(configured(here, model="other"))


def test_a_single_file_needs_the_other_parts_and_trains_the_same(here, model):
    file = next((model / "transformer").glob("*.safetensors"))
    assert "components: model is a single file" in refused(configured(here, model=str(file)))
    one, two = run(configured(here, run="folder", iterations=1)), run(configured(here, run="file", iterations=1, model=str(file), components=str(model)))
    assert same(one, two) and two.job()["base"]["name"] == file.name


def test_a_changed_model_or_setting_is_refused_for_a_run_that_began_with_another(here):
    run(configured(here, iterations=1))
    assert "was started with rank = 4" in refused(configured(here, lora={"rank": 8, "alpha": 8.0}))
    pipelines.save("sd3", here / "sd3 tiny", seed=0)
    (here / "sd3 tiny" / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(
        safetensors.torch.save({"x": torch.zeros(3)})
    )
    assert re.search("was started with .*Put it back, or choose another run name", refused(configured(here, model="sd3 tiny")))


def test_a_run_that_another_process_trains_is_refused(here):
    folder = RunFolder(here / "output", CONFIG["run"])
    with headless._alone_in(folder):
        assert "another process trains the run" in refused(configured(here))


@pytest.mark.parametrize("name, kind", [("lora", Job), ("update", UpdateSettings), ("preview", PreviewSettings)])
def test_the_page_names_every_setting_with_its_default(name, kind):
    (line,) = [line for line in (ROOT / "docs" / "headless.md").read_text("utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    for field in fields(kind):
        if field.name not in ("base", "start"):
            value = field.default
            shown = ("true" if value else "false") if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value or ("empty" if value == "" else value)
            assert f"`{field.name}` {shown}" in line
