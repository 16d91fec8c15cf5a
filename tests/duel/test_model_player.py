"""A model in this process as a player: its template, its tokens, its calls, its limits."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import trl

from miner.duel.channel.environment import DuelSource
from miner.duel.channel.opponents import Opponents
from miner.duel.channel.tasks import duel_task
from miner.duel.match import Limits, play_match
from miner.duel.memory import Notes, WordCounter
from miner.duel.outcome import Cause
from miner.duel.play import Rules, play_game
from miner.duel.players.catalog import make_player
from miner.duel.players.model import ModelPlayer, load_model_player
from miner.duel.wording import own_wording
from miner.games import GAMES
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.episode import EpisodeParams, play_episode
from miner.rollout.model_folder import LoadedChat
from miner.rollout.renderer import ChatRenderer
from tests.builders import build_qwen3, build_tokenizer, save_base
from tests.duel.stand_ins import Scripted, lowest_call

TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
LEDUC = GAMES["leduc_poker"]
RULES = Rules(5, own_wording())


def _called(name: str, **arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


class _Caller:
    """A sampler that reads the legal ids in its prompt and calls with the first."""

    def __init__(self, tokenizer) -> None:
        self._tokenizer = tokenizer
        self.params: list[SamplingParams] = []
        self.prompts: list[tuple[int, ...]] = []

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        self.params.append(params)
        self.prompts.append(tuple(prompt_ids))
        prompt = self._tokenizer.decode(prompt_ids, skip_special_tokens=False)
        text = _called("working_memory_append", slot=1, content="hm")
        if legal := re.findall(r"^(\d+) -> ", prompt, re.MULTILINE):
            text += "\n" + _called("game_action", action_id=int(legal[0]))
        ids = (
            *self._tokenizer.encode(text, add_special_tokens=False),
            self._tokenizer.eos_token_id,
        )
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def end_session(self, session: int) -> None:
        pass


@pytest.fixture
def tokenizer():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _player(tokenizer, *, context: int) -> tuple[ModelPlayer, _Caller]:
    sampler = _Caller(tokenizer)
    chat = LoadedChat(tokenizer, ChatRenderer(tokenizer), ())
    return ModelPlayer("m", sampler, chat, family="qwen25", context=context), sampler


async def test_a_models_calls_are_played_and_counted(tokenizer) -> None:
    player, sampler = _player(tokenizer, context=10**6)
    match = await play_match(LEDUC, player, Scripted("b", lowest_call), RULES, Limits(pairs=2))
    assert match.failure is None
    assert [record.forfeit for record in match.games] == [None] * 4
    usage = match.games[0].usage[0]
    assert usage.turns + usage.reflections == 1 + usage.turns
    assert usage.prompt_tokens > 500 * usage.turns
    assert usage.tokens > 0
    assert {params.temperature for params in sampler.params} == {0.0}
    assert {params.max_tokens for params in sampler.params} == {512, 384}


async def test_a_forfeits_reply_is_shown_as_a_server_returns_it(tokenizer) -> None:
    """The text before the calls, then the calls; a server drops what follows them."""

    class Illegal(_Caller):
        async def sample(self, prompt_ids, params, *, session=None) -> Sample:
            text = f"<think>x</think> well {_called('game_action', action_id=77)} indeed"
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            ids = (*ids, self._tokenizer.eos_token_id)
            return Sample(ids, (0.0,) * len(ids), "stop")

    chat = LoadedChat(tokenizer, ChatRenderer(tokenizer), ())
    player = ModelPlayer("m", Illegal(tokenizer), chat, family="qwen25", context=10**6)
    match = await play_match(LEDUC, player, Scripted("b", lowest_call), RULES, Limits(pairs=1))
    shown = {record.forfeit.reply for record in match.games if record.forfeit}
    assert shown == {'well\ngame_action({"action_id": 77})'}


@pytest.mark.parametrize("seat", [0, 1])
async def test_training_samples_the_very_prompts_of_a_duel(tokenizer, seat: int) -> None:
    """Token by token, with tools and the notes of earlier turns; each turn is a row of its own."""
    player, sampler = _player(tokenizer, context=10**6)
    players = [player, make_player("random", ["leduc_poker"])]
    notes = [Notes(player.counter), Notes(WordCounter())]
    record = await play_game(LEDUC, 78, players, notes, RULES, first_seat=seat)

    source = DuelSource(
        Opponents(["leduc_poker"]), own_wording(), family="qwen25", counter=player.counter
    )
    trajectory = await play_episode(
        source.open(),
        duel_task("leduc_poker", 78, seat, "random"),
        trained := _Caller(tokenizer),
        ChatRenderer(tokenizer),
        EpisodeParams(SamplingParams(512, 1.0), 10**6),
    )
    turns = record.usage[seat].turns
    assert trained.prompts == sampler.prompts[:turns]
    assert [row.prompt_ids for row in trajectory.rows] == trained.prompts
    assert len(trajectory.rows) == turns > 1
    assert "[1] hm" in trajectory.turns[1].messages[0]["content"]
    sampled = [turn.sampled_tokens for turn in trajectory.turns]
    assert [sum(row.loss_mask) for row in trajectory.rows] == sampled


async def test_calls_that_special_tokens_mark_reach_the_parser(tokenizer) -> None:
    """As Mistral and Llama mark theirs; a reply's plain text would lose the mark."""
    tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})

    class Mistral(_Caller):
        async def sample(self, prompt_ids, params, *, session=None) -> Sample:
            text = '[TOOL_CALLS] [{"name": "game_action", "arguments": {"action_id": 1}}]'
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            ids = (*ids, self._tokenizer.eos_token_id)
            return Sample(ids, (0.0,) * len(ids), "stop")

    source = DuelSource(Opponents(["leduc_poker"]), own_wording(), family="mistral")
    trajectory = await play_episode(
        source.open(),
        duel_task("leduc_poker", 78, 0, "random"),
        Mistral(tokenizer),
        ChatRenderer(tokenizer),
        EpisodeParams(SamplingParams(512, 1.0), 10**6),
    )
    assert {turn.action for turn in trajectory.turns} == {1}


async def test_a_prompt_that_leaves_no_room_for_a_reply_forfeits(tokenizer) -> None:
    player, sampler = _player(tokenizer, context=1000)
    match = await play_match(LEDUC, player, Scripted("b", lowest_call), RULES, Limits(pairs=1))
    assert [r.forfeit.cause for r in match.games if r.forfeit] == [Cause.CONTEXT] * 2
    assert sampler.params == []


async def test_a_model_folder_plays(tmp_path: Path, tokenizer) -> None:
    model = build_qwen3(vocab_size=len(tokenizer), max_position_embeddings=16384)
    player = load_model_player(save_base(tmp_path / "tiny", model, tokenizer), "tiny")
    try:
        match = await play_match(LEDUC, player, Scripted("b", lowest_call), RULES, Limits(pairs=1))
    finally:
        await player.close()
    assert match.failure is None
    assert [r.forfeit.cause for r in match.games if r.forfeit] == [Cause.NO_CALL] * 2
