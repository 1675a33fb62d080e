"""Everything that is not ComfyUI's graph: the maths, the run on disk, and the trainer process."""
