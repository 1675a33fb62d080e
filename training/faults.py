"""Faults of the machine, which may pass, told from faults of the data or the model, which do not."""

import re

_MACHINE = r"\b(memory|cuda|cublas\w*|cudnn\w*|hip|mps|nccl)\b"
_PROGRAM = r"same device|device type|on device"  # a tensor in the wrong place stays there


def out_of_memory(error: BaseException) -> bool:
    """Whether a device or the system had too little memory for it."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text


def may_pass(error: BaseException) -> bool:
    """Whether trying again later has a chance."""
    text = str(error).lower()
    return out_of_memory(error) or (re.search(_MACHINE, text) is not None and re.search(_PROGRAM, text) is None)
