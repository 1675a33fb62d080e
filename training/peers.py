"""The processes that train one run together, as an update sees them: each has whole groups, all have the same weights."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Peers(Protocol):
    """``rank`` 0 .. ``count`` - 1. Every process makes the same calls in the same order."""

    rank: int
    count: int

    def before(self, groups: int) -> int:
        """How many groups the processes before this one have; ``groups``: how many it has itself."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of ``values`` over the processes."""
        ...

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value; NaN where any process has NaN."""
        ...

    def gather(self, values: Tensor, dim: int) -> Tensor:
        """The tensors of all processes joined along ``dim``, in the order of ranks."""
        ...

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Put the sum of all processes' gradients into each process's."""
        ...


class Alone:
    """One process."""

    rank, count = 0, 1

    def before(self, groups: int) -> int:
        return 0

    def sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def gather(self, values: Tensor, dim: int) -> Tensor:
        return values

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        pass


ALONE = Alone()


class Processes:
    """Several processes that torch.distributed connects; ``device`` is where its tensors must lie."""

    def __init__(self, device: torch.device) -> None:
        import torch.distributed as distributed

        self._distributed, self._device = distributed, device
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()

    def before(self, groups: int) -> int:
        return int(sum(self._all([float(groups)])[: self.rank]))

    def sum(self, values: Sequence[float]) -> list[float]:
        return self._all(values).sum(0).tolist()

    def largest(self, values: Sequence[float]) -> list[float]:
        return self._all(values).amax(0).tolist()  # amax keeps NaN

    def gather(self, values: Tensor, dim: int) -> Tensor:
        parts: list[Tensor] = [torch.empty(0)] * self.count
        self._distributed.all_gather_object(parts, values.detach().cpu())
        return torch.cat(parts, dim)

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]  # the same ones in every process
        if not gradients:
            return
        together = torch.cat([gradient.flatten() for gradient in gradients]).to(self._device)
        self._distributed.all_reduce(together)
        for gradient, total in zip(gradients, together.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(total.view_as(gradient))

    def _all(self, values: Sequence[float]) -> Tensor:
        """(processes, values), in fp64."""
        mine = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        rows = [torch.empty_like(mine) for _ in range(self.count)]
        self._distributed.all_gather(rows, mine)
        return torch.stack(rows).cpu()
