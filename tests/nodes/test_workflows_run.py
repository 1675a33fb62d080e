"""Every shipped workflow run on a real server with a real trainer: the demo's as they are but smaller, the others on tiny random models.

The tiny files bear the names that the workflows ask for, so the stock loaders run unchanged, with two exceptions: the text encoder is
the Demo Model's, because the real ones have no tiny form; and both processes are told the tiny sizes that ComfyUI takes for fixed.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.architectures import ARCHITECTURES, Architecture, build, write
from stepwise_grpo.tests.nodes.graphs import Graph, find, wait_until_alive
from stepwise_grpo.tools.server import ComfyServer, Trainer
from stepwise_grpo.tools.workflow import api_form
from stepwise_grpo.tools.workflows import FOLDER
from stepwise_grpo.training.job import RunFolder

LIST, LOOKS, SAMPLER, PREVIEW, TRAINER = (f"StepwiseGRPO_{name}" for name in ("PromptList", "HeldOutPictures", "StepwiseSDESampler", "TweediePreviewReward", "GRPOLoRATrainer"))
SMALL = {
    "BasicScheduler": {"steps": 3},
    LIST: {"prompts_per_iteration": 2},
    SAMPLER: {"group_size": 2},
    PREVIEW: {"substeps": 1},
    LOOKS: {"every": 1},
    "EmptySD3LatentImage": {"width": 64, "height": 64},
}
TEXT = 64  # features of the Demo Model's text encoder
WIDER = {
    "sd35": {"adm_in_channels": TEXT, "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": TEXT, "out_features": 128}}},
    "flux": {"vec_in_dim": TEXT, "context_in_dim": TEXT},
    "qwen_image": {"joint_attention_dim": TEXT},
    "z_image": {"cap_feat_dim": TEXT},
}
FILES = {"flux": "flux1-dev.safetensors", "qwen_image": "qwen_image_fp8_e4m3fn.safetensors", "z_image": "z_image_turbo_bf16.safetensors"}
# A sitecustomize.py: after ComfyUI's detection module is imported, it finds the tiny sizes.
DETECTION = """
import importlib.machinery, sys
SIZES = {sizes!r}

def patch(module):
    detect = module.detect_unet_config
    def tiny(*args, **kwargs):
        found = detect(*args, **kwargs)
        return found if found is None else found | SIZES.get(found.get("image_model"), {{}})
    module.detect_unet_config = tiny
    module.comfy.supported_models.ZImage.unet_config = {{"image_model": "lumina2", "dim": SIZES["lumina2"]["dim"]}}

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name != "comfy.model_detection":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (run(module), patch(module))
        return spec

sys.meta_path.insert(0, Finder)
"""


def smaller(graph: Graph) -> Graph:
    for node in graph.values():
        node["inputs"].update(SMALL.get(node["class_type"], {}))
    return graph


def workflow(server: ComfyServer, name: str) -> Graph:
    return smaller(api_form(json.loads((FOLDER / f"{name}.json").read_text("utf-8")), server.object_info()))


def check_run(server: ComfyServer, name: str, versions: int) -> list[dict[str, Any]]:
    """The run's events, after a look at what lies there."""
    run = RunFolder(server.output, name)
    events = run.events()
    assert [event["version"] for event in events] == list(range(1, versions + 1)) and run.latest()["version"] == versions
    assert all(event["graph_velocity_error"] < 1e-4 and event["ratio_error_max"] < 1e-4 for event in events), events
    return events


@pytest.mark.usefixtures("busy_trainer")
class TestDemo:
    def test_first_loop(self, server):
        graph = workflow(server, "first_loop")
        for press in range(2):
            graph["7"]["inputs"]["seed"] = graph["3"]["inputs"]["iteration"] = press
            outputs = server.run(graph)
        check_run(server, "my_first_run", 2)
        assert outputs["12"]["text"][0].startswith("my_first_run version 2: reward")
        assert len(outputs["11"]["images"]) == 4
        assert sorted(path.name for path in (RunFolder(server.output, "my_first_run").path / "looks").glob("*.json")) == ["v000000.json", "v000001.json"]

    def test_stepwise_against_uniform(self, server):
        graph = workflow(server, "stepwise_against_uniform")
        for press in range(2):
            graph[find(graph, "PrimitiveInt")]["inputs"]["value"] = press
            server.run(graph)
        events = {name: check_run(server, f"against_{name}", 2) for name in ("stepwise", "uniform")}
        assert [event["credit"] for run in events.values() for event in run] == ["centred"] * 2 + ["uniform"] * 2
        first = {name: run[0] for name, run in events.items()}
        assert first["stepwise"]["reward_mean"] == pytest.approx(first["uniform"]["reward_mean"], abs=1e-6)  # the same pictures at the start
        looks = [json.loads((RunFolder(server.output, f"against_{name}").path / "looks" / "v000000.json").read_text("utf-8")) for name in events]
        assert looks[0]["series"] == looks[1]["series"] and looks[0]["rewards"] == looks[1]["rewards"]


