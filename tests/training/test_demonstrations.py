"""The warm start: which rows its steps learn from, and what a model learns from them."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event, current_thread
from threading import enumerate as running_threads
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from miner.config.errors import ConfigurationError
from miner.config.settings import RewardSettings, Settings
from miner.distributed.ranks import Ranks
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.opponents import Opponents
from miner.duel.channel.tasks import duel_of, duel_task
from miner.duel.demonstrations import Demonstration
from miner.duel.memory import Notes, WordCounter
from miner.duel.table import Table
from miner.duel.turn import next_request
from miner.duel.wording import own_wording
from miner.environments.base import EpisodeTask, Message
from miner.games import GAMES
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import RolloutRow
from miner.training import demonstrations, teachers
from miner.training.demonstrations import WarmStart, warm_start
from miner.training.episodes import encode_task
from miner.training.rollout_function import RolloutFunction, TrlRollout, all_moves_credit
from miner.training.teachers import Teachers
from tests.builders import build_tokenizer
from tests.learning.test_trainer import make_trainer

RENDERER = ChatRenderer(build_tokenizer())
GAMES_PLAYED = '["leduc_poker", "goofspiel"]'


def settings_with(*overrides: str) -> Settings:
    return Settings.load(
        None,
        [
            "environment.channel=duel",
            f"environment.games={GAMES_PLAYED}",
            "demonstrations.share=0.5",
            "demonstrations.rows=12",
            "demonstrations.processes=0",
            *overrides,
        ],
        environ={},
    )


@pytest.fixture(autouse=True)
def _no_other_tests_teachers() -> None:
    """Those of a step that a test before did not ask for would call what this one puts in their
    place."""
    for thread in running_threads():
        if thread.name == "teachers":
            thread.join()


class GamePlayed(Exception):
    """Own games were asked for."""


def _warm_start(settings: Settings, step: int = 0) -> WarmStart:
    source = DuelSource(Opponents(list(GAMES)), own_wording(), family="qwen25")
    warm = warm_start(settings, Ranks(), RENDERER, source, step)
    assert warm
    return warm


def _teachers(settings: Settings) -> Teachers:
    return Teachers(settings, 0, 1, deepcopy(RENDERER), own_wording(), WordCounter(), "qwen25")


def _played(warm: WarmStart, fraction: Callable[[int], float] = lambda step: 0.0) -> TrlRollout:
    """The trainer's rollout function, without games of its own."""

    def play(groups: Any) -> Any:
        raise GamePlayed

    rollout = RolloutFunction(play, RewardSettings(), RENDERER.eos_token_id, Ranks())
    return warm.before(rollout, fraction)


def _at(step: int, *, takes_trees: bool = True) -> Any:
    return SimpleNamespace(state=SimpleNamespace(global_step=step), takes_trees=takes_trees)


def test_a_step_has_its_decisions_each_with_shares_of_its_replies_and_none_sampled() -> None:
    rows = _warm_start(settings_with()).rows(3)
    weights: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        weights.setdefault(row.prompt_ids, []).append(row.weight or 0.0)
        assert all(map(math.isnan, row.logprobs))
        assert row.loss_mask == (1,) * len(row.completion_ids)
        assert row.completion_ids[-1] == RENDERER.eos_token_id
    assert len(weights) == 12
    assert len(rows) > 12
    assert [sum(shares) for shares in weights.values()] == pytest.approx([1.0] * 12)


def test_a_step_does_not_wait_for_its_prompts_to_be_encoded(monkeypatch: Any) -> None:
    """The device would be idle meanwhile; and no tokenizer serves two threads."""
    asked = []
    for name in ("render", "encode", "encode_reply"):
        original = getattr(ChatRenderer, name)

        def spied(self: Any, *given: Any, original: Any = original) -> Any:
            asked.append((self, current_thread().name))
            return original(self, *given)

        monkeypatch.setattr(ChatRenderer, name, spied)
    warm = _warm_start(settings_with())
    made_here = len(asked)  # the copy's own checks
    assert warm.rows(0)
    assert warm.rows(1)
    assert {thread for _, thread in asked[made_here:]} == {"teachers"}
    assert RENDERER not in {renderer for renderer, _ in asked}


