"""The one loop that plays episodes, and the chat that a text's author is shown."""

import pytest

from miner.environments import InfrastructureError, ProtocolError, Transition
from miner.environments.playing import TextConversation, play
from tests.builders import SYSTEM, CountingEnvironment, build_task


class Said:
    """A conversation with these replies; keeps every chat it was shown."""

    def __init__(self, *replies):
        self.replies = iter(replies)
        self.shown = []
        self.closed = 0

    async def answer(self, chat):
        self.shown.append(list(chat.messages))
        reply = next(self.replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self):
        self.closed += 1


def question(number):
    content = f"Round {number}, seed 1\nWhich number comes next?"
    return {"role": "user", "content": content}


def answer(content):
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("way", "shown"),
    [
        ("in the chat", [SYSTEM, question(1), answer("1"), question(2)]),
        ("in a fresh chat", [SYSTEM, question(2)]),
        ("in the reply", [SYSTEM, question(1), answer("1<output>1</output>")]),
    ],
)
async def test_the_chat_continues_as_the_environment_wants(way, shown):
    conversation, turns = Said("1", "2", "3"), []
    environment = CountingEnvironment(3, goes_on=[way])
    player = TextConversation(conversation.answer, conversation.close)
    player.on_turn = lambda reply, to: turns.append((reply, to.action))
    assert await play(environment, build_task(), player) == 1.0
    assert conversation.shown[0] == [SYSTEM, question(1)]
    assert conversation.shown[1] == shown
    last = [answer("1<output>1</output>2")] if way == "in the reply" else [*shown[-1:], answer("2")]
    assert conversation.shown[2][-len(last) - 1 : -1] == last
    assert turns == [("1", 1), ("2", 2), ("3", 3)]
    assert conversation.closed == 1


async def test_the_history_shows_what_was_recorded():
    class Recording(CountingEnvironment):
        async def step(self, text):
            return Transition((question(2),), 0.0, done=False, recorded="short")

    conversation = Said("long", ProtocolError("enough"))
    with pytest.raises(ProtocolError, match="enough"):
        await play(
            Recording(), build_task(), TextConversation(conversation.answer, conversation.close)
        )
    assert conversation.shown[1][-2:] == [answer("short"), question(2)]
    assert conversation.closed == 1


@pytest.mark.parametrize("at", [-1, 0])
async def test_the_player_is_closed_when_the_environment_fails(at):
    async def fail(round_number):
        if round_number == at:
            raise InfrastructureError("gone")

    conversation = Said("1")
    environment = CountingEnvironment(before=fail)
    with pytest.raises(InfrastructureError):
        await play(
            environment, build_task(), TextConversation(conversation.answer, conversation.close)
        )
    assert conversation.closed == 1
