"""The only file that speaks both languages, that of ComfyUI's models, prompts, latents and pictures, and ours.

ComfyUI calls the time t of a flow model "sigma". Its sampling functions return the clean estimate, ours take the velocity.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import comfy.k_diffusion.sampling
import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
import torch
from PIL import Image
from torch import Tensor

from ..training.backends.loading import check_flow_matching
from ..training.backends.room import rows_of_rollout as rows_of_rollout  # for the nodes, which do not know ComfyUI's inside
from ..training.backends.unmerged import LoRAForward
from ..training.backends.velocity import ModelVelocity, ready
from ..training.conditioning import TAG, checked
from ..training.config import Origin, from_json, to_json
from ..training.core.schedule import Schedule
from ..training.core.tweedie import Velocity
from ..training.policy import Decoder
from ..training.rollout import walk
from ..training.trajectory import Prompt

BASE = "stepwise_grpo_base"  # attachment: the base model's description as JSON
ORIGIN = "stepwise_grpo_origin"  # attachment: Live LoRA's Origin as JSON
PATCHES = "stepwise_grpo_patches"  # attachment: the weight patches that are Live LoRA's own


# what a MODEL remembers


def with_base(model: Any, base: dict[str, Any]) -> Any:
    """A clone that remembers which base model it is."""
    model = model.clone()
    model.set_attachments(BASE, json.dumps(base))
    return model


def attached_base(model: Any) -> dict[str, Any] | None:
    """What Base Model or Demo Model wrote on the model."""
    found = model.get_attachment(BASE)
    return None if found is None else json.loads(found)


def origin_of(model: Any) -> Origin:
    """Which LoRA version Live LoRA put on the model; the base model when there was no Live LoRA."""
    found = model.get_attachment(ORIGIN)
    return Origin() if found is None else from_json(Origin, json.loads(found))


def mark_origin(before: Any, after: Any, origin: Origin) -> None:
    """Write ``origin`` on the MODEL ``after`` that Live LoRA made from ``before``, and which weight patches it added."""
    after.set_attachments(ORIGIN, json.dumps(to_json(origin)))
    added = [entry[1] for key, entries in after.patches.items() for entry in entries[len(before.patches.get(key, ())) :]]
    after.set_attachments(PATCHES, [*(before.get_attachment(PATCHES) or ()), *added])


def foreign_patches(model: Any) -> dict[str, list[tuple]]:
    """Weight patches that are not Live LoRA's: of each weight [(strength, strength of the weight itself, part of it), ...]."""
    own = {id(patch) for patch in model.get_attachment(PATCHES) or ()}
    found = {key: [(entry[0], *entry[2:4]) for entry in entries if id(entry[1]) not in own and entry[0]] for key, entries in model.patches.items()}
    return {key: entries for key, entries in found.items() if entries}


def bare(model: Any) -> Any:
    """A clone without weight patches and without another sampling: the model as its loader gave it."""
    model = model.clone()
    model.patches, model.object_patches = {}, {}
    return model


def check_model(model: Any) -> None:
    """``ValueError`` unless this is a flow model whose sampling and options the trainer can repeat. For its weights see ``base_of``."""
    check_flow_matching(model)
    check_flow_matching(bare(model))
    check_times(model)
    options = model.model_options
    found = [key for key, value in options.items() if key != "transformer_options" and value]
    found += [f"transformer_options.{key}" for key, value in options.get("transformer_options", {}).items() if value]
    for group in ("wrappers", "injections", "additional_models", "hook_patches", "weight_wrapper_patches"):
        found += [f"{group}.{key}" for key, value in vars(model).get(group, {}).items() if value]
    found += [f"object_patches.{key}" for key, patch in model.object_patches.items() if key != "model_sampling" and not isinstance(patch, LoRAForward)]
    if found:
        raise ValueError(f"the model carries {', '.join(found)}, which the trainer cannot repeat; take out the node between loader and sampler that adds it")


def check_times(model: Any) -> None:
    """``ValueError`` where a ModelSampling node changed more than the shift: the times that the network is told, or the mixture.

    The shift only chooses the times, which travel with the rollout. The trainer works with the model's own sampling.
    """
    # not model.model.model_sampling: while a patched clone is loaded, that is the patched one
    own, patched = bare(model).get_model_object("model_sampling"), model.get_model_object("model_sampling")
    t, x, v = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, -1.0, 1.0])
    if not torch.allclose(own.timestep(t).float(), patched.timestep(t).float(), rtol=1e-4):
        kind = type(model.model).__name__
        raise ValueError(f"a ModelSampling node tells the network other times than this model ({kind}) was made for; use the one of its kind: ModelSamplingSD3, ModelSamplingAuraFlow or ModelSamplingFlux")
    pairs = ((s.calculate_input(t, x), s.calculate_denoised(t, v, x), s.noise_scaling(t, x, v)) for s in (own, patched))
    if not all(torch.allclose(a, b) for a, b in zip(*pairs)):
        raise ValueError("a node changes how the model mixes noise and picture, which the trainer cannot repeat; take it out")


# prompts and latents


