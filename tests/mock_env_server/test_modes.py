"""Games of /step and /evaluate, against an independent model of the rules as measured."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mock_env_server.rooms import GameRoom
from mock_env_server.settings import Mode, ServerSettings
from mock_env_server.stepping import SteppedGames
from tests.mock_env_server.chat_stub import ChatStub, lowest_legal_id, streamed
from tests.mock_env_server.http import evaluate
from tests.served import serve_in_thread

TIE = -3


@dataclass
class ModelGame:
    """Goofspiel as the contract describes it, sharing no code with the server."""

    task_id: int
    prizes: np.random.RandomState
    opponent: np.random.RandomState
    seat: int
    faulty: bool
    wins: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size = 8 + 2 * (self.task_id % 5)
        self.hands = [list(range(self.size)), list(range(self.size))]
        self.hidden = list(range(self.size))
        self.points = [0, 0]
        self.prize = self._deal()

    def _deal(self) -> int:
        count = len(self.hidden)
        prize = int(self.prizes.choice(self.hidden, p=[1 / count] * count))
        self.hidden.remove(prize)
        return prize

    def play(self, asked: int) -> int:
        """Play one round; the opponent's asked action."""
        own, other = self.seat, 1 - self.seat
        drawn = int(self.opponent.choice(self.hands[other]))
        bids = [0, 0]
        bids[own], bids[other] = asked, drawn
        if self.faulty:
            flat = bids[0] + bids[1] * self.size
            count = len(self.hands[0])
            bids = [self.hands[0][flat % count], self.hands[1][flat // count % count]]
        self._settle(bids)
        if len(self.hands[0]) == 1:
            last = [hand[0] for hand in self.hands]
            self.prize = self.hidden.pop()
            self._settle(last)
        else:
            self.prize = self._deal()
        return drawn

    def _settle(self, bids: list[int]) -> None:
        for hand, bid in zip(self.hands, bids, strict=True):
            hand.remove(bid)
        winner = TIE if bids[0] == bids[1] else int(bids[1] > bids[0])
        self.wins.append(winner)
        if winner != TIE:
            self.points[winner] += self.prize + 1

    @property
    def done(self) -> bool:
        return not self.hands[0]

    @property
    def score(self) -> float:
        """Of the agent's seat."""
        margin = self.points[self.seat] - self.points[1 - self.seat]
        return 0.5 + 0.5 * np.sign(margin)

    def shown(self) -> dict[str, Any]:
        """What the state block has to say."""
        return {
            "prize": self.prize + 1,
            "hidden": "".join(str(card + 1) for card in self.hidden),
            "hands": [[card + 1 for card in hand] for hand in self.hands],
            "wins": self.wins,
            "points": self.points,
        }


def read(observation: str) -> dict[str, Any]:
    """The state block of an observation."""

    def line(pattern: str) -> str:
        return re.search(rf"^{pattern}$", observation, re.MULTILINE)[1]

    return {
        "prize": int(line(r"Current point card: (\d+)")),
        "hidden": line(r"Remaining Point Cards: (\d*)"),
        "hands": [[int(card) for card in line(rf"P{p} hand: ([\d ]*)").split()] for p in (0, 1)],
        "wins": [int(win) for win in line(r"Win sequence: ?([-\d ]*)").split()],
        "points": [
            int(line(r"Player 0: (\d+) points.*")),
            int(line(r".*Player 1: (\d+) points ")),
        ],
    }


@pytest.mark.parametrize("mode", ["faithful", "correct"])
@settings(max_examples=60)
@given(
    task_id=st.integers(0, 99_999_999),
    seed=st.integers(0, 4_294_967_195),
    choices=st.lists(st.integers(0, 10**6), min_size=15, max_size=15),
    opponent=st.sampled_from(["random", "mcts"]),
)
def test_step_plays_what_its_mode_says(
    mode: Mode, task_id: int, seed: int, choices: list[int], opponent: str
) -> None:
    expected = ModelGame(
        task_id,
        np.random.RandomState(seed + 100),
        np.random.RandomState(seed + 2),
        seed % 2,
        mode == "faithful",
    )

    async def play() -> None:
        settings = ServerSettings(mode=mode)
        games = SteppedGames(settings, GameRoom(settings))
        answer = await games.reset(task_id, seed, opponent)
        for choice in choices:
            assert read(answer["observation"]) == expected.shown()
            hand = expected.hands[expected.seat]
            asked = hand[choice % len(hand)]
            drawn = expected.play(asked)
            answer = await games.step(str(asked), answer["episode_id"])
            assert answer["info"]["last_opponent_action"] == drawn
            if expected.done:
                break
            assert (answer["reward"], answer["done"]) == (0.0, False)
        assert answer["done"]
        assert answer["reward"] == expected.score

    asyncio.run(play())


@pytest.mark.parametrize("mode", ["faithful", "correct"])
@pytest.mark.parametrize(("task_id", "seed"), [(0, 0), (4, 3), (12, 4_294_967_290)])
async def test_evaluate_plays_the_card_asked_for_in_both_modes(
    model: ChatStub, mode: Mode, task_id: int, seed: int
) -> None:
    expected = ModelGame(
        task_id,
        np.random.RandomState(seed),
        np.random.RandomState(seed + 4 + (1 - seed % 2)),
        seed % 2,
        faulty=False,
    )
    url = model.url("m", lambda request, n: streamed(lowest_legal_id(request)))
    with serve_in_thread(ServerSettings(mode=mode)) as server:
        graded = await evaluate(server, url, task_id=task_id, seed=seed)
    for request in model.requests["m"]:
        turn = request["messages"][-1]["content"]
        assert read(turn) == expected.shown()
        expected.play(expected.hands[expected.seat][0])
    assert expected.done
    assert graded["score"] == expected.score
