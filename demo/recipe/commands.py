"""The two commands of the recipe."""

from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from ...training.rewards.placement import Placement
from ..captions import all_captions, held_out
from ..codec import load_codec
from ..comfy_model import CODEC_FILE, FLOW_FILE
from ..measure import measure
from .sampling import Studio, seeded_noise

FIRST_SEED = 1000  # of the measured pictures; the demo's own held-out seeds lie below
COLUMNS = 16  # of a contact sheet


def train_all(seconds: float, codec_seconds: float, go_on: bool) -> None:
    """Codec, then flow model; each file is written when its part is finished. ``go_on``: from the flow model that is there."""
    from .fit_codec import fit_codec
    from .network import build
    from .train import Plan, train

    if not go_on:
        save_weights(fit_codec(codec_seconds), CODEC_FILE)
    codec = load_codec(CODEC_FILE)  # the flow model learns the codec as it is stored
    torch.manual_seed(1)
    net = build()
    if go_on:
        net.load_state_dict({name: value.float() for name, value in load_file(FLOW_FILE).items()})
    average = train(net, codec, Plan(seconds), report=lambda _net, text: print(text, flush=True))
    save_weights(average, FLOW_FILE)


def save_weights(module: nn.Module, path: Path) -> None:
    """float16 safetensors, whole file first and then renamed."""
    tensors = {name: value.detach().half().contiguous() for name, value in module.state_dict().items()}
    written = path.with_suffix(".tmp")
    save_file(tensors, written)
    written.replace(path)


def measure_held_out(count: int, cfg: float, steps: int, sheet: Path | None) -> dict[str, float]:
    """Rates over `count` pictures of held-out captions, one seed each."""
    captions = [caption.text() for caption in all_captions() if held_out(caption)]
    prompts = [captions[i % len(captions)] for i in range(count)]
    noise = seeded_noise([FIRST_SEED + i for i in range(count)])
    pictures = Studio().pictures(prompts, noise, cfg, steps)
    if sheet:
        contact_sheet(pictures, sheet)
    found = measure(pictures, prompts)
    rates = {name: value.float().mean().item() for name, value in found.items() if name != "centre"}
    return rates | {"reward": Placement().score(pictures, prompts).mean().item(), "cfg": cfg, "count": count}


def contact_sheet(pictures: torch.Tensor, path: Path) -> None:
    """Pictures (N, H, W, 3) in [0, 1] side by side, COLUMNS in a row; the last row is filled with white."""
    height, width = pictures.shape[1:3]
    missing = -len(pictures) % COLUMNS
    pictures = torch.cat([pictures, pictures.new_ones(missing, height, width, 3)])
    rows = pictures.unflatten(0, (-1, COLUMNS)).permute(0, 2, 1, 3, 4).flatten(2, 3).flatten(0, 1)
    Image.fromarray((rows.clamp(0, 1) * 255).round().byte().numpy()).save(path)
