"""The two parsers read replies as the server does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.environments.games import clean_reply, parse_graded_reply, parse_step_action

LEGAL = (0, 2, 7, 12)
LABELS = {action: f"[P0]Bid: {action + 1}" for action in LEGAL}
BETS = {0: "Fold", 1: "Call", 2: "Raise"}


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("7", 7),
        ("  007\n", 7),
        ("12", 12),
        ("3", None),
        ("99", None),
        ("-7", 7),
        ("7.", 7),
        ("**2**", 2),
        ("I pick 12", 12),
        ("I could play 12 but I choose 2.", 2),
        ("7 or 2 or 0", 0),
        ("3 or 7", 7),
        ("12.5", 12),
        ("0.5", 0),
        ("3.5", None),
        ("007!", None),
        ("action7", None),
        ("7th", None),
        ("P0", None),
        ("[P0]Bid: 8", 7),
        ("[P0]Bid: 13", 0),  # as text it contains the label of action 0, "[P0]Bid: 1"
        ("p0 bid 8", 7),
        ("[P0]Bid: 12", 12),
        ("Bid: 13", None),
        ("", None),
        (" \n ", None),
        ("no idea", None),
        ("<think>0 or 2</think>7", 7),
        ("<THINK>0</THINK>\n7", 7),
        ("<think>0</think>7<think>2</think>", 7),
        ("<think>7</think>", None),
        ("7\n<think>better 0", 7),
        ("<think>7", None),
        ("reasoning about 0 ... </think>\n\n7", 7),
        ("0</think>2</think>7", 7),
        ("9" * 5000, None),
        ("٧", 7),
        ("it is ٧", None),
    ],
)
def test_the_grader_reads(reply: str, action: int | None) -> None:
    assert parse_graded_reply(reply, LEGAL, LABELS) == action


@pytest.mark.parametrize(
    ("reply", "action"),
    [("Raise", 2), ("i CALL that", 1), ("fold or call", 0), ("call, not 2", 2), ("check", None)],
)
def test_the_grader_reads_labels_where_no_id_stands(reply: str, action: int | None) -> None:
    assert parse_graded_reply(reply, list(BETS), BETS) == action


@given(st.text(max_size=60) | st.text(alphabet="<>/think 0127\n-.[]PBid:", max_size=60))
def test_any_reply_gives_a_legal_action_or_none(reply: str) -> None:
    assert parse_graded_reply(reply, LEGAL, LABELS) in (None, *LEGAL)
    number = parse_step_action(reply)
    assert number is None or number >= 0


@given(st.sampled_from(LEGAL), st.text(alphabet="ab c\n", max_size=20))
def test_think_text_never_decides(action: int, noise: str) -> None:
    for thought in LEGAL:
        reply = f"<think>{noise}{thought}{noise}</think>{action}"
        assert parse_graded_reply(reply, LEGAL, LABELS) == action


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("  7 \n", "7"),
        ("<think>a\nb</think>\n\n7", "7"),
        ("5\n<think>unclosed", "5"),
        ("a</think>b</think> c", "c"),
        ("one\n\n\n\ntwo", "one\n\ntwo"),
        ("<think>only</think>", ""),
        ("<think>1</think>2" + "<think>" * 200_000, "2"),  # at once, not in hours
    ],
)
def test_the_conversation_keeps_replies_without_thoughts(reply: str, kept: str) -> None:
    assert clean_reply(reply) == kept


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("3", 3),
        ("-3", 3),
        ("2 or 5", 2),
        ("1.0", 1),
        ("<think>6</think>1", 6),
        ("[P0]Bid: 5", 0),
        ("Action: 3", 3),
        ("abc", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_step_reads_the_first_number(reply: str, number: int | None) -> None:
    assert parse_step_action(reply) == number