def test_a_model_without_trees_learns_one_reply_of_each_decision() -> None:
    whole, single = (_warm_start(settings_with()).rows(3, every=every) for every in (True, False))
    assert len(single) == 12 < len(whole)
    assert [row.weight for row in single] == [1.0] * 12
    replies = {(row.prompt_ids, row.completion_ids) for row in whole}
    assert replies >= {(row.prompt_ids, row.completion_ids) for row in single}
    columns = _played(_warm_start(settings_with()))(["task"] * 16, _at(0, takes_trees=False))
    assert sum(map(any, columns["env_mask"])) == 12


def test_steps_differ_and_are_made_again_alike() -> None:
    warm = _warm_start(settings_with())
    assert warm.rows(0) == _warm_start(settings_with()).rows(0)
    assert warm.rows(0) != warm.rows(1)
    assert warm.rows(0) != _warm_start(settings_with("seed=1")).rows(0)


@pytest.mark.parametrize("named", [False, True])
def test_own_games_learn_the_replies_that_were_taught(named: bool) -> None:
    settings = settings_with(f"reward.named={str(named).lower()}", "reward.credit=all_moves")
    source = DuelSource(Opponents(list(GAMES)), own_wording(), family="qwen25")
    credit = all_moves_credit(settings.reward, RENDERER, source, settings.demonstrations)
    assert credit is not None
    task = duel_task("leduc_poker", 7, 0, "random")
    pick = credit.guide(lambda: 1.0)(task)
    assert pick is not None
    request = next_request(
        Table(GAMES["leduc_poker"], 7), [Notes(WordCounter())] * 2, own_wording()
    )
    assert request is not None
    own = pick(request.messages)
    assert own is not None
    assert own.startswith(("Raise\n", "Call\n", "Fold\n")) == named
    taught = {RENDERER.encode_reply(f"{word}\n")[:-1] for word in ("Raise", "Call", "Fold")}
    rows = _warm_start(settings).rows(0)
    assert (
        any(row.completion_ids[: len(words)] == words for row in rows for words in taught) == named
    )


def test_the_replies_of_a_decision_stay_next_to_each_other() -> None:
    """Records write the prompt that they share once."""
    columns = _played(_warm_start(settings_with()))(["task"] * 5, _at(0))
    prompts = [tuple(ids) for ids in columns["prompt_ids"]]
    changes = sum(one != other for one, other in itertools.pairwise(prompts))
    assert changes == len(set(prompts)) - 1 == 11


def test_columns_have_a_part_for_each_prompt() -> None:
    columns = _played(_warm_start(settings_with()))(["task"] * 16, _at(0))
    assert len(columns["turn_ids"]) == len(columns["weights"]) == len(columns["turn_rewards"]) == 16
    taught = sum(map(any, columns["env_mask"]))
    weights = [weight for part in columns["weights"] for weight in part]
    assert taught == len(_warm_start(settings_with()).rows(0))
    assert weights.count(None) == len(columns["prompt_ids"]) - taught == max(0, 16 - taught)


def test_own_games_are_played_once_the_share_is_used_up() -> None:
    warm = _played(_warm_start(settings_with()), lambda step: step / 10)
    warm(["task"] * 2, _at(4))
    with pytest.raises(GamePlayed):
        warm([encode_task(duel_task("goofspiel", 1, 0, "random"))] * 2, _at(5))


def test_without_a_share_there_is_no_warm_start() -> None:
    settings = settings_with("demonstrations.share=0")
    source = DuelSource(Opponents(list(GAMES)), own_wording(), family="qwen25")
    assert warm_start(settings, Ranks(), RENDERER, source) is None


