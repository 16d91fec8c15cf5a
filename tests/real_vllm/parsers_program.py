"""Differences between vLLM's tool parsers and ours: `python -m tests.real_vllm.parsers_program`.

Runs with the Python that has vLLM and starts no engine. Prints a JSON list of [family, text, vLLM's
reading, our reading] of the shared cases that differ, and of the first written reply of each family
that does.
"""

import json
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.tool_parsers import ToolParserManager

from miner.duel.calls import FORMS, content_of, parse_calls, write_calls
from miner.duel.tools import ToolCall, move_call, turn_tools, without_thoughts
from miner.duel.wording import own_wording
from tests.duel.test_calls import NOTES, OFFERED, SHARED_CASES

NAMES = {"qwen25": "hermes", "llama3": "llama3_json", "olmo": "olmo3"}
"""vLLM's names of parsers that it calls otherwise."""
MARKS = [*(form.shown for form in FORMS.values()), "</tool_call>", "<|tool_call_end|>"]
MARKS += [
    "<|python_tag|>",
    "<tool_call|>",
    '<|"|>',
    "<think>",
    "</think>",
    "<|channel>",
    "<channel|>",
]


def parsers() -> dict[str, Any]:
    """vLLM's parser of each family, over a vocabulary of the forms' marks."""
    words = {word: number for number, word in enumerate(dict.fromkeys(["x", *filter(None, MARKS)]))}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "x")))
    tools = [ChatCompletionToolsParam(**tool) for tool in turn_tools(own_wording(), range(70))]
    return {
        family: lambda family=family: ToolParserManager.get_tool_parser(NAMES.get(family, family))(
            tokenizer, tools
        )
        for family in FORMS
    }


def main() -> None:
    made = parsers()
    asked: Any = SimpleNamespace(tool_choice="auto", tools=None)

    def difference(family: str, text: str) -> list[Any] | None:
        found = made[family]().extract_tool_calls(text, asked)
        calls = parse_calls(family, text, OFFERED)
        content = without_thoughts(content_of(family, text, calls))
        theirs = [(c.function.name, c.function.arguments) for c in found.tool_calls]
        theirs.append(("content", without_thoughts(found.content or "")))
        ours = [*((c.name, c.arguments) for c in calls), ("content", content)]
        return None if theirs == ours else [family, text, theirs, ours]

    differing = [found for family, text, _ in SHARED_CASES if (found := difference(family, text))]

    @settings(deadline=None, max_examples=60, derandomize=True, report_multiple_bugs=False)
    @given(slot=st.integers(), content=NOTES, action=st.integers())
    def written(family: str, slot: int, content: str, action: int) -> None:
        note = json.dumps({"content": content, "slot": slot}, ensure_ascii=False)
        text = write_calls(family, [ToolCall("working_memory_rewrite", note), move_call(action)])
        if found := difference(family, text):
            raise AssertionError(json.dumps(found))

    for family in FORMS:
        try:
            written(family)
        except AssertionError as error:
            differing.append(json.loads(str(error)))
    print(json.dumps(differing))


if __name__ == "__main__":
    main()
