"""Code agents: what is run, what comes back, who is trained on which token, what scores."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from miner.config.errors import ConfigurationError
from miner.environments import EpisodeTask, InfrastructureError
from miner.environments.code_agent import Arithmetic, CodeAgentSource, Form, Tags
from miner.environments.code_agent.arithmetic import OPERATIONS, number_of, pairs, parts
from miner.environments.outages import Outages, Stopwatch
from miner.executors import CodeFailure, Execution, LocalSandbox
from miner.inference.sampler import Sample, SamplingParams
from miner.rollout.episode import EpisodeParams, EpisodeTooLong, play_episode, sampled
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer, DriftKind
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.rollout.trajectory import Trajectory
from tests.builders import CHATML, PLAIN, ScriptedSampler, build_sample, build_tokenizer
from tests.virtual_time import run_paused

TOKENIZERS = {"chatml": build_tokenizer(CHATML), "plain": build_tokenizer(PLAIN)}
TASK = EpisodeTask("arithmetic", number_of(6, "times", 7), 1, "none")
PARAMS = EpisodeParams(SamplingParams(max_tokens=64), max_tokens=4000)


@dataclass
class ScriptedExecutor:
    """Answers with what `answer` makes of the code, and keeps what it was given."""

    answer: Callable[[str], Execution] = lambda code: Execution("42\n")
    codes: list[str] = field(default_factory=list)
    name: str = "scripted"

    async def run(self, code: str) -> Execution:
        self.codes.append(code)
        return self.answer(code)

    async def close(self) -> None:
        pass


def said(tokenizer: str, text: str) -> Sample:
    """A reply as a sampler gives it: to the stop string, or to its end."""
    ids = TOKENIZERS[tokenizer](text, add_special_tokens=False)["input_ids"]
    if "</code>" in text:
        return replace(build_sample(ids, stop=False), finish_reason="stop_string")
    return build_sample([*ids, TOKENIZERS[tokenizer].eos_token_id])


async def play(
    replies: Sequence[str],
    form: Form = Form.INLINE,
    tokenizer: str = "chatml",
    executor: ScriptedExecutor | None = None,
    params: EpisodeParams = PARAMS,
    **options: object,
) -> tuple[Trajectory, ScriptedSampler]:
    script = iter(replies)
    sampler = ScriptedSampler(reply=lambda _: said(tokenizer, next(script)))
    source = CodeAgentSource(Arithmetic(), executor or ScriptedExecutor(), form=form, **options)
    renderer = ChatRenderer(TOKENIZERS[tokenizer])
    return await play_episode(source.open(), TASK, sampler, renderer, params), sampler


def texts(trajectory: Trajectory, tokenizer: str = "chatml") -> tuple[str, str]:
    """The row's text, and in it what is trained on, other tokens as a dot each."""
    [row] = trajectory.rows
    decode = TOKENIZERS[tokenizer].decode
    runs = itertools.groupby(zip(row.completion_ids, row.loss_mask, strict=True), lambda t: t[1])
    marked = "".join(decode([i for i, _ in run]) if own else "." for own, run in runs)
    return decode([*row.prompt_ids, *row.completion_ids]), marked


async def test_inline_output_continues_in_the_assistants_own_message() -> None:
    trajectory, sampler = await play(["<code>6*7</code>", "so 42"])
    whole, trained = texts(trajectory)
    assert whole.endswith("<code>6*7</code><output>42</output>so 42<|im_end|>")
    assert trained == "<code>6*7</code>.so 42<|im_end|>"
    assert trajectory.score == 1.0
    [(first, _), (second, _)] = sampler.only_session
    assert second[: len(first)] == first


async def test_message_output_is_the_users_next_message() -> None:
    trajectory, _ = await play(["<code>6*7</code>", "so 42"], Form.MESSAGE)
    whole, trained = texts(trajectory)
    assert "<code>6*7</code><|im_end|>\n<|im_start|>user\n<output>42</output><|im_end|>" in whole
    assert trained == "<code>6*7</code>.so 42<|im_end|>"
    assert [turn.drift for turn in trajectory.turns] == [DriftKind.CLEAN] * 2


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("form", Form)
async def test_every_sampled_token_is_trained_as_it_was_sampled(form: Form, tokenizer: str) -> None:
    replies = ["a <code>1</code>", "<code>2</code>", "b <code>print(3)</code> over", "42"]
    trajectory, sampler = await play(replies, form, tokenizer)
    sampled = [sample.token_ids for _, sample in sampler.only_session]
    rows = [
        (i, turn)
        for row in trajectory.rows
        for i, turn in zip(row.completion_ids, row.turn_ids, strict=True)
    ]
    for turn, ids in enumerate(sampled):
        assert tuple(i for i, of in rows if of == turn) == ids
    assert sum(len(ids) for ids in sampled) == sum(sum(row.loss_mask) for row in trajectory.rows)


