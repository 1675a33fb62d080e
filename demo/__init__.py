"""The small built-in flow model: words, codec, measures and the faces ComfyUI's stock nodes see."""
