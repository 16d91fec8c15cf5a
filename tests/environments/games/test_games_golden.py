"""Graded transcripts of the real server, word for word in the format that they teach.

Those of /reset and /step are replayed on the mock server: tests/mock_env_server.
"""

from typing import Any

from miner.environments.games import (
    GameSession,
    GradedDialogue,
    PromptFormat,
)


def _play(session: GameSession, dialogue: GradedDialogue, replies: list[str]) -> float:
    """Feed `replies` to the dialogue; the score at the end."""
    dialogue.ask(session.turn())
    for text in replies:
        verdict = dialogue.reply(text)
        if verdict.failed:
            return 0.0
        if verdict.action is not None:
            session.play(verdict.action)
            if not session.done:
                dialogue.ask(session.turn())
    return session.score()


def _shown_events(session: GameSession) -> list[tuple[int, int, str]]:
    """The history as the server reports it: without the opponent's half of a joint move."""
    return [
        (move.player, move.action, move.label)
        for move in session.history
        if not session.simultaneous or move.player in (-1, session.agent_seat)
    ]


def _learn(extra: dict[str, Any]) -> PromptFormat:
    return PromptFormat.learn(extra["conversation"], task_id=extra["task_id"], seed=extra["seed"])


def test_one_episode_teaches_the_format_of_all(graded_episodes: list[dict[str, Any]]) -> None:
    extras = [episode["response"]["result"]["extra"] for episode in graded_episodes]
    formats = {_learn(extra) for extra in extras}
    assert len(formats) == 2, "episodes with a retry teach one format, those without another"

    own = PromptFormat.own("goofspiel").retry_parts
    (complete,) = (learned for learned in formats if learned.retry_parts != own)
    (partial,) = (learned for learned in formats if learned.retry_parts == own)
    sizes, seats, retries = set(), set(), 0
    for episode, extra in zip(graded_episodes, extras, strict=True):
        session = GameSession(extra["task_id"], extra["seed"])
        sizes.add(extra["task_id"] % 5)
        seats.add(session.agent_seat)
        retries += len(episode["chats"]) > 16
        replies = [chat["reply"] for chat in episode["chats"]]
        whole, part = GradedDialogue(complete), GradedDialogue(partial)
        _play(session, whole, replies)
        _play(GameSession(extra["task_id"], extra["seed"]), part, replies)
        assert whole.conversation == extra["conversation"]
        turns = [m for m in extra["conversation"] if "Legal Actions" in m["content"]]
        assert [m for m in part.conversation if "Legal Actions" in m["content"]] == turns
    assert sizes == {0, 1, 2, 3, 4}
    assert seats == {0, 1}
    assert retries


def test_other_games_and_failed_cases_are_reproduced(graded_case: dict[str, Any]) -> None:
    result = graded_case["response"]["result"]
    extra = result["extra"]
    session = GameSession(extra["task_id"], extra["seed"], opponent=extra["opponent_type"])
    dialogue = GradedDialogue(_learn(extra))
    replies = [m["content"] for m in extra["conversation"] if m["role"] == "assistant"]
    score = _play(session, dialogue, replies) if replies else dialogue.ask(session.turn())
    assert dialogue.conversation == extra["conversation"]
    if extra["final_return"] is not None:
        assert score == result["score"]
        assert session.returns() == extra["all_returns"]
        assert _shown_events(session) == [
            (event["player_id"], event["action"], event["action_str"])
            for event in extra["action_history"]
        ]
