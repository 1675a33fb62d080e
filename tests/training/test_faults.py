"""Which faults are the machine's and may pass."""

import pytest
import torch

from stepwise_grpo.training.faults import may_pass, out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory"),
    ],
)
def test_too_little_memory_may_pass(error):
    assert out_of_memory(error) and may_pass(error)


def test_a_fault_of_the_card_may_pass():
    error = RuntimeError("CUDA error: unspecified launch failure")
    assert may_pass(error) and not out_of_memory(error)


@pytest.mark.parametrize(
    "words",
    [
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "mat1 and mat2 shapes cannot be multiplied (6x32 and 48x64)",
        "the relationship of these tensors is unclear",  # has h-i-p in it
        "Input type (float) and bias type (c10::Half) should be the same",
    ],
)
def test_a_fault_that_comes_back_does_not(words):
    assert not may_pass(RuntimeError(words))
