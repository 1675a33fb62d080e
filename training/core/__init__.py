"""The mathematics of Stepwise-Flow-GRPO: torch and the standard library, no state, no input or output.

Notation (NOTATION.md): time t runs from 1 (noise) to 0 (image); v = x1 - x0; K steps, P prompts, G members a group,
B = P * G rows in prompt-major order. Latents have shape (B, ...) with any number of trailing dimensions.
"""
