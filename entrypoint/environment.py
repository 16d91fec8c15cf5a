"""The environment variables every program of the container runs with, in one place.

Invariant: every cache that a library writes is below one writable folder, so that a read-only
root file system, a read-only model cache and a root user without capabilities are enough.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from entrypoint.forward_compatibility import library_path
from entrypoint.paths import Paths
from miner.config.contract import SERVERS_VARIABLE

_WRITABLE_CACHES = {
    "HF_DATASETS_CACHE": "huggingface/datasets",
    "HF_MODULES_CACHE": "huggingface/modules",
    "HF_ASSETS_CACHE": "huggingface/assets",
    "HF_XET_CACHE": "huggingface/xet",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TORCHINDUCTOR_CACHE_DIR": "torch-inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
    "MPLCONFIGDIR": "matplotlib",
    "XDG_CACHE_HOME": "xdg",
    "XDG_CONFIG_HOME": "xdg-config",
}
_WANDB_FOLDERS = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
_REPOSITORY = Path(__file__).resolve().parent.parent
_BEHAVIOUR = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # ranks have a device each, and then it would split a group that some of them are not asked for
    "VLLM_DISTRIBUTED_USE_SPLIT_GROUP": "0",
    # nor do all of them pass a barrier, which a variable of the host's may ask for
    "TORCH_DIST_INIT_BARRIER": "0",
    "DO_NOT_TRACK": "1",
}


def program_environment(
    paths: Paths, inherited: Mapping[str, str], cuda_libraries: Path | None = None
) -> dict[str, str]:
    """`inherited` with offline behaviour and every writable cache below `paths.run_dir`/cache.

    The validator's own HF_HOME and WANDB_* values win; all other cache locations are ours.
    `cuda_libraries` come before all others that a program loads.
    """
    caches = paths.run_dir / "cache"
    environment = {**inherited, **_BEHAVIOUR}
    environment.pop(SERVERS_VARIABLE, None)  # what of it can be used is in the settings
    if cuda_libraries:
        environment |= library_path(cuda_libraries, inherited)
    modules = (str(_REPOSITORY), inherited.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, modules))
    environment |= {name: str(caches / folder) for name, folder in _WRITABLE_CACHES.items()}
    environment.setdefault("HF_HOME", str(paths.cache_dir))
    environment.setdefault("WANDB_MODE", "offline")
    for name in _WANDB_FOLDERS:
        environment.setdefault(name, str(caches / "wandb"))
    return environment


def writable_folders(environment: Mapping[str, str], paths: Paths) -> list[Path]:
    """The folders of `program_environment` that must exist before a program starts."""
    caches = paths.run_dir / "cache"
    values = (Path(environment[name]) for name in (*_WRITABLE_CACHES, *_WANDB_FOLDERS))
    return sorted({folder for folder in values if caches in folder.parents})
