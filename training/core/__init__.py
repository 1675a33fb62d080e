"""The mathematics of the training: torch and the standard library, without state, input or output.

Time runs from 1 (noise) to 0 (image). The rows of a batch are in prompt-major order: all members of a group stand
together. Latents have any number of dimensions behind that of the rows.
"""

# Symbols as in NOTATION.md: v = x1 - x0; K steps, P prompts, G members a group, B = P * G rows; latents (B, ...).
