"""One process of a headless run that also keeps its gradients: ``python headless_worker.py CONFIG.json GRADIENTS [shard]``.

``shard``: as under accelerate's FSDP configuration, which accelerate itself allows on graphics cards only.
"""

import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "training"))
from bind import bind  # noqa: E402

sys.path.pop(0)
bind()


def keep_gradients(path: Path) -> None:
    """The gradients before every optimiser step, as they are then."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    kept: list[list[torch.Tensor | None]] = []

    def keep(optimiser: torch.optim.Optimizer, *_: object) -> None:
        gradients = [parameter.grad for group in optimiser.param_groups for parameter in group["params"]]
        kept.append([gradient if gradient is None else gradient.clone() for gradient in gradients])
        if torch.distributed.is_initialized() and torch.distributed.get_rank():
            return
        torch.save(kept, path)

    register_optimizer_step_pre_hook(keep)


def shard() -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    from stepwise_grpo.training import headless
    from stepwise_grpo.training.backends.diffusers import model

    connect, split = headless._processes, model.shard

    def sharded() -> object:
        processes = connect()
        processes.state.fsdp_plugin = FullyShardedDataParallelPlugin()  # as the launcher has put the configuration into the environment
        return processes

    def checked(network: object, *more: object) -> None:
        split(network, *more)
        kinds = {("lora" in name, type(parameter.data).__name__) for name, parameter in network.named_parameters()}
        assert kinds == {(True, "Tensor"), (False, "DTensor")}, kinds
        base = [parameter for name, parameter in network.named_parameters() if "lora" not in name]
        held, whole = sum(p.to_local().numel() for p in base), sum(p.numel() for p in base)
        assert held <= 0.51 * whole, (held, whole)
        print(f"this process holds {held / whole:.0%} of the base")

    headless._processes, model.shard = sharded, checked


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    config, gradients, *more = sys.argv[1:]
    keep_gradients(Path(gradients))
    if more:
        shard()
    from stepwise_grpo.training.headless import main

    main([config])
