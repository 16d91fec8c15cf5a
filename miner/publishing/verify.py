"""One question: can the grader use this model folder? Answered cheaply or in full."""

from pathlib import Path

from miner.config.contract import FIRST_FORMAT_DTYPE, ServedDtype
from miner.publishing.structure import ModelReport, check_structure


def verify_model(
    path: Path,
    *,
    load: bool,
    strict: bool = True,
    dtype: ServedDtype = FIRST_FORMAT_DTYPE,
) -> ModelReport:
    """Check the model folder at `path`.

    Args:
        load: read every weight and load the model in `dtype` on the CPU, as the grader would
            (imports torch); otherwise only JSON files and safetensors headers are read.
        strict: raise for parts that a published model must keep and a base may lack: chat template,
            end and padding token, weights and logits within `dtype`.

    Raises: `UnverifiedModelError` naming folder and defect in one sentence.
    """
    report = check_structure(path, strict=strict)
    if not load:
        return report
    from miner.publishing.load_check import check_loaded

    return check_loaded(path, report, strict=strict, dtype=dtype)
