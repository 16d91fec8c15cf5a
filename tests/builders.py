"""Builders of small real objects for tests: models, tokenizers, environments, trajectories."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from miner.environments import (
    Environment,
    EpisodeTask,
    Message,
    Observation,
    ProtocolError,
    Transition,
)
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.renderer import DriftKind
from miner.rollout.trajectory import RolloutRow, Trajectory, TurnRecord

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The plain ChatML template: every message is rendered alone."""

SPACED = CHATML.replace("+ '\\n' + m['content']", "+ ': ' + m['content']").replace(
    "assistant\\n", "assistant: "
)
"""ChatML on one line: the generation prompt ends in a space, which merges with the reply."""

THINK_STRIPPING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{{ m['content'].split('</think>')[-1] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML that forgets the thoughts of past replies."""

TRIMMING = CHATML.replace("m['content']", "m['content'] | trim")
"""ChatML that trims every message."""

PLAIN = (
    "{% for m in messages %}{{ m['role'] + ':\\n' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)
"""A template without special tokens: nothing separates a reply from what follows it."""

INST = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ ' ' + m['content'] | trim + '</s>' }}{% else %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% endif %}{% endfor %}"
)
"""The form of Llama 2 and Mistral, whose replies begin with a space."""

CORPUS = (
    "You play a card game. Current point card: 3\nP0 hand: 1 2 3 4 5 6 7 8\nP1 hand: 1 2 4 5\n"
    "Legal Actions:\n0 -> [P0]Bid: 1\n1 -> [P0]Bid: 2\n12 -> [P0]Bid: 13\nChoose one action id.\n"
)


def trl_template(name: str) -> str:
    """A chat template that TRL ships for tests of its own."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


def build_tokenizer(
    chat_template: str | None = CHATML, vocab_size: int = 400
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer over the corpus, with ChatML's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>"
    )
    built.chat_template = chat_template
    return built


def build_metaspace_tokenizer(chat_template: str = INST) -> PreTrainedTokenizerFast:
    """A tokenizer in the manner of sentencepiece: words begin with a space, decoding drops one."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>", "<s>"], show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS, "[INST] Round 0 9, seed [/INST]"], trainer)
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        pad_token="<unk>",
    )  # fmt: skip
    built.chat_template = chat_template
    return built


def build_qwen3(vocab_size: int = 400, *, seed: int = 0, **config: object) -> Qwen3ForCausalLM:
    """A random two-layer Qwen3 in evaluation mode, with spread-out logits."""
    settings: dict[str, object] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocab_size, **{**settings, **config})).eval()


def build_llama(vocab_size: int = 400, *, seed: int = 0) -> LlamaForCausalLM:
    """A random two-layer Llama without grouped heads, in evaluation mode."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.2,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def save_base(
    folder: Path,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Path:
    """Write a model folder, by default of `build_qwen3` and `build_tokenizer`; returns it."""
    (model or build_qwen3()).save_pretrained(folder)
    (tokenizer or build_tokenizer()).save_pretrained(folder)
    return folder


@torch.no_grad()
def next_logits(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """[vocabulary] for the token after `ids`."""
    logits: torch.Tensor = model(torch.tensor([list(ids)])).logits[0, -1].float()
    return logits


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Of each token of `reply`, by the model's softmax at `temperature`, and by nothing else."""
    ids = torch.tensor([[*prompt, *reply]])
    odds = (model(ids).logits[0, :-1].float() / temperature).log_softmax(-1)
    logprobs: list[float] = odds.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0].tolist()
    return logprobs


SYSTEM: Message = {"role": "system", "content": "Count. Answer with a number."}


def build_task(task_id: int = 0, seed: int = 1) -> EpisodeTask:
    return EpisodeTask("counting", task_id, seed)


class CountingEnvironment:
    """A game of `rounds` rounds; the score is the share of replies that are a number.

    `before` is awaited before each reset (-1) and step (its round), to fail or to hang there.
    `goes_on` says of each round, in turn, how the next one is shown: "in the chat" (as after the
    last one named), "in a fresh chat", or "in the reply", whose text then goes on.
    """

    def __init__(
        self,
        rounds: int = 3,
        server: str = "counting",
        before: Callable[[int], Awaitable[None]] | None = None,
        on_close: Callable[[], None] = lambda: None,
        goes_on: Sequence[str] = (),
    ) -> None:
        self.goes_on = [*goes_on, *["in the chat"] * (rounds - len(goes_on))]
        self._rounds = rounds
        self._server = server
        self._before = before
        self._on_close = on_close
        self._round = 0
        self._numbers = 0
        self._seed = 0
        self.replies: list[str] = []

    @property
    def server(self) -> str:
        return self._server

    async def reset(self, task: EpisodeTask) -> Observation:
        if self._before:
            await self._before(-1)
        self._seed = task.seed
        return Observation((SYSTEM, self._question()))

    async def step(self, text: str) -> Transition:
        if self._before:
            await self._before(self._round)
        self.replies.append(text)
        valid = text.strip().isdecimal()
        self._numbers += valid
        self._round += 1
        done = self._round == self._rounds
        way = "" if done else self.goes_on[self._round - 1]
        shown = {"in the chat": (self._question(),), "in a fresh chat": (SYSTEM, self._question())}
        return Transition(
            messages=shown.get(way, ()),
            fresh=way == "in a fresh chat",
            appended=f"<output>{self._round}</output>" if way == "in the reply" else "",
            reward=0.0,
            done=done,
            score=self._numbers / self._rounds if done else None,
            action=int(text.strip()) if valid else None,
            valid=valid,
        )

    async def close(self) -> None:
        self._on_close()

    def _question(self) -> Message:
        content = f"Round {self._round + 1}, seed {self._seed}\nWhich number comes next?"
        return {"role": "user", "content": content}


@dataclass
class ScriptedSource:
    """Opens what `make(number, avoid)` returns, and keeps count of what is open.

    `number` counts the environments opened so far; `make` gets a callback for `on_close`.
    """

    make: Callable[[int, frozenset[str], Callable[[], None]], Environment]
    capacity: int = 4
    name: str = "scripted"
    applied_rate: float | None = None
    opened: int = 0
    open_now: int = 0
    most_open: int = 0

    def open(self, avoid: Collection[str] = ()) -> Environment:
        number = self.opened
        self.opened += 1
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return self.make(number, frozenset(avoid), self._closed)

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        pass

    async def close(self) -> None:
        if self.open_now:
            raise ProtocolError(f"{self.open_now} environments were left open")

    def _closed(self) -> None:
        self.open_now -= 1


@dataclass
class ScriptedSampler:
    """Answers with what `reply(prompt_ids)` returns; keeps every exchange of each session, and with
    what it was asked for each."""

    reply: Callable[[tuple[int, ...]], Sample]
    exchanges: dict[int | None, list[tuple[tuple[int, ...], Sample]]] = field(default_factory=dict)
    params: list[SamplingParams] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        await asyncio.sleep(0)
        self.params.append(params)
        sample = self.reply(tuple(prompt_ids))
        self.exchanges.setdefault(session, []).append((tuple(prompt_ids), sample))
        return sample

    async def end_session(self, session: int) -> None:
        self.ended.append(session)

    @property
    def only_session(self) -> list[tuple[tuple[int, ...], Sample]]:
        [exchanges] = self.exchanges.values()
        return exchanges


def build_sample(token_ids: Sequence[int], *, stop: bool = True) -> Sample:
    """A sample whose logprobs tell its tokens apart."""
    logprobs = tuple(-0.1 * (1 + i) for i in range(len(token_ids)))
    return Sample(tuple(token_ids), logprobs, "stop" if stop else "length")


def build_trajectory(
    score: float = 1.0,
    *,
    task: EpisodeTask | None = None,
    replies: Sequence[str] = ("1", "2"),
    valid: Sequence[bool] | None = None,
    tokens_per_reply: int = 2,
    shown: Sequence[str] = (),
) -> Trajectory:
    """A trajectory of one row: a prompt of three tokens, two environment tokens between turns."""
    texts = shown or [f"Round {number + 1}" for number in range(len(replies))]
    flags = list(valid) if valid is not None else [True] * len(replies)
    turn_ids: list[int] = []
    for turn in range(len(replies)):
        turn_ids += ([-1, -1] if turn else []) + [turn] * tokens_per_reply
    row = RolloutRow(
        prompt_ids=(5, 6, 7),
        completion_ids=(*range(10, 9 + len(turn_ids)), 1),
        logprobs=tuple(-0.5 if turn >= 0 else 0.0 for turn in turn_ids),
        loss_mask=tuple(int(turn >= 0) for turn in turn_ids),
        turn_ids=tuple(turn_ids),
    )
    turns = tuple(
        TurnRecord(
            messages=({"role": "user", "content": texts[number]},),
            reply=reply,
            action=int(reply) if ok else None,
            valid=ok,
            sampled_tokens=tokens_per_reply,
            finish_reason="stop",
            drift=DriftKind.CLEAN,
        )
        for number, (reply, ok) in enumerate(zip(replies, flags, strict=True))
    )
    return Trajectory(task or build_task(), (row,), turns, score)
