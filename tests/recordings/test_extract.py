"""The extract says what the recordings say, except for sentences."""

from typing import Any

import pytest

from tests.mock_env_server.recordings import comparable
from tests.recordings import FILES, WHOLE, read_extract
from tests.recordings.extract import extracted, without_prose

SIZES = {8, 10, 12, 14, 16}


@pytest.mark.skipif(not WHOLE.is_dir(), reason="no recordings beside the checkout")
@pytest.mark.parametrize("name", FILES)
def test_the_extract_is_what_the_recordings_give(name: str) -> None:
    assert read_extract(name) == extracted(name, WHOLE)


def test_all_sizes_seats_and_ways_to_play_are_kept() -> None:
    graded = read_extract("evaluate.jsonl")
    trained = [row for row in read_extract("train_api.jsonl") if "group" not in row]
    for rows in (graded, trained):
        assert {(8 + 2 * (row["task_id"] % 5), row["seed"] % 2) for row in rows} == {
            (size, seat) for size in SIZES for seat in (0, 1)
        }
    assert {row["style"] for row in trained} == {"rest", "args", "kwargs", "call"}
    assert {row["opponent"] for row in trained} == {"random", "mcts"}


STATE = "Current State:\nCurrent point card: 5\nP0 hand: 1 2 \n\n\nYou are Player 0."
ATTEMPTS = ("Think again, this is attempt 1 of 3!", "Think again, this is attempt 2 of 3!")


def test_sentences_become_hashes_and_the_wire_stays() -> None:
    recorded = {
        "observation": f"# Game Rules\nBid well.\n\n# Current Game State\nGame: g\n\n{STATE}",
        "info": {"error": {"type": "invalid_action", "message": "You may not."}},
        "error": "[API_ERROR] ValueError: no",
        "reward": -0.01,
    }
    kept = without_prose(recorded)
    assert kept["observation"].endswith(f"\n\n# Current Game State\nGame: g\n\n{STATE}")
    assert kept["error"].startswith("[API_ERROR] <text ")
    assert kept["info"]["error"]["type"] == "invalid_action"
    assert kept["reward"] == -0.01
    assert not any(said in str(kept) for said in ("Bid well", "may not", "ValueError"))
    assert without_prose("Any other words", "observation").startswith("<text ")
    assert comparable(kept) == comparable(recorded)


def test_messages_keep_the_state_the_replies_and_the_number_of_the_attempt() -> None:
    talk: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": STATE},
        {"role": "assistant", "content": "My answer is 3"},
        *({"role": "user", "content": text} for text in ATTEMPTS),
    ]
    system, turn, reply, first, second = (m["content"] for m in without_prose(talk))
    assert system.startswith("<text ")
    assert (turn, reply) == (STATE, "My answer is 3")
    assert first.replace("attempt 1", "attempt 2") == second
    assert "Think" not in first
