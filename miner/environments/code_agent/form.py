"""Forms of code in a reply and of its output in what follows.

Invariant: only a reply's own text is searched for code, and only its first block counts. What is
the policy's and what the environment's is known by who wrote it, never by these tags: a reply that
holds `<output>` itself is a reply like any other.
"""

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """Place of the output."""

    MESSAGE = "message"
    """It is the user's next message."""
    INLINE = "inline"
    """The assistant's own message continues with it."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Text around code and output."""

    code_start: str = "<code>"
    code_end: str = "</code>"
    output_start: str = "<output>"
    output_end: str = "</output>"

    def code(self, reply: str) -> str | None:
        """The code of the first block of `reply`, None without a whole one."""
        _, found, rest = reply.partition(self.code_start)
        code, ended, _ = rest.partition(self.code_end)
        return code if found and ended else None

    def output(self, text: str, most: int | None = None) -> str:
        """Text of an execution for the policy.

        Args:
            most: characters of it that are shown, half of them from its end; None: all.
        """
        if most is not None and len(text) > most:
            marker = f"\n[{len(text) - most:,} characters left out]\n"
            end = most // 2
            text = text[: most - end] + marker + text[len(text) - end :]
        return f"{self.output_start}{text}{self.output_end}"
