"""Peak memory of a computation, exact to the byte and without a device: tensors may have no content at all.

A tensor on the device "meta" has a shape and no memory. Forward and backward of a whole network run on it in seconds,
and what would have been alive at once is counted.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensor storages that are made inside it, while they live. ``peak``: the most at any time, bytes.

    What existed before (weights, inputs) does not count, nor do buffers that a kernel uses for itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        # A view has the storage of an argument; a storage that no argument has is new.
        given = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if id(storage) not in given and storage not in self._known:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._known.add(storage)
        weakref.finalize(storage, self._free, size).atexit = False
        self.live += size
        self.peak = max(self.peak, self.live)

    def _free(self, size: int) -> None:
        self.live -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """The storages of all tensors in ``tree``; they stay alive as long as the list."""
    return [tensor.untyped_storage() for tensor in tree_iter(tree) if isinstance(tensor, Tensor)]


_SCALED_DOT_PRODUCT = F.scaled_dot_product_attention


class _Attention(torch.autograd.Function):
    """The memory of a fused attention kernel and none of its numbers: keeps queries, keys, values, output and a sum for each query.

    Of tensors without content PyTorch would make the quadratic tables of the plain formula instead.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else q.new_empty(*q.shape[:-1], v.shape[-1])  # in the layout of q, as kernels do
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        q, k, v, *_ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _attention(q: Tensor, k: Tensor, v: Tensor, *options: Any, **more: Any) -> Tensor:
    return _Attention.apply(q, k, v) if q.is_meta else _SCALED_DOT_PRODUCT(q, k, v, *options, **more)


def peak_of(velocity: Callable[..., Tensor], parameters: list[Tensor], x: Tensor, t: Tensor, rows: Tensor) -> int:
    """Bytes of one forward and backward of ``velocity`` on top of weights and gradients of the ``parameters``, which stay as they were.

    The gradients exist beforehand, as in every call of an optimiser step but the first.
    """
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        # Replaced by name: a mode for functions is off where checkpointing computes a block again.
        with replaced(F, "scaled_dot_product_attention", _attention), torch.enable_grad(), PeakMemory() as memory:
            velocity(x, t, rows).float().square().mean().backward()
        return memory.peak
    finally:
        for parameter, gradient in zip(parameters, kept):
            parameter.grad = gradient


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """``module.name`` is ``value`` inside."""
    before = vars(module)[name]
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
