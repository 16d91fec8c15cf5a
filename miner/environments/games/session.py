"""One seeded OpenSpiel game between the agent's seat and a built-in opponent.

Invariants:
* after the constructor and after each `play` the game is over or it is the agent's turn: chance
  events and the opponent's moves have been played;
* prizes, cards, dice and the opponent's random stream depend on (task_id, seed, stream) only.
"""

from typing import Literal, NamedTuple

import pyspiel

from miner.config.contract import agent_seat
from miner.environments.games.opponents import (
    ChanceStream,
    Stream,
    chance_seed,
    make_opponent,
    opponent_seed,
)
from miner.games import Turn, game_of

CHANCE = -1
"""The player id of chance events in a history."""

CardApplication = Literal["asked", "faulty"]


class Move(NamedTuple):
    """One event of a game, by `CHANCE` or by a player."""

    player: int
    action: int
    label: str


class GameSession:
    """A game in progress; synchronous, deterministic, not shared between threads.

    Args:
        task_id: names the game and its parameters.
        seed: 0 to `LARGEST_SEED`; fixes the agent's seat and both random streams.
        opponent: "random" or "mcts" (both uniformly random in simultaneous games).
        stream: mode of the server that the random streams follow.
        card_application: "asked" plays the action asked for. "faulty" repeats the defect of the
            real server's /step in simultaneous games: the joint move is packed with the deck
            size, but unpacked as indices into the current hands.

    Raises: `ConfigurationError` for a game or opponent that does not exist, ValueError (numpy's)
    for a seed out of range.
    """

    def __init__(
        self,
        task_id: int,
        seed: int,
        *,
        opponent: str = "random",
        stream: Stream = "evaluate",
        card_application: CardApplication = "asked",
    ) -> None:
        self.task_id = task_id
        self.seed = seed
        self.opponent = opponent
        self.game = game_of(task_id)
        self.game_name = self.game.name
        self._loaded = self.game.load_server(task_id)
        self.agent_seat = agent_seat(seed)
        dynamics = self._loaded.get_type().dynamics
        self.simultaneous = dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        self._faulty = card_application == "faulty" and self.simultaneous
        self._opponent_seat = 1 - self.agent_seat
        self._chance = ChanceStream(chance_seed(seed, stream))
        self._opponent = make_opponent(
            opponent,
            self.game,
            self._loaded,
            opponent_seed(seed, stream, self._opponent_seat),
        )
        self._state = self._loaded.new_initial_state()
        self._last_opponent_action: int | None = None
        self.history: list[Move] = []
        self._advance()

    @property
    def done(self) -> bool:
        """Return whether the game is over."""
        return self._state.is_terminal()

    def legal_actions(self) -> list[int]:
        """Ids the agent may choose from now, ascending; empty when the game is over."""
        return self._state.legal_actions(self.agent_seat)

    def label(self, action: int) -> str:
        """The server's name of one of the agent's legal actions."""
        return self._label(self.agent_seat, action)

    def state_text(self) -> str:
        """The state block that the agent is shown now, as the server shows it."""
        return self.game.server_text(self._state, self.agent_seat)

    def turn(self) -> Turn:
        """The agent's current turn. Call it only while the game is not over."""
        labels = {action: self.label(action) for action in self.legal_actions()}
        return Turn(self.state_text(), self.agent_seat, labels)

    def last_opponent_action(self) -> int | None:
        """Id of the opponent's latest move, None before its first."""
        return self._last_opponent_action

    def returns(self) -> list[float]:
        """OpenSpiel's return of each player, so far."""
        return self._state.returns()

    def score(self) -> float:
        """The agent's return scaled to [0, 1] by the game's range of returns."""
        lowest, highest = self._loaded.min_utility(), self._loaded.max_utility()
        return (self._state.returns()[self.agent_seat] - lowest) / (highest - lowest)

    def play(self, action: int) -> int:
        """Ask for `action`, then play on to the agent's next turn or to the end.

        Returns the action that was really applied for the agent.
        Raises: ValueError when the game is over or `action` is not legal.
        """
        legal = self.legal_actions()
        if action not in legal:
            raise ValueError(
                f"action {action} is not legal in {self.game_name} task {self.task_id} seed "
                f"{self.seed}: expected one of {legal}"
            )
        applied = action
        if self.simultaneous:
            applied = self._play_jointly(action)
        else:
            self._apply(self.agent_seat, action)
        self._advance()
        return applied

    def _play_jointly(self, action: int) -> int:
        other = self._opponent.act(self._state, self._opponent_seat)
        self._last_opponent_action = other
        joint = [action, other] if self.agent_seat == 0 else [other, action]
        if self._faulty:
            joint = self._unpacked(joint)
        for player, chosen in enumerate(joint):
            self.history.append(Move(player, chosen, self._label(player, chosen)))
        self._state.apply_actions(joint)
        return joint[self.agent_seat]

    def _unpacked(self, joint: list[int]) -> list[int]:
        """The joint move that /step of the real server makes of `joint`."""
        flat = joint[0] + joint[1] * self._loaded.num_distinct_actions()
        applied = []
        for player in range(2):
            hand = self._state.legal_actions(player)
            applied.append(hand[flat % len(hand)])
            flat //= len(hand)
        return applied

    def _apply(self, player: int, action: int) -> None:
        self.history.append(Move(player, action, self._label(player, action)))
        self._state.apply_action(action)

    def _advance(self) -> None:
        """Play chance events and the opponent's moves until the agent has to choose."""
        state = self._state
        while not state.is_terminal():
            player = state.current_player()
            if player == pyspiel.PlayerId.CHANCE:
                self._apply(CHANCE, self._chance.draw(state.chance_outcomes()))
            elif player == self._opponent_seat:
                action = self._opponent.act(state, player)
                self._last_opponent_action = action
                self._apply(player, action)
            else:
                return

    def _label(self, player: int, action: int) -> str:
        return self.game.server_label(self._state, player, action)
