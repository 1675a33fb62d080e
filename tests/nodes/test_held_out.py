"""Held-Out Pictures on a real server: what is filed, what it says, and what it refuses. No trainer runs here."""

import io
import json
import os
import re
import sys

import pytest
import torch
from PIL import Image

from stepwise_grpo.tests.nodes.graphs import add, change, find, first_loop, version_by_hand
from stepwise_grpo.tools.server import ComfyError
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.looks import look_picture, read_looks, write_look

LIVE, NODE, LIST = "StepwiseGRPO_LiveLoRA", "StepwiseGRPO_HeldOutPictures", "StepwiseGRPO_PromptList"
PROMPTS = "a big red circle at the top\na small blue square at the bottom\na big green cross at the left"


def held_out(server, run, **widgets):
    """Demo model -> Live LoRA -> Held-Out Pictures of three prompts in three steps."""
    graph = first_loop(server, run)
    keep = {"StepwiseGRPO_DemoModel", LIVE, "CLIPTextEncode", "EmptySD3LatentImage", "BasicScheduler", "StepwiseGRPO_PlacementReward"}
    graph = {id: node for id, node in graph.items() if node["class_type"] in keep}
    demo = find(graph, "StepwiseGRPO_DemoModel")
    prompts = add(graph, LIST, clip=[demo, 1], prompts=PROMPTS, prompts_per_iteration=3, iteration=0, seed=0)
    latent, sigmas, negative = (find(graph, kind) for kind in ("EmptySD3LatentImage", "BasicScheduler", "CLIPTextEncode"))
    inputs = {"cfg": 1.0, "seed": 7, "every": 1, "rows_per_call": 0, "reward": [find(graph, "StepwiseGRPO_PlacementReward"), 0], **widgets}
    add(graph, NODE, model=[find(graph, LIVE), 0], vae=[demo, 2], positive=[prompts, 0], negative=[negative, 0], latent_image=[latent, 0], sigmas=[sigmas, 0], **inputs)
    return graph


def says(server, graph):
    """What the node says."""
    return server.run(graph)[find(graph, NODE)]["text"][0]


def test_a_look_is_filed(server):
    graph = held_out(server, "looks é")
    outputs = server.run(graph)[find(graph, NODE)]
    run = RunFolder(server.output, "looks é")
    (look,) = read_looks(run)
    print(outputs, look)
