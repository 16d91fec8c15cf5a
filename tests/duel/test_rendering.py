"""Prompts by real chat templates, byte for byte, with the tools as serving engines pass them on."""

import json
from pathlib import Path

import pytest
import trl

from miner.duel.tools import shaped
from miner.duel.tournament_files import read_wording
from miner.duel.turn import Request
from miner.rollout.renderer import ChatRenderer
from tests.builders import build_tokenizer
from tests.duel.golden import needs_transcripts, transcript
from tests.duel.stand_ins import asked, tournament_copy

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


def rendered(request: Request, template: str, before: str = "", bos: str = "") -> str:
    """The prompt by a template of that name, with `before` in front of it."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = before + (TEMPLATES / f"{template}.jinja").read_text()
    tokenizer.bos_token = bos or None
    return ChatRenderer(tokenizer).render(request.messages, shaped(request.tools))


@needs_transcripts
@pytest.mark.parametrize("template", ["qwen2_5", "llama3_2", "qwen3_instruct_2507"])
def test_turns_are_rendered_as_recorded(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(wording=read_wording(tournament_copy(tmp_path)))
    [line] = [
        line
        for line in transcript("templates")
        if line["template"] == template
        and line.get("request", {}).get("kind") == "turn"
        and line["tools_variant"] == "sglang_tool_dump"
    ]
    date = f"{{% set date_string = {line['strftime_now']!r} %}}" if line["strftime_now"] else ""
    assert rendered(request, template, date, bos=line["bos_token"]) == line["rendered"]


def test_tools_keep_the_engines_order_of_keys() -> None:
    tools = asked().tools
    engine = shaped(tools)[-1]
    assert list(engine) == ["type", "function"]
    assert list(engine["function"]) == ["description", "name", "parameters", "strict"]
    assert json.dumps(tools[-1]["function"]["parameters"]).startswith('{"properties"')


def test_a_prompt_shows_rules_notes_state_and_tools() -> None:
    request = asked()
    request.notes.call("working_memory_rewrite", {"slot": 2, "content": "raises with a king"})
    shown = rendered(request, "qwen2_5")
    for part in ("leduc_poker", "[2] raises with a king", "Your card: J♠", '"game_action"'):
        assert part in shown
    assert shown.endswith("<|im_start|>assistant\n")
