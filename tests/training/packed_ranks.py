"""One of two trainer processes: learns in one pass and in several, and writes what it saw as JSON.

Its files go to a folder of its own in the one that is named, where the reference model lies. As
accelerate does, it takes DeepSpeed's configuration from ACCELERATE_DEEPSPEED_CONFIG_FILE where
ACCELERATE_USE_DEEPSPEED is set.
"""

import json
import os

import torch
import torch.distributed as dist

from miner.training.packed_trainer import PackedTrainer
from miner.training.trainer import grpo_config
from tests.training.packed import BUDGET, WHOLE, learning_model, make_settings, task

CASES = {"plain": {}, "kl": {"beta": 0.5}}
BUDGETS = {"whole": WHOLE, "packed": BUDGET}


def most_of_all(passes):
    most = torch.tensor(passes)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def learned(folder, budget, optimizer):
    """Two steps of plain gradient descent: its log, and what DDP exchanged in each backward."""
    settings = make_settings(folder, budget, learning_rate=0.01, **optimizer)
    args = grpo_config(settings, num_processes=dist.get_world_size())
    args.optim = "sgd"
    model = learning_model(folder.parent)
    trainer = PackedTrainer(
        model=model, args=args, tokens_per_pass=budget, agree=most_of_all, **task()
    )
    exchanged, backward = [], trainer.accelerator.backward

    def watched(loss, **kwargs):
        exchanged.append(getattr(trainer.model_wrapped, "require_backward_grad_sync", None))
        backward(loss, **kwargs)

    trainer.accelerator.backward = watched
    trainer.train()
    steps = [log for log in trainer.state.log_history if "grad_norm" in log]
    return {"steps": steps, "exchanged": exchanged}


def learn(place):
    """All cases, with and without a budget, into found.json."""
    folder = place / f"rank-{os.environ['RANK']}"
    torch.set_num_threads(1)
    if os.environ.get("ACCELERATE_USE_DEEPSPEED"):
        import deepspeed

        deepspeed.init_distributed("gloo")
    else:
        dist.init_process_group("gloo")
    found = {
        case: {name: learned(folder, budget, optimizer) for name, budget in BUDGETS.items()}
        for case, optimizer in CASES.items()
    }
    (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()
