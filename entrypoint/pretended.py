"""Machines and models that are not there, for tests and for a dry run: one plans before one rents.

`--dry-run --gpus 4xH100-80GB --model-config 7B`.
"""

import re
from pathlib import Path

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.hardware import GIB, Gpu, Hardware
from entrypoint.memory import ModelShape
from entrypoint.model_facts import ModelFacts, architecture_of, shape_of
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import read_json

CAPABILITIES = {
    "T4": (7, 5),
    "A100": (8, 0),
    "A6000": (8, 6),
    "RTX4090": (8, 9),
    "L40S": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
}
_FORM = re.compile(r"([1-9]\d?)x([A-Za-z0-9]+)-([1-9]\d*)GB")
# the tournament's container limits (CONTRACT 1.5)
_CPUS_PER_GPU, _MEMORY_PER_GPU = 24, 110 * GIB
_CPUS_WITHOUT, _MEMORY_WITHOUT = 8, 32 * GIB

QWEN = ("Qwen2.5", "Qwen2ForCausalLM")
LLAMA = ("Llama-3.1", "LlamaForCausalLM")
NAMED = {
    "0.5B": (*QWEN, ModelShape(494_032_768, 24, 896, 4864, 14, 2, 64, 151936, 32768)),
    "1.5B": (*QWEN, ModelShape(1_543_714_304, 28, 1536, 8960, 12, 2, 128, 151936, 32768)),
    "3B": (*QWEN, ModelShape(3_085_938_688, 36, 2048, 11008, 16, 2, 128, 151936, 32768)),
    "7B": (*QWEN, ModelShape(7_615_616_512, 28, 3584, 18944, 28, 4, 128, 152064, 32768)),
    "8B": (*LLAMA, ModelShape(8_030_261_248, 32, 4096, 14336, 32, 8, 128, 128256, 131072)),
    "14B": (*QWEN, ModelShape(14_770_033_664, 48, 5120, 13824, 40, 8, 128, 152064, 131072)),
}
"""Family, architecture and shape by the names of sizes, from these models' config.json files."""
SIZES = {size: shape for size, (_, _, shape) in NAMED.items()}
BYTES_PER_WEIGHT = 2  # base models come in 16 bits


def pretend_hardware(inventory: str, driver: str = "580.95.05") -> Hardware:
    """A machine of "COUNTxNAME-SIZEGB" ("0": no GPU) with the tournament's limits per GPU.

    Raises: `Failure` (ARGUMENTS) with the forms and names that are known.
    """
    note = f"pretended: {inventory}"
    if inventory == "0":
        return Hardware((), None, _CPUS_WITHOUT, _MEMORY_WITHOUT, 8 * GIB, note)
    match = _FORM.fullmatch(inventory)
    if not match or match[2] not in CAPABILITIES:
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"--gpus is {inventory!r}, expected 0 or a form such as 4xH100-80GB with one of "
            f"{', '.join(CAPABILITIES)}",
        )
    count, name, size = int(match[1]), match[2], int(match[3])
    gpus = tuple(Gpu(i, f"NVIDIA {name}", size * GIB, CAPABILITIES[name]) for i in range(count))
    shared = (8 if count < 4 else 16) * GIB
    return Hardware(gpus, driver, _CPUS_PER_GPU * count, _MEMORY_PER_GPU * count, shared, note)


def pretend_model(given: str) -> ModelFacts:
    """A model of a named size, or of a config.json (the file or its folder) without its weights.

    Raises: `Failure` (ARGUMENTS) with the sizes that are known, `Failure` (MODEL) for a file from
    which no shape can be read.
    """
    if (size := given.upper()) in NAMED:
        family, architecture, shape = NAMED[size]
        return _facts(architecture, shape, f"as large as {family}-{size}")
    path = Path(given)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise Failure(
            ExitStatus.ARGUMENTS,
            f"--model-config is {given!r}, expected a model's config.json or one of "
            f"{', '.join(SIZES)}",
        )
    try:
        config = read_json(file)
    except UnverifiedModelError as error:
        raise Failure(ExitStatus.MODEL, f"--model-config: {error}") from None
    return _facts(architecture_of(config), shape_of(config), f"of {file}")


def _facts(architecture: str, shape: ModelShape, what: str) -> ModelFacts:
    return ModelFacts(
        architecture=architecture,
        dtype="BF16",
        weight_bytes=BYTES_PER_WEIGHT * shape.parameters,
        shape=shape,
        counted=False,
        gaps=(f"pretended: {what}; weights and tokenizer were not looked at",),
    )