# one's own model


def tiny(family: str) -> Architecture:
    """The architecture with text features as wide as the Demo Model's."""
    architecture = ARCHITECTURES[family]
    return replace(architecture, config=architecture.config | WIDER[family], width=TEXT)


def random_like(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {key: torch.randn(tensor.shape, generator=generator) * 0.1 for key, tensor in network.state_dict().items()}


def write_models(folder: Path) -> dict[str, str]:
    """Tiny files under the names that the workflows ask for; their folders by ComfyUI's names."""
    import comfy.ldm.wan.vae
    import comfy.taesd.taesd

    folders = {name: folder / name for name in ("checkpoints", "diffusion_models", "vae")}
    for path in folders.values():
        path.mkdir()
    for family, name in FILES.items():
        write(tiny(family), folders["diffusion_models"] / name)
    vae = {key: value for key, value in random_like(comfy.taesd.taesd.TAESD(latent_channels=16)).items() if key.startswith("taesd_")}
    safetensors.torch.save_file(vae, folders["vae"] / "ae.safetensors")
    wan = comfy.ldm.wan.vae.WanVAE(dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[], temperal_downsample=[False, True, True], dropout=0.0)
    safetensors.torch.save_file(random_like(wan), folders["vae"] / "qwen_image_vae.safetensors")
    whole = {f"model.diffusion_model.{key}": tensor.contiguous() for key, tensor in build(tiny("sd35")).state_dict().items()}
    whole |= {f"first_stage_model.{key}": tensor for key, tensor in vae.items()}
    safetensors.torch.save_file(whole, folders["checkpoints"] / "sd3.5_large_fp8_scaled.safetensors")
    return {name: str(path) for name, path in folders.items()}


@pytest.fixture(scope="module")
def tiny_server(comfy, comfyui_folder: Path, pack_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server and a trainer beside tiny models."""
    folder = tmp_path_factory.mktemp("own models é")
    (folder / "paths.yaml").write_text(json.dumps({"tests": write_models(folder)}), "utf-8")
    sizes = {"flux": tiny("flux").config, "qwen_image": tiny("qwen_image").config, "lumina2": tiny("z_image").config}
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(DETECTION.format(sizes=sizes), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "site"))
        options = ("--extra-model-paths-config", str(folder / "paths.yaml"))
        with ComfyServer(comfyui_folder, folder / "output é", folder / "comfyui.log", options=options) as server:
            with Trainer(pack_folder, server.output, folder / "trainer.log") as trainer:
                wait_until_alive(trainer, server.output)
                yield server


def with_stand_in_text(graph: Graph) -> Graph:
    """The Demo Model's text encoder in place of the stock loader's."""
    graph["words"] = {"class_type": "StepwiseGRPO_DemoModel", "inputs": {}}
    encoders = {id for id, node in graph.items() if node["class_type"] in ("CLIPLoader", "DualCLIPLoader")}
    for node in graph.values():
        if isinstance(node["inputs"].get("clip"), list):  # the trainer's clip is a number
            node["inputs"]["clip"] = ["words", 1]
    return {id: node for id, node in graph.items() if id not in encoders}


@pytest.mark.parametrize("name", ["sd35", "flux", "qwen_image", "z_image"])
def test_ones_own_model(name, tiny_server):
    graph, outputs = with_stand_in_text(workflow(tiny_server, name)), {}
    for press in range(2):
        graph[find(graph, SAMPLER)]["inputs"]["seed"] = press
        outputs |= tiny_server.run(graph)  # what a second press does not run again has no outputs then
    events = check_run(tiny_server, f"my_{name}", 2)
    expected = {"sd35": "SD3, SD3.5: true cfg", "flux": "FLUX.1 dev: guidance-distilled", "qwen_image": "Qwen-Image: true cfg", "z_image": "Z-Image Turbo: few-step"}
    assert outputs[find(graph, "StepwiseGRPO_RecommendedSettings")]["text"][0].startswith(expected[name])
    assert all(event["grad_norm"] > 0 for event in events)
    assert len(outputs[find(graph, LOOKS)]["images"]) >= 1
