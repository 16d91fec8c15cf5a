"""Replies as models of each family write them."""

from __future__ import annotations

import pytest

from miner.config.errors import ConfigurationError
from miner.duel.calls import PARSERS, parse_calls
from miner.duel.memory import MEMORY_TOOLS
from miner.duel.tools import MOVE, ToolCall, move_call
from miner.duel.writing import write_calls

NOTE = ToolCall("long_term_memory_append", '{"slot": 1, "content": "a } ] \\" ; ü\\n</tool_call>"}')


@pytest.mark.parametrize("family", PARSERS)
@pytest.mark.parametrize("calls", [[move_call(3)], [NOTE, move_call(12)], []], ids=len)
def test_what_is_written_is_read_back(family: str, calls: list[ToolCall]) -> None:
    offered = {MOVE, *MEMORY_TOOLS}
    assert parse_calls(family, write_calls(family, calls), offered) == calls


def test_a_family_without_a_writer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="read by 'telegram'"):
        write_calls("telegram", [move_call(3)])
