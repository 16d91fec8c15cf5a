"""The example of docs/rollout_functions.md, as it stands there."""

import re
from pathlib import Path

import torch

from tests.builders import build_qwen3, build_tokenizer

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "rollout_functions.md"


def test_the_documents_example_trains(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    example = {}
    exec(compile(code, str(DOCUMENT), "exec"), example)
    model = build_qwen3()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    trainer = example["train"](model, build_tokenizer(), str(tmp_path), steps=2)
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    assert trainer.state.global_step == 2
    assert all(reward < 0 for reward in rewards)
    assert rewards
    assert not torch.equal(before, after)
