"""Base models of other people's families: each loads, is handed over first, and can play."""

import json
import sys
from itertools import product
from types import SimpleNamespace

import pytest

from miner.config.settings import Settings
from miner.environments.base import EpisodeTask
from miner.environments.builtin import BuiltinSource
from miner.environments.games import parse_graded_reply
from miner.environments.listing import parse_listing
from miner.inference.sampler import Sample, SamplingParams
from miner.publishing.publisher import Publisher
from miner.publishing.verify import verify_model
from miner.rollout.episode import EpisodeParams, play_episode
from miner.rollout.model_folder import load_chat
from miner.rollout.renderer import DriftKind
from miner.training.episodes import with_episode_limit
from miner.training.preparation import prepare_run
from tests.base_models.families import FAMILIES, make_folder
from tests.base_models.vocabularies import missing

pytestmark = pytest.mark.long

TOOL = {
    "type": "function",
    "function": {
        "name": "game_action",
        "description": "Play.",
        "parameters": {"type": "object", "properties": {"action_id": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def base(request, tmp_path_factory):
    """A family's folder, published once as a run's start does it."""
    family = request.param
    if absent := missing(family.name):
        pytest.skip(absent)
    folder = tmp_path_factory.mktemp(family.name)
    tokenizer = make_folder(family, folder / "base")
    settings = Settings.load(
        None,
        [
            f"model.path={folder / 'base'}",
            f"output.dir={folder / 'out'}",
            f"run_dir={folder / 'run'}",
            "environment.channel=builtin",
        ],
        environ={},
    )
    prepare_run(settings, in_process=True)
    return SimpleNamespace(
        family=family,
        tokenizer=tokenizer,
        settings=settings,
        chat=load_chat(folder / "base"),
        published=load_chat(folder / "out"),
    )


class ReplyWriter:
    """A sampler that reads the prompt's last list of actions, and fails on every other turn."""

    def __init__(self, tokenizer, renderer):
        self._tokenizer, self._renderer = tokenizer, renderer
        self._failed = False

    async def sample(self, prompt_ids, params, *, session=None):
        shown = self._tokenizer.decode(list(prompt_ids))
        reply = str(min(parse_listing(shown[shown.rindex("Legal Actions:") :])))
        self._failed = not self._failed
        ids = self._renderer.encode_reply("?" if self._failed else reply)
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def end_session(self, session):
        pass


def test_the_base_is_at_the_output_path_and_verifies(base):
    folder = base.settings.output.dir
    assert Publisher(folder, in_process=True).current().step == 0
    verify_model(folder, load=False, strict=True)


def test_fixes_are_reported_and_nothing_else_is_changed(base):
    assert len(base.chat.changes) == (1 if base.family.changes else 0) or base.family.changes[1:]
    said = " ".join(base.chat.changes)
    assert [word for word in base.family.changes if word not in said] == []
    if not base.family.changes:
        assert base.published.tokenizer.chat_template == base.tokenizer.chat_template


def test_the_published_folder_is_played_as_it_was_trained(base):
    assert base.published.changes == ()
    assert base.published.tokenizer.chat_template == base.chat.tokenizer.chat_template
    settings_file = base.settings.output.dir / "tokenizer_config.json"
    older_servers_read = json.loads(settings_file.read_text()).get("chat_template")
    assert older_servers_read in (None, base.chat.tokenizer.chat_template)
    assert base.family.changes == () or older_servers_read is not None


@pytest.mark.parametrize(("size_index", "seat"), product(range(5), (0, 1)))
async def test_every_deck_size_fits_with_a_retry_in_every_turn(base, size_index, seat):
    settings = with_episode_limit(base.settings, base.chat.renderer, 8192)
    params = EpisodeParams(SamplingParams(16), settings.rollout.episode_limit)
    task = EpisodeTask("goofspiel", 995 + size_index, 40 + seat)
    trajectory = await play_episode(
        BuiltinSource().open(),
        task,
        ReplyWriter(base.tokenizer, base.chat.renderer),
        base.chat.renderer,
        params,
    )
    turns = 7 + 2 * size_index
    assert len(trajectory.turns) == 2 * turns
    assert sum(not turn.valid for turn in trajectory.turns) == turns
    assert [turn.drift for turn in trajectory.turns] == [DriftKind.CLEAN] * 2 * turns
    assert len(trajectory.rows) == 1
    held = trajectory.rows[0].prompt_ids + trajectory.rows[0].completion_ids
    text = base.tokenizer.decode(list(held))
    assert all(turn.messages[-1]["content"] in text for turn in trajectory.turns)


def test_the_limit_has_room_for_real_servers_wording(base):
    fitted = with_episode_limit(base.settings, base.chat.renderer, context=sys.maxsize)
    longest = fitted.rollout.episode_limit
    assert 4367 < longest < 8192  # of a recorded game without retries; what the plan allows


def test_a_taught_reply_is_encoded_as_the_prompt_continues(base):
    renderer = base.chat.renderer
    text = renderer.render([{"role": "user", "content": "Your move?"}])
    prompt = renderer.encode(text)
    for reply in ("5", "12", "Bid: 13\n12"):
        *ids, _ = renderer.encode_reply(reply)
        whole = renderer.encode(text + reply)
        assert whole == (*prompt, *ids) or whole[: len(prompt)] != prompt


def test_a_taught_reply_ends_as_the_template_ends_it(base):
    renderer, asked = base.chat.renderer, {"role": "user", "content": "Your move?"}
    text = renderer.render([asked])
    whole = renderer.render([asked, {"role": "assistant", "content": "5"}, asked])
    *_, last = renderer.encode_reply("5")
    assert whole.startswith(text + "5" + base.tokenizer.decode([last]))


def test_thoughts_do_not_eat_the_reply(base):
    prompt = base.chat.renderer.render([{"role": "user", "content": "Your move?"}])
    assert prompt.count("<think>") == prompt.count("</think>")
    assert parse_graded_reply("3", [3], {3: "x"}) == 3


def test_tools_are_shown_where_the_family_has_them(base):
    shown = base.chat.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Play."}, {"role": "user", "content": "Your move?"}],
        tools=[TOOL],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert ("game_action" in shown) is base.family.calls_tools
    assert "Your move?" in shown
