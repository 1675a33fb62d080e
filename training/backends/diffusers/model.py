"""Everything a headless run needs of its model, opened in the order that keeps memory low."""

from dataclasses import dataclass
from typing import Any

from ...config import Job
from ...headless_settings import HeadlessSettings
from ...policy import Decoder
from .loading import Source, load
from .pipeline import VaeDecoder, encode, latent_shape, move_encoders, time_grid
from .policy import DiffusersPolicy
from .sharding import shard


@dataclass(frozen=True)
class Model:
    policy: DiffusersPolicy
    conditioning: list[list]
    """Of every text, in their order."""
    decode: Decoder
    shape: tuple[int, ...]
    """Of one latent."""
    times: list[float]
    sharded: bool
    """Whether the processes hold a part of the base each."""


def open_model(source: Source, settings: HeadlessSettings, job: Job, texts: list[str], processes: Any) -> Model:
    """The encoders see ``texts`` once and are dropped before the network goes to the device. ``processes``: accelerate's Accelerator."""
    architecture, device = source.architecture, processes.device
    pipeline = load(source, settings.precision)
    shape = latent_shape(pipeline, architecture, settings.width, settings.height, settings.frames)
    times = time_grid(pipeline, settings.steps, shape, settings.shift)
    move_encoders(pipeline, device)
    conditioning = [encode(pipeline, architecture, text, device) for text in texts]
    move_encoders(pipeline, None)
    sharded = vars(processes.state).get("fsdp_plugin")
    network = pipeline.transformer if sharded is not None else pipeline.transformer.to(device)
    policy = DiffusersPolicy(network, architecture, job, device, settings.guidance, lockstep=sharded is not None)
    if sharded is not None:
        shard(network, sharded, device)
    pipeline.vae.to(device)
    return Model(policy, conditioning, VaeDecoder(pipeline, architecture), shape, times, sharded is not None)
