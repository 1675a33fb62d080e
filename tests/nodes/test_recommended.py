"""Recommended values for a real MODEL, as the node gives them and as the trainer node's automatic widgets take them."""

import math

import pytest
import torch

from stepwise_grpo.tests.architectures import ARCHITECTURES, exists
from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.tests.nodes.graphs import add, change, find, first_loop, note
from stepwise_grpo.training.defaults import BY_SIZE, COMFYUI, ROWS, named
from stepwise_grpo.training.experience import unpack
from stepwise_grpo.training.job import RunFolder

NAMES = {
    "sd3": "SD3, SD3.5", "sd35": "SD3, SD3.5", "flux": "FLUX.1 dev", "flux2": "FLUX.2 dev", "chroma": "Chroma", "auraflow": "AuraFlow", "lumina2": "Lumina-Image 2.0",
    "z_image": "Z-Image", "qwen_image": "Qwen-Image", "hidream": "HiDream-I1 Full", "wan21": "Wan 2.1", "hunyuan_video": "HunyuanVideo", "hunyuan_image": "HunyuanImage 2.1",
    "omnigen2": "OmniGen 2", "ltxv": "LTX-Video", "kandinsky5": "Kandinsky 5 video",
}  # fmt: skip
PIXELS = {"flux2": 16, "hunyuan_image": 32, "ltxv": 32}  # of a side, for one latent element; 8 for the others


@pytest.fixture
def model(request, comfy, tmp_path):
    """The tiny checkpoint of an architecture, as ComfyUI loads it."""
    if not exists(ARCHITECTURES[request.param]):
        pytest.skip(f"this ComfyUI has no {request.param}")
    return Bench(request.param, None, tmp_path).patcher()


