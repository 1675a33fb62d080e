"""LoRAs that the graph already had on the base model, below the one that is trained."""

from typing import Any


def follow_layers(patcher: Any) -> None:
    """Rename the patches of layers that became LoRA layers, whose own weight has moved to ``<layer>.base_layer.weight``.

    ComfyUI drops a patch whose key the model no longer has, without a word: the trainer would train on another base.
    Call it after the LoRA layers are in and before the model is loaded to its device.
    """
    if patcher.backup:
        raise RuntimeError("this model's LoRAs are already merged into its weights; stacked LoRAs need a freshly loaded model")
    known = patcher.model.state_dict().keys()
    patcher.patches = {_moved(key, known): value for key, value in patcher.patches.items()}


def _moved(key: str, known: Any) -> str:
    layer, _, kind = key.rpartition(".")
    for candidate in (key, f"{layer}.base_layer.{kind}"):
        if candidate in known:
            return candidate
    raise ValueError(f"a LoRA below the trained one changes {key!r}, which this model does not have")
