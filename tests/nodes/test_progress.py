"""What the page sees while the nodes work, and how fast they stop. No trainer runs here."""

import pytest

from stepwise_grpo.tests.nodes.graphs import change, find, first_loop
from stepwise_grpo.tests.nodes.live import watch
from stepwise_grpo.training.job import RunFolder

SAMPLER, PREVIEW, TRAINER = (f"StepwiseGRPO_{name}" for name in ("StepwiseSDESampler", "TweediePreviewReward", "GRPOLoRATrainer"))


def test_x(server):
    graph = change(first_loop(server, "watched"), "BasicScheduler", steps=5)
    change(graph, SAMPLER, rows_per_call=1)
    change(graph, PREVIEW, rows_per_call=3, substeps=3)
    import time
    t=time.time()
    seen = watch(server, graph)
    print(time.time()-t)
    for kind in (SAMPLER, PREVIEW, TRAINER):
        s = seen.of(find(graph, kind))
        print(kind, s.bars, s.texts, [p.size for _, p in s.pictures])
    print(seen.end)