@pytest.mark.parametrize("model, name", NAMES.items(), indirect=["model"], ids=list(NAMES))
def test_every_architecture_gets_its_row_whose_shift_is_comfyuis_own(model, name, request):
    from stepwise_grpo.nodes.recommended import own_shift, row_of

    row = row_of(model)
    assert row.name == name
    assert (own_shift(model) == pytest.approx(row.shift, rel=0.01)) == (row.sources["shift"] == COMFYUI)  # HiDream has none of its own
    # The node that sets the shift tells the network the time in its own unit; the wrong one would make it 1000 times as late.
    multiplier = 1000 if row.shift_node == "ModelSamplingSD3" else 1
    assert float(model.get_model_object("model_sampling").timestep(torch.tensor(0.5))) == 0.5 * multiplier
    architecture = request.node.callspec.params["model"]
    if row.sources["clip"] == BY_SIZE:
        side = PIXELS.get(architecture, 8)
        elements = ARCHITECTURES[architecture].latent[0] * (row.size[0] // side) * (row.size[1] // side)
        assert row.clip == pytest.approx(1e-4 * math.sqrt(65536 / elements), rel=0.25)


def test_all_architectures_under_test_are_named():
    assert set(NAMES) == set(ARCHITECTURES)


@pytest.mark.parametrize("model, file, name", [("z_image", "z_image_turbo_bf16.safetensors", "Z-Image Turbo"), ("sd3", "sd3.5_large_turbo.safetensors", "SD3.5 Large Turbo")], indirect=["model"])
def test_the_file_base_model_remembers_tells_few_step_models(model, file, name):
    from stepwise_grpo.nodes.convert import with_base
    from stepwise_grpo.nodes.recommended import row_of

    assert row_of(with_base(model, {"kind": "diffusion_models", "name": file, "size": 1, "sha256": ""})).name == name


@pytest.mark.parametrize("model", ["flux"], indirect=True)
def test_the_nodes_outputs_are_the_rows_values(model, monkeypatch):
    from stepwise_grpo.nodes import recommended

    said = []
    monkeypatch.setattr(recommended.Progress, "say", lambda self, text: said.append(text))
    result = recommended.RecommendedSettings.execute(model).result
    names = [output.id for output in recommended.outputs()]
    assert dict(zip(names, result)) == {
        **{"steps": 6, "cfg": 1.0, "guidance": 3.5, "shift": 3.16, "width": 512, "height": 512},
        **{"group_size": 8, "law": "flow", "eta": 0.9, "note": said[0]},
    }
    assert "Flow-GRPO pickscore_flux" in said[0] and "learning_rate 0.0001" in said[0]


@pytest.mark.parametrize("model", ["sd3", "flux"], indirect=True)
def test_an_unknown_architectures_shift_is_the_models_own(model):
    from comfy_extras.nodes_model_advanced import ModelSamplingAuraFlow

    from stepwise_grpo.nodes.recommended import own_shift, values

    assert ROWS[-1].shift is None
    assert values(model, ROWS[-1])[3] == own_shift(model) == pytest.approx(3.0, rel=0.06)
    assert own_shift(ModelSamplingAuraFlow().patch_aura(model, 2.5)[0]) == 2.5


@pytest.mark.parametrize("model", ["flux"], indirect=True)
def test_the_law_auto_is_the_models_and_any_other_stays(model):
    from stepwise_grpo.nodes.recommended import law_of, row_of

    assert law_of(row_of(model), "auto", -1.0) == ("flow", 0.9)
    assert law_of(row_of(model), "auto", 0.4) == ("flow", 0.4)
    assert law_of(row_of(model), "ddim", -1.0) == ("ddim", -1.0)


@pytest.mark.usefixtures("comfy")
class TestAutomaticWidgets:
    AUTO = {"learning_rate": 0.0, "clip": 0.0, "targets": "auto", "rank": 0, "alpha": 0.0, "updates": 2}
    ROW = named("FLUX.1 dev")

    def filled(self, known=None, **widgets):
        from stepwise_grpo.nodes.recommended import filled

        return filled(self.AUTO | widgets, self.ROW, known or {})

    def test_all_automatic_is_the_row(self):
        assert self.filled() == {"learning_rate": 1e-4, "clip": 1e-4, "targets": "attention_mlp", "rank": 64, "alpha": 128.0, "updates": 2}

    def test_a_widget_that_was_set_stays(self):
        explicit = {"learning_rate": 0.01, "clip": 0.2, "targets": "all", "rank": 4, "alpha": 3.0}
        assert self.filled(**explicit) == {**explicit, "updates": 2}

    def test_alpha_keeps_the_scale_at_another_rank(self):
        assert self.filled(rank=8)["alpha"] == 16.0

    def test_what_a_run_has_fixed_wins_over_a_newer_table(self):
        known = {"rank": 4, "alpha": 2.0, "targets": "all"}
        assert {key: self.filled(known)[key] for key in known} == known
        assert self.filled(known, rank=8)["alpha"] == 2.0  # so that the error names the rank alone

    def test_the_sentence_names_what_was_chosen_and_nothing_else(self):
        from stepwise_grpo.nodes.recommended import choice

        widgets = self.AUTO | {"rank": 8, "targets": "all"}
        assert choice(widgets, self.filled(rank=8, targets="all"), self.ROW) == "Chosen for FLUX.1 dev (guidance-distilled): learning_rate 0.0001, clip 0.0001, alpha 16."
        assert choice({"learning_rate": 1, "clip": 1, "targets": "all", "rank": 1, "alpha": 1}, {}, self.ROW) == ""


@pytest.mark.usefixtures("comfy")
def test_flux_guidance_travels_in_the_conditioning_of_each_prompt():
    from comfy_extras.nodes_flux import FluxGuidance

    from stepwise_grpo.nodes.convert import prompts_of, tagged

    entries = [*tagged([[torch.zeros(1, 2, 4), {}]], "a", 3), *tagged([[torch.zeros(1, 2, 4), {}]], "b", 5)]
    node = FluxGuidance
    guided = node.execute(entries, 3.5).result[0] if hasattr(node, "execute") else node().append(entries, 3.5)[0]
    prompts = prompts_of(guided)
    assert [(prompt.index, prompt.text, prompt.conditioning[0][1]["guidance"]) for prompt in prompts] == [(3, "a", 3.5), (5, "b", 3.5)]


@pytest.mark.usefixtures("comfy")
def test_what_comfyui_asks_before_a_run():
    from stepwise_grpo.nodes import validate
    from stepwise_grpo.nodes.live_lora import LiveLoRA
    from stepwise_grpo.nodes.rollout import StepwiseSDESampler
    from stepwise_grpo.nodes.sampler import StepwiseSDE
    from stepwise_grpo.nodes.trainer import GRPOLoRATrainer

    for node in (StepwiseSDESampler, StepwiseSDE):
        assert node.validate_inputs("flow", 1.5) is True and node.validate_inputs(None, 9.0) is True
        assert "ddim" in node.validate_inputs("ddim", 1.5)
    assert validate.law_and_eta("auto", 3.0) is True
    for node in (LiveLoRA, GRPOLoRATrainer):
        assert node.validate_inputs("été 2") is True and node.validate_inputs(None) is True
        assert "not usable" in node.validate_inputs("../up")


def wired(server, run, seed=0):
    """The first workflow with everything it can take from Recommended Settings, and all of the trainer's widgets automatic."""
    graph = first_loop(server, run, seed)
    node = add(graph, "StepwiseGRPO_RecommendedSettings", model=[find(graph, "StepwiseGRPO_DemoModel"), 0])
    change(graph, "BasicScheduler", steps=[node, 0])
    change(graph, "EmptySD3LatentImage", width=[node, 4], height=[node, 5])
    change(graph, "StepwiseGRPO_StepwiseSDESampler", cfg=[node, 1], group_size=[node, 6], law=[node, 7], eta=[node, 8])
    change(graph, "StepwiseGRPO_GRPOLoRATrainer", learning_rate=0.0, clip=0.0, targets="auto", rank=0, alpha=0.0, wait=False)
    return graph, node


def test_the_node_feeds_the_stock_nodes_and_the_trainer_chooses_for_itself(server):
    graph, node = wired(server, "wired")
    outputs = server.run(graph)
    row, run = named("Demo Model"), RunFolder(server.output, "wired")
    assert outputs[node]["text"][0].startswith("Demo Model: true cfg")
    assert "Chosen for Demo Model (true cfg): learning_rate 0.0025, clip 0.001, targets attention, rank 16, alpha 32." in note(outputs, graph)
    assert {key: run.job()[key] for key in ("targets", "rank", "alpha")} == {"targets": row.targets, "rank": row.rank, "alpha": row.alpha}
    experience = unpack(run.waiting()[0])
    assert (experience.settings.learning_rate, experience.settings.clip) == (row.learning_rate, row.clip)
    assert (experience.schedule.law, experience.schedule.eta, experience.schedule.steps) == ("flow", 0.7, 10)
    assert list(experience.states.shape[1:]) == [2 * row.group_size, 16, 16, 16] and experience.cfg == 1


def test_the_law_auto_and_a_run_that_was_started_by_hand(server):
    graph = change(first_loop(server, "by hand"), "StepwiseGRPO_GRPOLoRATrainer", rank=4, alpha=2.0, targets="all", wait=False)
    server.run(graph)
    graph = change(wired(server, "by hand", 1)[0], "StepwiseGRPO_StepwiseSDESampler", law="auto", eta=-1.0, group_size=2)
    server.run(graph)
    first, second = (unpack(path) for path in RunFolder(server.output, "by hand").waiting())
    assert first.job == second.job and (second.job.rank, second.job.alpha, second.job.targets) == (4, 2.0, "all")
    assert (second.schedule.law, second.schedule.eta) == ("flow", 0.7)
