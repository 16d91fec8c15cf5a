"""The grader's dialogue: the messages that follow each reply.

Invariants:
* the conversation grows by whole messages only, each exactly as the grader would send it;
* a reply either names a legal action, or is answered by a retry message in the same turn;
* the third unparsable reply of one turn ends the episode; the count restarts each turn.
"""

from dataclasses import dataclass

from miner.environments.base import Message
from miner.environments.games.grading import clean_reply, parse_graded_reply
from miner.environments.games.prompts import MAX_ATTEMPTS, PromptFormat
from miner.games import Turn


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a reply.

    Attributes:
        action: the legal action it named, None if it named none.
        messages: messages sent back at once: the retry message after an unparsable reply.
        failed: true if it was the last attempt: the episode is over with score 0.
    """

    action: int | None
    messages: tuple[Message, ...] = ()
    failed: bool = False


class GradedDialogue:
    """One episode's conversation, independent of where its turns come from.

    Call `ask` with each new turn, and `reply` with each reply until it names an action or fails.
    """

    def __init__(self, prompt_format: PromptFormat) -> None:
        self._format = prompt_format
        self.conversation: list[Message] = []

    def ask(self, turn: Turn) -> tuple[Message, ...]:
        """The messages that put `turn` to the policy; the system message comes with the first."""
        new: tuple[Message, ...] = (self._format.turn_message(turn),)
        if not self.conversation:
            new = (self._format.system_message(), *new)
        self.conversation.extend(new)
        self._turn = turn
        self._attempts = 0
        return new

    def reply(self, text: str) -> Verdict:
        """Judge a reply to the current turn."""
        self.conversation.append({"role": "assistant", "content": clean_reply(text)})
        labels = self._turn.labels
        action = parse_graded_reply(text, list(labels), labels)
        if action is not None:
            return Verdict(action)
        self._attempts += 1
        retry = self._format.retry_message(self._attempts)
        self.conversation.append(retry)
        if self._attempts >= MAX_ATTEMPTS:
            return Verdict(None, failed=True)
        return Verdict(None, (retry,))
