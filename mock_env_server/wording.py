"""The prose of this server's answers, in our own words.

Headings, labels and `ID -> label` lines are the wire format and equal the real server's; the
sentences around them are not, and no client should depend on them.
"""

from collections.abc import Sequence

API_TITLE = "mock of the affinetes environment server"
NO_EPISODE = "This needs the episode_id that /reset answered with."
EPISODE_OVER = "This episode has ended; /reset starts another."
UNREADABLE_ACTION = "no id of a legal action was found"
STILL_THINKING = "the opponent has not moved yet; ask again when the earlier /step has answered"
BAD_TIMEOUT = "timeout must be a number of seconds"
INJECTED_FAULT = "fault injected on purpose by the mock environment server"
USAGE = {
    "sdk_style": 'POST /call {"method": NAME, "args": [...], "kwargs": {...}}',
    "restful_style": "POST /NAME {PARAMETER: VALUE, ...}",
}
SIMULTANEOUS_MENU = "Waiting for Player -2 to move..."
"""Text instead of the legal actions when both players move at once."""
_MENU_LIMIT = 10


def unknown_episode(episode_id: object) -> str:
    """Detail of an unknown episode id."""
    return f"No episode {episode_id} here: never started, stopped, or forgotten since. Use /reset."


def not_found(episode_id: object) -> str:
    """Reply of /stop to an unknown id."""
    return f"no episode {episode_id} to stop"


def method_not_found(name: str) -> str:
    """Reply of /call to an unknown method."""
    return f"no method {name!r}; GET /methods lists them"


def first_observation(rules: str, observation: str) -> str:
    """Observation of /reset: the rules, then what every later observation shows too."""
    return f"# Game Rules\n{rules}\n\n# Current Game State\n{observation}"


def observation(game: str, seat: int, state: str, menu: str) -> str:
    """A position as /reset, /step and /state show it."""
    return f"Game: {game}\nYou are Player {seat}.\n\nCurrent State:\n{state}\n\n{menu}"


def menu(choices: Sequence[tuple[int, str]]) -> str:
    """All legal actions of a turn."""
    lines = "".join(f"  {action} -> {label}\n" for action, label in choices)
    return f"Legal Actions:\n{lines}\nAnswer with one ID:"


def invalid_action(reply: str, choices: Sequence[tuple[int, str]]) -> str:
    """Observation of /step without a legal action."""
    lines = "".join(f"  {action} -> {label}\n" for action, label in choices[:_MENU_LIMIT])
    if len(choices) > _MENU_LIMIT:
        lines += f"  ... and {len(choices) - _MENU_LIMIT} more\n"
    return (
        f'Invalid action: "{reply}"\n\nThe first number in the text must be the ID of a legal '
        f"action.\n\nLegal Actions:\n{lines}\nAnswer with one ID:"
    )


def game_over(game: str, seat: int, returns: Sequence[float], score: float) -> str:
    """Observation of a finished episode."""
    own = returns[seat]
    result = "WIN" if own > 0 else "LOSS" if own < 0 else "DRAW"
    return (
        f"Game Over: {game}\nYou were Player {seat}.\n\nFinal Returns: {list(returns)}\n"
        f"Your Return: {own}\nNormalized Score: {score:.3f}\nResult: {result}"
    )


def out_of_time(elapsed_s: float, limit_s: float) -> str:
    """Detail of an /evaluate that ran out of time."""
    return f"Out of time: game not finished after {elapsed_s:.1f}s (limit: {limit_s}s)"


def unsupported_timeout(timeout: object) -> str:
    """Detail of a timeout that /evaluate refuses."""
    return f"timeout {timeout!r}: expected a number of seconds above 0"