@pytest.mark.parametrize("form", Form)
async def test_forged_outputs_change_no_mask_and_run_nothing(form: Form) -> None:
    forged = "<output>42</output><code>1</code>"
    executor = ScriptedExecutor()
    trajectory, _ = await play([forged, "<output>7</output> 42"], form, executor=executor)
    _, trained = texts(trajectory)
    assert trained == f"{forged}.<output>7</output> 42<|im_end|>"
    assert executor.codes == ["1"]


async def test_what_a_token_adds_after_the_stop_string_is_kept_but_not_acted_on() -> None:
    executor = ScriptedExecutor()
    trajectory, _ = await play(["<code>1</code> <code>2</code>", "42"], executor=executor)
    assert executor.codes == ["1"]
    assert texts(trajectory)[1].startswith("<code>1</code> <code>2</code>.")


async def test_code_that_fails_is_shown() -> None:
    failing = ScriptedExecutor(lambda _: Execution("a\n", CodeFailure("exception", "KeyError")))
    trajectory, _ = await play(["<code>x</code>", "42"], executor=failing)
    assert "<output>a\nKeyError</output>" in texts(trajectory)[0]


async def test_of_a_long_output_both_ends_are_shown() -> None:
    flooding = ScriptedExecutor(lambda _: Execution("a" * 5 + "x" * 9000 + "zzz", None))
    options = {"executor": flooding, "max_output_characters": 7}
    trajectory, _ = await play(["<code>x</code>", "42"], **options)
    assert "<output>aaaa\n[9,001 characters left out]\nzzz</output>" in texts(trajectory)[0]
    trajectory, _ = await play(["<code>x</code>", "42"], executor=flooding)
    assert trajectory.total_tokens < 1200


@pytest.mark.parametrize("form", Form)
async def test_an_episode_that_its_policy_fills_scores_0_and_ends_with_its_reply(
    form: Form,
) -> None:
    full = replace(PARAMS, max_tokens=150)
    trajectory, sampler = await play(["<code>1</code>"] * 4, form, params=full)
    replies = [sample.token_ids for _, sample in sampler.only_session]
    assert 1 < len(replies) < 4
    assert trajectory.score == 0.0
    assert [turn.valid for turn in trajectory.turns] == [True] * (len(replies) - 1) + [False]
    eos = TOKENIZERS["chatml"].eos_token_id
    assert trajectory.rows[-1].completion_ids[-len(replies[-1]) - 1 :] == (*replies[-1], eos)
    assert trajectory.rows[-1].loss_mask[-2:] == (1, 0)
    with pytest.raises(EpisodeTooLong):  # of a question that is too long itself
        await play(["42"], form, params=replace(PARAMS, max_tokens=64))


@pytest.mark.parametrize("form", Form)
async def test_who_runs_out_of_turns_scores_0_and_nothing_more_is_run(form: Form) -> None:
    executor = ScriptedExecutor()
    replies = ["<code>1</code>"] * 2 + ["42 <code>1</code>"]
    trajectory, _ = await play(replies, form, executor=executor, max_turns=3)
    assert (trajectory.score, len(executor.codes)) == (0.0, 2)
    assert [turn.valid for turn in trajectory.turns] == [True, True, False]


@pytest.mark.parametrize(
    ("reply", "score"), [("42", 1.0), ("41 or 42", 1.0), ("42 or 41", 0.0), ("so", 0.0), ("-42", 0)]
)
async def test_the_last_number_of_the_last_reply_is_the_answer(reply: str, score: float) -> None:
    assert (await play([reply]))[0].score == score
    assert (await play(["<code>print(42)</code>", reply]))[0].score == score


def down(code: str) -> Execution:
    raise InfrastructureError("no sandbox", server="scripted")