def prompts_of(positive: list) -> tuple[Prompt, ...]:
    """Entries that Prompt List tagged are separate prompts; all entries without a tag are one prompt, combined as ComfyUI does."""
    if not positive:
        raise ValueError("positive holds no prompt: connect Prompt List or CLIP Text Encode")
    groups: dict[tuple[int, str], list] = {}
    for entry in positive:
        tag = entry[1].get(TAG) or {"index": 0, "prompt": ""}
        groups.setdefault((tag["index"], tag["prompt"]), []).append(entry)
    return tuple(Prompt(text, index, checked(entries, "positive")) for (index, text), entries in groups.items())


def tagged(conditioning: list, text: str, index: int) -> list:
    """Entries of one prompt of a list."""
    return [[cond, {**options, TAG: {"prompt": text, "index": index}}] for cond, options in conditioning]


def latent_shape(model: Any, latent: dict[str, Any]) -> list[int]:
    """The shape of one latent; only the size of the LATENT input counts, so a picture or a mask in it is refused."""
    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        raise ValueError("latent_image holds several latents at once (picture with sound), which cannot be trained; use an empty picture latent")
    if latent.get("noise_mask") is not None:
        raise ValueError("latent_image carries a noise mask; a rollout starts from pure noise: use an Empty Latent Image")
    if torch.count_nonzero(samples):
        raise ValueError("latent_image holds a picture; a rollout starts from pure noise and takes only the size: use an Empty Latent Image")
    ratios = [latent[key] for key in ("downscale_ratio_spacial", "downscale_ratio_temporal") if key in latent]  # newer ComfyUI
    return list(comfy.sample.fix_empty_latent_channels(model, samples, *ratios).shape[1:])


def to_latent(model: Any, states: Tensor) -> dict[str, Any]:
    """Model-space states (B, ...) as a LATENT."""
    return {"samples": model.model.process_latent_out(states)}


# network and pictures


def velocity_of(model: Any, prompts: Sequence[Prompt], negative: list, cfg: float, rows_per_call: int, tick: Callable[[int], None]) -> Velocity:
    """The model's velocity. Each call makes the model ready, because decoding pictures in between may have moved it away."""
    inner = ModelVelocity(model, [prompt.conditioning for prompt in prompts], negative, cfg, tick, rows_per_call)
    passes = 1 if cfg == 1 else 2

    def velocity(x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        with ready(model, [passes * min(len(x), rows_per_call), *x.shape[1:]]):
            try:
                return inner(x, t, rows)
            except RuntimeError as error:
                if "shapes cannot be multiplied" not in str(error):
                    raise
                kind, width = type(model.model).__name__, prompts[0].conditioning[0][0].shape[-1]
                raise ValueError(f"positive or negative does not fit this model ({kind}): {error}. The prompt's tokens have {width} features; use the text encoder that belongs to the model") from error

    return velocity


def decoder(model: Any, vae: Any) -> Decoder:
    """Model-space latents -> pictures; of a video latent the first frame."""

    def decode(latents: Tensor) -> Tensor:
        if latents.dim() == 5:
            return vae.decode(to_latent(model, latents)["samples"][:, :, :1])[:, 0]
        return vae.decode(to_latent(model, latents)["samples"])

    return decode


def image_of(picture: Tensor) -> Image.Image:
    """A picture (H, W, 3) in [0, 1] as Pillow has it."""
    return Image.fromarray((picture * 255).round().to(torch.uint8).cpu().numpy())


def quick_look(model: Any) -> Any | None:
    """ComfyUI's cheap latent previewer of this model, or None where it has none."""
    form = model.get_model_object("latent_format")
    found = latent_preview.get_previewer(model.load_device, form)
    if found is None and form.latent_rgb_factors is not None:
        found = latent_preview.Latent2RGBPreviewer(form.latent_rgb_factors, form.latent_rgb_factors_bias, form.latent_rgb_factors_reshape)
    return found


def stochastic_sampler(law: str, eta: float, seed: int) -> Any:
    """A SAMPLER for the stock custom sampler nodes; every row of the batch has noise of its own."""

    def sample(model: Any, x: Tensor, sigmas: Tensor, extra_args: dict, callback: Callable | None, disable: bool) -> Tensor:
        check_flow_matching(model.inner_model.model_patcher)

        def velocity(states: Tensor, t: Tensor, rows: Tensor) -> Tensor:
            states, t = states.to(x), t.to(x)
            return comfy.k_diffusion.sampling.to_d(states, t, model(states, t, **extra_args)).cpu()

        def on_step(k: int, states: Tensor, clean: Tensor) -> None:
            if callback is not None:
                callback({"i": k, "x": states, "denoised": clean, "sigma": sigmas[k], "sigma_hat": sigmas[k]})

        schedule = Schedule.of(sigmas.tolist(), law, eta)
        return walk(velocity, schedule, x.float().cpu(), seed, on_step).to(x)

    return comfy.samplers.KSAMPLER(sample)


# the running node


def make_room_for_trainer() -> None:
    """Free the graphics card of ComfyUI's models; they come back when they are used again. Nothing where there is no card."""
    if not comfy.model_management.is_device_cpu(comfy.model_management.get_torch_device()):
        comfy.model_management.unload_all_models()
        comfy.model_management.soft_empty_cache()


def progress_bar(total: int) -> Any:
    """ComfyUI's bar on the running node; every update of it also stops the node if the artist pressed cancel."""
    return comfy.utils.ProgressBar(total)


def stop_if_cancelled() -> None:
    comfy.model_management.throw_exception_if_processing_interrupted()
