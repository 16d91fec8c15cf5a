"""Every transcript of the real server is reproduced: chance, opponent, texts, parser, scores."""

from __future__ import annotations

from typing import Any

from miner.environments.games import (
    GameSession,
    GradedDialogue,
    PromptFormat,
    parse_step_action,
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


def test_a_graded_episode_is_reproduced(graded_episode: dict[str, Any]) -> None:
    result = graded_episode["response"]["result"]
    extra = result["extra"]
    session = GameSession(extra["task_id"], extra["seed"], opponent=extra["opponent_type"])
    dialogue = GradedDialogue(_learn(extra))
    score = _play(session, dialogue, [chat["reply"] for chat in graded_episode["chats"]])

    assert dialogue.conversation == extra["conversation"]
    assert _shown_events(session) == [
        (event["player_id"], event["action"], event["action_str"])
        for event in extra["action_history"]
    ]
    assert score == result["score"]
    assert session.agent_seat == extra["llm_player_id"]
    if extra["final_return"] is not None:
        assert session.returns() == extra["all_returns"]
        assert session.done


def test_each_chat_request_follows_from_the_replies_before(
    graded_episode: dict[str, Any],
) -> None:
    extra = graded_episode["response"]["result"]["extra"]
    session = GameSession(extra["task_id"], extra["seed"])
    dialogue = GradedDialogue(_learn(extra))
    dialogue.ask(session.turn())
    for chat in graded_episode["chats"]:
        assert dialogue.conversation == chat["request"]["messages"]
        action = dialogue.reply(chat["reply"]).action
        if action is not None:
            session.play(action)
            if not session.done:
                dialogue.ask(session.turn())


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


def _steps(calls: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    """(method, action text, result) of each call that answered with an episode's state."""
    steps = []
    for call in calls:
        response = call["response"]
        result = response.get("result") if isinstance(response, dict) else None
        if not isinstance(result, dict) or not result.get("info", {}).get("game_name"):
            continue
        body = call["request"] if isinstance(call["request"], dict) else {}
        method = body.get("method") or call["path"].strip("/")
        action = body.get("action") or body.get("kwargs", {}).get("action")
        steps.append((method, action or next(iter(body.get("args", [])), ""), result))
    return steps


def _check_step(session: GameSession, method: str, text: str, result: dict[str, Any]) -> None:
    error = result["info"].get("error", {}).get("type")
    if method == "step" and error == "invalid_action":
        assert parse_step_action(text) not in session.legal_actions()
    elif method == "step" and error is None:
        action = parse_step_action(text)
        assert action is not None
        session.play(action)
        assert result["info"]["last_opponent_action"] == session.last_opponent_action()
        assert result["done"] == session.done
        assert result["reward"] == (session.score() if session.done else 0.0)
    if not result["done"] and "Current State:\n" in result["observation"]:
        shown = result["observation"].split("Current State:\n")[1]
        assert shown.split("\n\nWaiting for")[0] == session.state_text()


def test_a_training_episode_is_reproduced(train_episode: dict[str, Any]) -> None:
    session = GameSession(
        train_episode["task_id"],
        train_episode["seed"],
        opponent=train_episode["opponent"],
        stream="train",
        card_application="faulty",
    )
    steps = _steps(train_episode["calls"])
    assert len(steps) > 7
    for method, text, result in steps:
        assert result["info"]["llm_player_id"] == session.agent_seat
        _check_step(session, method, text, result)
    assert session.done


def test_replies_that_step_refuses_and_accepts(refusals: dict[str, Any]) -> None:
    info = refusals["calls"][0]["response"]["result"]["info"]
    session = GameSession(info["task_id"], info["seed"], stream="train", card_application="faulty")
    steps = _steps(refusals["calls"])
    assert len(steps) >= 5
    for method, text, result in steps:
        _check_step(session, method, text, result)


def test_openings_of_other_games_are_reproduced(opening: dict[str, Any]) -> None:
    info = opening["info"]
    session = GameSession(info["task_id"], info["seed"], stream="train")
    state, listed = (
        opening["observation"].split("Current State:\n")[1].split("\n\nLegal Actions:\n")
    )
    assert session.state_text() == state
    labels = session.turn().labels
    lines = [f"  {action} -> {label}" for action, label in labels.items()]
    assert lines == listed.split("\n\nYour choice")[0].split("\n")
