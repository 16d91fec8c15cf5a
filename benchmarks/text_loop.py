"""Rows of a loop over texts beside ours: `python -m benchmarks.text_loop`.

The loop over texts is that of TRL's proposed code agent in its first form, written anew here: a
conversation is a text, which is tokenised for every turn and once more at the end; special tokens
are left out when it is decoded; results come in the order in which conversations end. Both loops
ask the same tiny base for the same programs (`--model`: another model).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from examples.code_agent_environment import ask
from miner.agents import CodeAgentEnvironment, LocalExecuter, VLLMClientGenerationConfig
from miner.agents.client import Client, SamplerClient
from miner.agents.completions import Completion, Completions
from miner.background_loop import BackgroundLoop
from miner.environments.code_agent import Arithmetic
from miner.environments.code_agent.form import Tags
from miner.inference.transformers.sampler import TransformersSampler
from miner.tiny_model.code_agent.build import build_agent_base

TAGS, MOST_TURNS = Tags(), 8
Ids = tuple[int, ...]


class Witness:
    """A client that remembers every sample, by the prompt that it answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.drawn: dict[Ids, set[Ids]] = defaultdict(set)

    def generate(self, prompts: Sequence[Any], **config: Any) -> Completions:
        """See `Client`."""
        made = self._client.generate(prompts=prompts, **config)
        for item in made.items:
            self.drawn[item.prompt_ids].add(item.ids)
        return made

    def saw(self, item: Completion) -> bool:
        """Whether `item` is samples that were drawn behind each other, and outputs in between."""
        at = 0
        while at < len(item.ids):
            if not item.mask[at]:
                at += 1
                continue
            held, rest = item.prompt_ids + item.ids[:at], item.ids[at:]
            lengths = [len(ids) for ids in self.drawn[held] if rest[: len(ids)] == ids]
            if not lengths:
                return False
            at += max(lengths)
        return True


def over_texts(
    client: Client,
    executer: LocalExecuter,
    tokenizer: PreTrainedTokenizerBase,
    config: VLLMClientGenerationConfig,
    prompts: Sequence[str],
) -> list[tuple[int, list[int], list[int]]]:
    """In the order of ending: whose prompt it answers, its ids, and those that were sampled.

    The first and the last are for the count; the loop itself knows nothing of them.
    """
    going: list[tuple[int, str, list[int]]] = [
        (whose, prompt, []) for whose, prompt in enumerate(prompts) for _ in range(config.n)
    ]
    words = {**vars(config), "n": 1, "stop": [TAGS.code_end]}
    ended: list[tuple[int, str, list[int]]] = []
    for _ in range(MOST_TURNS):
        made = client.generate(prompts=[text for _, text, _ in going], **words)
        pending, codes = [], []
        for (whose, text, sampled), ids in zip(going, made, strict=True):
            said = str(tokenizer.decode(ids, skip_special_tokens=True))
            now = (whose, text + said, sampled + list(ids))
            code = TAGS.code(said) if said.endswith(TAGS.code_end) else None
            if code is None:
                ended.append(now)
            else:
                pending.append(now)
                codes.append(code)
        going = []
        for (whose, text, sampled), output in zip(pending, executer.execute(codes), strict=True):
            shown = TAGS.output(output)
            written = tokenizer(shown, add_special_tokens=False)["input_ids"]
            going.append((whose, text + shown, sampled + list(written)))
        if not going:
            break
    rows = []
    for whose, text, sampled in [*ended, *going]:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        asked = tokenizer(prompts[whose], add_special_tokens=False)["input_ids"]
        rows.append((whose, list(ids[len(asked) :]), sampled))
    return rows


def main() -> None:
    """Play both, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/code-agent/base"))
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=8)
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").is_file():
        build_agent_base(arguments.model)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    problems = Arithmetic()
    numbers = (problems.training(index, 0).task_id for index in range(arguments.prompts))
    prompts = [ask(tokenizer, number) for number in numbers]
    config = VLLMClientGenerationConfig(n=arguments.n, max_tokens=16)
    executer = LocalExecuter()
    with BackgroundLoop() as loop, TransformersSampler(model, tokenizer) as sampler:
        witness = Witness(SamplerClient(sampler, tokenizer, loop))
        texts = over_texts(witness, executer, tokenizer, config, prompts)
        agent = CodeAgentEnvironment(executer, tokenizer, max_turns=MOST_TURNS)
        ours = agent.generate(witness, config, prompts)
    executer.close()
    assert isinstance(ours, Completions)
    eos = {tokenizer.eos_token_id}
    places = [at // config.n for at in range(len(texts))]
    asked = [tuple(tokenizer(prompts[place])["input_ids"]) for place in places]
    counts = {
        "over texts": (
            sum(ids != sampled for _, ids, sampled in texts),
            sum(ids != [i for i in sampled if i not in eos] for _, ids, sampled in texts),
            sum(whose != place for (whose, _, _), place in zip(texts, places, strict=True)),
        ),
        "ours": (
            (differ := sum(not witness.saw(item) for item in ours.items)),
            differ,
            sum(item.prompt_ids != ids for item, ids in zip(ours.items, asked, strict=True)),
        ),
    }
    print(f"{len(texts)} rows | ids differ | not by the end alone | reached another prompt")
    for name, (differ, inside, elsewhere) in counts.items():
        print(f"{name} | {differ} | {inside} | {elsewhere}")


if __name__ == "__main__":
    main()
