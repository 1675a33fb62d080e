"""ComfyUI conditioning as plain data: what can be trained on, how prompts form a batch, how it goes into a file.

A prompt's conditioning is a list of entries [tensor, dict]; ComfyUI blends several entries of one prompt.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tree = Any  # tensors, numbers, strings, None, and lists and dicts of these

_REFUSED = {
    "control": "a control net",
    "gligen": "GLIGEN boxes",
    "mask": "a mask",
    "area": "an area",
    "hooks": "hooks (scheduled LoRAs or weights)",
    "additional_models": "an additional model",
    "start_percent": "a time range",
    "end_percent": "a time range",
    "clip_start_percent": "a time range",
    "clip_end_percent": "a time range",
}
_HARMLESS = {"start_percent": 0.0, "clip_start_percent": 0.0, "end_percent": 1.0, "clip_end_percent": 1.0}
TAG = "stepwise_grpo"


def checked(entries: list, which: str) -> list:
    """Entries [tensor, dict] without the prompt tag, or a ``ValueError`` naming what the trainer could not repeat."""
    result = []
    for cond, options in entries:
        options = {key: value for key, value in options.items() if key != TAG}
        for key, value in options.items():
            if key in _REFUSED and value is not None and value != _HARMLESS.get(key, object()):
                raise ValueError(f"the {which} conditioning carries {_REFUSED[key]} ({key!r}), which the trainer cannot repeat; remove it")
            _check_tree(value, which, key)
        result.append([cond, {key: value for key, value in options.items() if key not in _REFUSED}])
    return result


def _check_tree(value: Tree, which: str, key: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_tree(item, which, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_tree(item, which, key)
    elif not (value is None or isinstance(value, (Tensor, str, bool, int, float))):
        raise ValueError(f"the {which} conditioning has {key!r} of type {type(value).__name__}, which the trainer cannot repeat; remove the node that sets it")


def signature(tree: Tree) -> Any:
    """Equal for two prompts exactly when they can share a batch: same structure, shapes and plain values.

    Token counts are part of the shapes, so unequal prompts are never padded into one batch.
    """
    if isinstance(tree, Tensor):
        # What ``stack`` shares instead of joining must be equal, not only of one shape.
        content = () if _has_row(tree) else (tuple(tree.shape), tuple(tree.flatten().tolist()))
        return ("tensor", str(tree.dtype), tuple(tree.shape[1:]), content)
    if isinstance(tree, dict):
        return ("dict", tuple(sorted((key, signature(value)) for key, value in tree.items())))
    if isinstance(tree, (list, tuple)):
        return ("list", tuple(signature(value) for value in tree))
    return ("value", repr(tree))


def longest(prompts: list[list]) -> list:
    """The prompt whose conditioning holds most numbers, which costs the network most."""

    def size(tree: Tree) -> int:
        if isinstance(tree, Tensor):
            return tree.numel()
        parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
        return sum(size(part) for part in parts)

    return max(prompts, key=size)


def stack(trees: list[Tree]) -> Tree:
    """One conditioning whose tensors have a row for each of ``trees`` (equal signatures, each with one row)."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees) if _has_row(first) and not _same_mask(trees) else first
    if isinstance(first, dict):
        return {key: stack([tree[key] for tree in trees]) for key in first}
    if isinstance(first, (list, tuple)):
        return [stack([tree[i] for tree in trees]) for i in range(len(first))]
    return first


def _same_mask(tensors: list[Tensor]) -> bool:
    """Whether it is a token mask that all prompts share. It stays one row: Omnigen2 counts the tokens of all rows together."""
    return not tensors[0].is_floating_point() and all(torch.equal(tensors[0], other) for other in tensors[1:])


def _has_row(tensor: Tensor) -> bool:
    """Whether it has one row, that of its prompt; a scalar or a tensor with several rows is shared by a batch."""
    return tensor.dim() > 0 and tensor.shape[0] == 1


def flatten(tree: Tree, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON of a tree; its tensors go into ``tensors`` under their path, in their own dtype."""
    if isinstance(tree, Tensor):
        while path in tensors:  # a key may contain a slash
            path += "+"
        tensors[path] = tree.detach().cpu().contiguous()
        return {"tensor": path}
    if isinstance(tree, dict):
        return {"dict": {key: flatten(value, f"{path}/{key}", tensors) for key, value in tree.items()}}
    if isinstance(tree, (list, tuple)):
        return {"list": [flatten(value, f"{path}/{i}", tensors) for i, value in enumerate(tree)]}
    return {"value": tree}


def unflatten(node: Any, tensors: dict[str, Tensor]) -> Tree:
    """The tree that ``flatten`` took apart."""
    kind, value = next(iter(node.items()))
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: unflatten(item, tensors) for key, item in value.items()}
    if kind == "list":
        return [unflatten(item, tensors) for item in value]
    return value


class ConditioningBatcher:
    """Splits rows of a batch by prompt into sub-batches that may share a network call; ``apart``: each prompt for itself."""

    def __init__(self, prompts: list[list], apart: bool = False) -> None:
        self.prompts = prompts
        self._signatures = [index if apart else signature(prompt) for index, prompt in enumerate(prompts)]

    def split(self, rows: Tensor) -> list[tuple[Tensor, list]]:
        """[(positions in ``rows``, conditioning with a row for each)], in a fixed order."""
        groups: dict[Any, list[int]] = {}
        for position, prompt in enumerate(rows.tolist()):
            groups.setdefault(self._signatures[prompt], []).append(position)
        return [(torch.tensor(p), stack([self.prompts[rows[i]] for i in p])) for p in groups.values()]

    def each(self, rows: Tensor, limit: int, call: Callable[[Tensor, list], Tensor]) -> Tensor:
        """``call(positions, conditioning)`` (n, ...) for sub-batches of at most ``limit`` rows, joined in the order of ``rows``."""
        parts = [(chunk[where], conditioning) for chunk in torch.arange(len(rows)).split(limit) for where, conditioning in self.split(rows[chunk])]
        results = [call(where, conditioning) for where, conditioning in parts]
        if len(results) == 1:
            return results[0]
        return torch.cat(results)[torch.cat([where for where, _ in parts]).argsort()]