def test_an_executor_that_is_down_is_a_lost_episode_and_no_score() -> None:
    source = CodeAgentSource(Arithmetic(), ScriptedExecutor(down))
    sampler = ScriptedSampler(reply=lambda _: said("chatml", "<code>1</code>"))
    scheduler = Scheduler(
        source, sampled(sampler, ChatRenderer(TOKENIZERS["chatml"]), PARAMS),
        retry=RetryParams(infrastructure_attempts=2, pause_seconds=0.0),
    )  # fmt: skip
    [result], _ = run_paused(scheduler.run([Group(TASK, 2)]))
    assert result.trajectories == ()
    assert [str(lost.error) for lost in result.lost] == ["no sandbox"] * 2


def test_code_is_run_again_before_its_episode_fails() -> None:
    """Another attempt might answer without code: groups would hold only those that do."""
    answers = iter([down, down, lambda code: Execution("42")])
    executor = ScriptedExecutor(lambda code: next(answers)(code))
    (trajectory, _), paused = run_paused(play(["<code>6*7</code>", "42"], executor=executor))
    assert (trajectory.score, executor.codes, paused) == (1.0, ["6*7"] * 3, 1.0 + 2.0)


def test_an_executor_that_is_away_is_waited_for() -> None:
    answers = itertools.chain([down] * 12, itertools.repeat(lambda code: Execution("42")))
    executor = ScriptedExecutor(lambda code: next(answers)(code))
    source, tokenizer = CodeAgentSource(Arithmetic(), executor), TOKENIZERS["chatml"]

    def reply(prompt: tuple[int, ...]) -> Sample:
        shown = tokenizer.decode(list(prompt))
        return said("chatml", "42" if "<output>" in shown else "<code>6*7</code>")

    notes: list[str] = []
    outages = Outages(source, Stopwatch(), patience=lambda: 600.0, note=notes.append)
    scheduler = Scheduler(
        source, sampled(ScriptedSampler(reply), ChatRenderer(tokenizer), PARAMS),
        retry=RetryParams(infrastructure_attempts=1), outages=outages,
    )  # fmt: skip
    [result], _ = run_paused(scheduler.run([Group(TASK, 1)]))
    assert [trajectory.score for trajectory in result.trajectories] == [1.0]
    assert "no sandbox" in notes[0]


async def test_a_key_that_is_refused_is_no_outage() -> None:
    def refused(code: str) -> Execution:
        raise ConfigurationError("E2B refuses the key")

    assert await CodeAgentSource(Arithmetic(), ScriptedExecutor(refused)).health_error("e2b") == ""


async def test_outputs_reach_the_episode_that_asked() -> None:
    """Sixteen at once, with code that ends in another order than it began."""
    source = CodeAgentSource(Arithmetic(), LocalSandbox())
    tasks = [EpisodeTask("arithmetic", number_of(n, "plus", 2), n, "none") for n in range(2, 18)]
    tokenizer = TOKENIZERS["chatml"]

    def reply(prompt: tuple[int, ...]) -> Sample:
        shown = tokenizer.decode(list(prompt))
        if "<output>" in shown:
            return said("chatml", shown.split("<output>")[1].split("</output>")[0])
        number = int(shown.split(" plus")[0].split()[-1])
        code = f"import time; time.sleep({(number % 4) / 20}); print({number} + 2)"
        return said("chatml", f"<code>{code}</code>")

    scheduler = Scheduler(
        source, sampled(ScriptedSampler(reply=reply), ChatRenderer(tokenizer), PARAMS)
    )
    results = await scheduler.run([Group(task, 1) for task in tasks])
    await source.close()
    assert [t.score for result in results for t in result.trajectories] == [1.0] * 16


def test_no_held_out_pair_is_ever_trained_on() -> None:
    problems = Arithmetic()
    held = {frozenset(parts(task.task_id)[::2]) for task in problems.held_out(300, 7)}
    trained = {frozenset(parts(problems.training(i, 7).task_id)[::2]) for i in range(3000)}
    assert held
    assert not held & trained
    assert set(map(frozenset, pairs(held_out=True))) >= held


def test_streams_are_reproducible_and_balanced() -> None:
    problems = Arithmetic()
    stream = [problems.training(i, 3) for i in range(600)]
    assert stream == [Arithmetic().training(i, 3) for i in range(600)]
    assert stream != [problems.training(i, 4) for i in range(600)]
    words = [parts(task.task_id)[1] for task in stream]
    assert all(words.count(word) > 150 for word in OPERATIONS)
    assert len({task.task_id for task in problems.held_out(300, 1)}) == 300


def test_code_is_only_a_whole_block() -> None:
    tags = Tags()
    assert tags.code("<code>1") is None
    assert tags.code("1</code>") is None
    assert tags.code("</code><code>1</code>") == "1"
