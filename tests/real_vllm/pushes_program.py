"""Some pushes of adapters into vLLM: `python -m tests.real_vllm.pushes_program OUT`.

Runs with the Python that has vLLM; the results are checked by tests that do not.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from miner.background_loop import BackgroundLoop
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.inference.merged_weights import weights_on_cpu
from miner.learning.learner import Learner
from miner.training.engine_choice import open_engine
from tests.builders import save_base
from tests.inference.test_merged_weights import frozen_hash, move
from tests.real_vllm.colocated_program import all_prompts
from tests.real_vllm.models import PUSHES, model


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    save_base(out / "base", model(tied=False).half())  # an earlier round's merged model
    wanted = ["model.tuning=lora", "model.dtype=float32", "rollout.engine=vllm_colocated"]
    wanted += ["rollout.max_episode_tokens=1024", "rollout.memory_share=0.05"]
    settings = Settings.load(None, wanted, environ={})
    learner = Learner(settings, out / "base")
    with BackgroundLoop() as loop:
        trainer = SimpleNamespace(accelerator=SimpleNamespace(wait_for_everyone=lambda: None))
        engine: Any = open_engine(settings, learner, trainer, loop, lambda: None, Ranks())
        before = frozen_hash(learner.model)
        for step in range(1, PUSHES + 1):
            move(learner.model)
            engine.weights_changed(step)
            engine.sync_weights()
        with engine.playing():
            samples = loop.run(all_prompts(engine.sampler, 1.0))
        engine.close()
        said = {
            "dtype": str(engine._engine.llm.llm_engine.vllm_config.model_config.dtype),
            "frozen": [before, frozen_hash(learner.model)],
            "samples": samples,
        }
    save_file(weights_on_cpu(learner.model), out / "merged.safetensors")
    (out / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
