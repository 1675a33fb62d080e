"""The demo model as the three objects that ComfyUI's stock nodes work with: a model, a text encoder and a VAE.

The only file of this folder that imports comfy.
"""

from pathlib import Path

import comfy.model_management
import comfy.model_patcher
import comfy.sd
import torch
from torch import nn

from .captions import parse
from .codec import CHANNELS, PATCH, Codec, load_codec
from .words import pool, word_ids, word_vectors

WEIGHTS = Path(__file__).resolve().parent / "weights"
FLOW_FILE = WEIGHTS / "demo_flow.safetensors"
CODEC_FILE = WEIGHTS / "demo_codec.safetensors"


def load_demo_model() -> comfy.model_patcher.ModelPatcher:
    """The flow model, opened exactly as the stock Load Diffusion Model node opens it."""
    return comfy.sd.load_diffusion_model(str(FLOW_FILE))


def load_demo_clip() -> comfy.sd.CLIP:
    """The word vectors behind ComfyUI's own CLIP class."""
    return comfy.sd.CLIP(ClipTarget(), model_options={"dtype": torch.float32})


def load_demo_vae() -> comfy.sd.VAE:
    """The codec behind ComfyUI's own VAE class."""
    return DemoVAE(load_codec(CODEC_FILE))


class Tokenizer:
    """Text -> one token per slot of the caption, in the form comfy.sd.CLIP passes on."""

    def __init__(self, embedding_directory=None, tokenizer_data=None):
        pass

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **_options) -> dict:
        """One batch under the key "demo": word id and weight, and the slot too if asked for. Written weights are ignored."""
        # A written weight is (word:1.2); every word gets 1.0.
        ids = word_ids(parse(text))
        return {"demo": [[(word, 1.0, slot) if return_word_ids else (word, 1.0) for slot, word in enumerate(ids)]]}

    def state_dict(self) -> dict:
        return {}


class TextModel(nn.Module):
    """The table of word vectors, with the methods comfy.sd.CLIP calls."""

    disable_offload = True  # a few kilobytes: always loaded whole

    def __init__(self, dtype=None, device=None, model_options=None):
        super().__init__()
        self.dtypes = {torch.float32}
        self.words = nn.Embedding(*word_vectors().shape, dtype=torch.float32, device=device)
        with torch.no_grad():
            self.words.weight.copy_(word_vectors())

    def set_clip_options(self, options: dict) -> None:
        """The table has no layers to choose from."""

    def reset_clip_options(self) -> None:
        """The table has no layers to choose from."""

    def encode_token_weights(self, tokens: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """cond (B, L, C) and pooled (B, C), float32, where ComfyUI keeps results between nodes."""
        ids = torch.tensor([[token[0] for token in batch] for batch in tokens["demo"]])
        table = self.words.weight
        cond = table[ids.to(table.device)].float().to(comfy.model_management.intermediate_device())
        return cond, pool(cond)

    def load_sd(self, sd: dict):
        """Kept for comfy.sd.CLIP.load_sd; the demo has no text encoder file."""
        return self.load_state_dict(sd, strict=False)


class ClipTarget:
    """What comfy.sd.CLIP builds itself from."""

    params: dict = {}
    clip = TextModel
    tokenizer = Tokenizer


class ComfyCodec(Codec):
    """The codec for pictures (B, 3, H, W), the order of the channels in ComfyUI."""

    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        return super().encode(pictures.movedim(1, -1))

    def decode(self, latents: torch.Tensor, **_options) -> torch.Tensor:
        return super().decode(latents).movedim(-1, 1)


class DemoVAE(comfy.sd.VAE):
    """comfy.sd.VAE around the codec.

    ComfyUI recognises a VAE by the keys of its file and has no hook for one it does not know. So the base class
    first sets itself up completely as the trivial pixel-space VAE, which every version knows, and then the codec and
    its sizes are put in place.
    """

    def __init__(self, codec: Codec):
        super().__init__(sd={"pixel_space_vae": torch.tensor(1.0)}, dtype=torch.float32)
        module = ComfyCodec().train(False).requires_grad_(False)
        module.load_state_dict(codec.state_dict())
        self.first_stage_model = module
        self.latent_channels = CHANNELS
        self.downscale_ratio = self.upscale_ratio = PATCH
        self.process_input = self.process_output = lambda image: image
        self.memory_used_encode = lambda shape, dtype: 64 * shape[-2] * shape[-1] * 4
        self.memory_used_decode = lambda shape, dtype: 64 * shape[-2] * shape[-1] * PATCH**2 * 4
        self.disable_offload = True
        self.size = None
        self.patcher = comfy.model_patcher.ModelPatcher(
            module, load_device=self.device, offload_device=self.patcher.offload_device
        )
        self.model_size()
