"""diffusers models as a ``Policy``, for training without ComfyUI. Nothing else in training/ imports diffusers; nothing here downloads."""
