"""What the workflows for one's own model differ in: the stock loaders, their files, and what ComfyUI's own templates put behind them."""

from dataclasses import dataclass

from .parts import Model, Part

HUB = "https://huggingface.co/"
COMFY = f"{HUB}Comfy-Org/"


def loader(key: str, kind: str, files: dict[str, Model], title: str = "", **values: str) -> Part:
    """A stock loader; ``files``: {widget: the file it asks for}."""
    return Part(key, kind, values={**{widget: model.name for widget, model in files.items()}, **values}, title=title, models=tuple(files.values()))


def file(url: str, directory: str) -> Model:
    return Model(url.rpartition("/")[2], url, directory)


@dataclass(frozen=True)
class Family:
    """A model of one's own."""

    name: str
    """Of the workflow and of its run."""
    title: str
    row: str
    """The row of the table of recommended settings that these files get."""
    loaders: tuple[Part, ...]
    model: str
    clip: str
    vae: str
    other_files: str
    """A sentence for the note: other files of the family."""
    shifted: bool = False
    """Whether ComfyUI's own template has ModelSamplingAuraFlow behind the loader."""
    guided: bool = False
    """Whether the model takes Flux Guidance."""


_SD35 = file(f"{COMFY}stable-diffusion-3.5-fp8/resolve/main/sd3.5_large_fp8_scaled.safetensors", "checkpoints")
_AE = file(f"{COMFY}z_image_turbo/resolve/main/split_files/vae/ae.safetensors", "vae")
_FLUX = file(f"{COMFY}flux1-dev/resolve/main/flux1-dev.safetensors", "diffusion_models")
_CLIP_L = file(f"{HUB}comfyanonymous/flux_text_encoders/resolve/main/clip_l.safetensors", "text_encoders")
_T5 = file(f"{HUB}comfyanonymous/flux_text_encoders/resolve/main/t5xxl_fp16.safetensors", "text_encoders")
_QWEN_FILES = f"{COMFY}Qwen-Image_ComfyUI/resolve/main/split_files"
_QWEN = file(f"{_QWEN_FILES}/diffusion_models/qwen_image_fp8_e4m3fn.safetensors", "diffusion_models")
_QWEN_VL = file(f"{_QWEN_FILES}/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors", "text_encoders")
_QWEN_VAE = file(f"{_QWEN_FILES}/vae/qwen_image_vae.safetensors", "vae")
_Z_FILES = f"{COMFY}z_image_turbo/resolve/main/split_files"
_Z_IMAGE = file(f"{_Z_FILES}/diffusion_models/z_image_turbo_bf16.safetensors", "diffusion_models")
_QWEN_3 = file(f"{_Z_FILES}/text_encoders/qwen_3_4b.safetensors", "text_encoders")

FAMILIES = (
    Family(
        "sd35",
        "Stable Diffusion 3.5",
        "SD3, SD3.5",
        (loader("checkpoint", "CheckpointLoaderSimple", {"ckpt_name": _SD35}),),
        *("checkpoint.MODEL", "checkpoint.CLIP", "checkpoint.VAE"),
        "SD3.5 Medium needs the smallest card. A file without text encoders takes them from *TripleCLIPLoader*.",
    ),
    Family(
        "flux",
        "FLUX.1 dev",
        "FLUX.1 dev",
        (
            loader("unet", "UNETLoader", {"unet_name": _FLUX}, weight_dtype="fp8_e4m3fn"),
            loader("text", "DualCLIPLoader", {"clip_name1": _CLIP_L, "clip_name2": _T5}, type="flux"),
            loader("vae", "VAELoader", {"vae_name": _AE}),
        ),
        *("unet.MODEL", "text.CLIP", "vae.VAE"),
        "The weights are rounded to fp8 to halve the memory; *weight_dtype* `default` keeps them whole. Of a checkpoint, use *Load Checkpoint*.",
        guided=True,
    ),
    Family(
        "qwen_image",
        "Qwen-Image",
        "Qwen-Image",
        (
            loader("unet", "UNETLoader", {"unet_name": _QWEN}),
            loader("text", "CLIPLoader", {"clip_name": _QWEN_VL}, type="qwen_image"),
            loader("vae", "VAELoader", {"vae_name": _QWEN_VAE}),
        ),
        *("unet.MODEL", "text.CLIP", "vae.VAE"),
        "Newer files of Qwen-Image for text to image go into the same loaders.",
        shifted=True,
    ),
    Family(
        "z_image",
        "Z-Image Turbo",
        "Z-Image Turbo",
        (
            loader("unet", "UNETLoader", {"unet_name": _Z_IMAGE}),
            loader("text", "CLIPLoader", {"clip_name": _QWEN_3}, type="lumina2"),
            loader("vae", "VAELoader", {"vae_name": _AE}),
        ),
        *("unet.MODEL", "text.CLIP", "vae.VAE"),
        "Z-Image without Turbo goes into the same loaders; the settings follow it, but give the held-out pictures 50 steps.",
        shifted=True,
    ),
)