def test_a_teacher_that_fails_loses_its_rows_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = teachers.demonstrate

    def failing(task: Any, *args: Any) -> Any:
        if "goofspiel" in task.environment:
            raise RuntimeError("no solution")
        return whole(task, *args)

    monkeypatch.setattr(teachers, "demonstrate", failing)
    rows = _warm_start(settings_with("demonstrations.rows=6")).rows(0)
    assert len({row.prompt_ids for row in rows}) == 6


@pytest.mark.parametrize("own", [1, 3])
def test_games_have_their_share_of_the_decisions_however_long_they_are(
    monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    named = ["leduc_poker"] * own + ["othello"]  # two turns and thirty
    monkeypatch.setattr(teachers, "demonstrate", _turns)
    games = f"environment.games={json.dumps(named)}"
    made = _teachers(settings_with(games, "demonstrations.rows=24"))._demonstrations(0)
    counts = Counter(demonstration.game for demonstration in made)
    assert counts == {"leduc_poker": 24 * own / len(named), "othello": 24 / len(named)}


def test_notes_are_not_preferred_where_a_game_has_room_for_few_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def game(*given: Any) -> list[Demonstration]:
        notes, *moves = _turns(*given)
        return [replace(notes, is_note=True), *moves]

    monkeypatch.setattr(teachers, "demonstrate", game)
    warm = _teachers(settings_with('environment.games=["othello"]', "demonstrations.rows=2"))
    made = [each for step in range(60) for each in warm._demonstrations(step)]
    assert len(made) == 120
    assert 0.05 < sum(each.is_note for each in made) / len(made) < 0.3  # one in six


def _turns(task: Any, style: Any, rng: Any) -> list[Demonstration]:
    """As many turns as such a game has at most, without playing it."""
    game = duel_of(task)[0].name
    texts = (f"{task} {turn}" for turn in range(2 if game == "leduc_poker" else 6))
    return [Demonstration(game, ({"role": "user", "content": text},), (), {}) for text in texts]


def test_a_teacher_that_other_work_holds_up_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, clock = [], itertools.count(0.0, 100.0)

    def noted(task: Any, *args: Any) -> list[Demonstration]:
        asked.append(task.environment)
        return _turns(task, *args)

    monkeypatch.setattr(teachers, "demonstrate", noted)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    _teachers(settings_with("demonstrations.rows=6"))._demonstrations(0)
    assert len(asked) > 2


def test_a_teacher_that_is_slow_is_asked_for_one_game_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, whole = [], teachers.demonstrate

    def noted(task: Any, *args: Any) -> Any:
        asked.append(task.environment)
        return whole(task, *args)

    monkeypatch.setattr(teachers, "demonstrate", noted)
    monkeypatch.setattr(teachers, "SLOW_SECONDS", -1.0)
    rows = _warm_start(settings_with("demonstrations.rows=100")).rows(0)
    assert rows
    assert set(asked) == {"duel:leduc_poker", "duel:goofspiel"}
    assert asked.count("duel:goofspiel") == 1


def test_teachers_play_before_the_first_step_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run's begin where it goes on."""
    steps: Queue[int] = Queue()
    monkeypatch.setattr(Teachers, "_demonstrations", lambda self, step: steps.put(step) or [])
    warm = _warm_start(settings_with(), step=7)
    assert steps.get(timeout=60) == 7
    warm.rows(7)
    assert steps.get(timeout=60) == 8, "the next step's wait until they are asked for"


def test_a_run_of_demonstrations_alone_ends_without_own_games() -> None:
    """The clock may be beyond its end when a step begins."""
    columns = _played(_warm_start(settings_with("demonstrations.share=1")), lambda step: 1.0)(
        ["task"] * 2, _at(0)
    )
    assert any(columns["env_mask"])


def test_own_games_are_played_where_teachers_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, whole = Event(), teachers.demonstrate
    monkeypatch.setattr(teachers, "demonstrate", lambda *args: answered.wait() and whole(*args))
    warm = _warm_start(settings_with())
    prompts = [encode_task(duel_task("goofspiel", 1, 0, "random"))] * 2
    monkeypatch.setattr(demonstrations, "MOST_SECONDS", 0.01)
    with pytest.raises(GamePlayed):
        _played(warm)(prompts, _at(0))
    answered.set()
    monkeypatch.setattr(demonstrations, "MOST_SECONDS", 60.0)
    assert warm.rows(1) == [], "each step would wait as long"


def test_other_channels_have_no_teachers() -> None:
    with pytest.raises(ConfigurationError, match="only duels have"):
        settings_with("environment.channel=builtin")


def test_the_trainer_learns_the_replies_of_the_teachers(tmp_path: Path) -> None:
    """Through TRL's own loop, as in a run."""
    settings = settings_with("environment.games=['leduc_poker']", "demonstrations.rows=4")
    warm = _warm_start(settings)
    trainer = make_trainer(tmp_path, _played(warm))
    before = _log_probability(trainer.model, warm.rows(0))
    trainer.train()
    assert trainer.state.global_step == 2
    assert _log_probability(trainer.model, warm.rows(0)) > before + 0.05


def _log_probability(model: torch.nn.Module, rows: Sequence[RolloutRow]) -> float:
    """Mean over the replies' tokens, in nats."""
    found = []
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        reply = len(row.completion_ids)
        with torch.no_grad():
            odds = model(input_ids=ids).logits[0, -reply - 1 : -1].log_softmax(-1)
        found.append(float(odds.gather(-1, ids[0, -reply:, None]).mean()))
    return sum(found) / len(found)


def test_shares_follow_the_teachers_values(monkeypatch: pytest.MonkeyPatch) -> None:
    chat: Message = {"role": "user", "content": "x"}
    made = Demonstration("leduc_poker", (chat,), (), {"a": 0.50, "b": 0.49})
    monkeypatch.setattr(teachers, "demonstrate", lambda *_: [made])
    rows = _warm_start(settings_with("demonstrations.rows=1", "reward.tau=0.01")).rows(0)
    best = math.e / (1 + math.e)
    assert [row.weight for row in rows] == pytest.approx([best, 1 - best])


def _of_rank(rank: int, settings: Settings, data: Any = None) -> WarmStart:
    """One of two processes."""
    ranks: Any = SimpleNamespace(count=2, rank=rank)
    source = DuelSource(Opponents(list(GAMES)), own_wording(), family="qwen25")
    return WarmStart(settings, ranks, RENDERER, source, data)


def test_no_two_steps_or_processes_have_the_same_games(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nothing(task: EpisodeTask, *_: object) -> list[Demonstration]:
        asked.append(str(task))
        return []

    monkeypatch.setattr(teachers, "demonstrate", nothing)
    settings = settings_with("demonstrations.rows=6")
    for warm in (_of_rank(0, settings), _of_rank(1, settings)):
        for step in range(2):
            assert warm.prepare(step).result() == ([], [])
    assert len(set(asked)) == len(asked) > 4


def test_decisions_are_divided_among_processes() -> None:
    rows = _of_rank(1, settings_with()).rows(0)
    assert len({row.prompt_ids for row in rows}) == 6


def test_half_of_the_replies_are_those_of_mounted_data() -> None:
    asked, row = [], RolloutRow((1,), (2,), (math.nan,), (1,), (-1,))

    def some(replies: int, usual: float, seed: str) -> list[RolloutRow]:
        asked.append((replies, current_thread().name))
        return [row]

    warm = _of_rank(0, settings_with(), SimpleNamespace(some=some))
    warm.prepare(0).result()
    assert asked[0] == (3, "teachers"), "beside the trainer"
    *taught, last = warm.rows(0)
    assert last == row
    assert len({each.prompt_ids for each in taught}) == 3
