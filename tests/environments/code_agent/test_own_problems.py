"""Problems of a user's class: the split, what is scored, and what is refused before training."""

import threading
from pathlib import Path

import pytest

from miner.channels.code_agent import CodeAgentChannel
from miner.channels.registry import make_channel
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.environments import EpisodeTask, InfrastructureError, ProtocolError
from miner.environments.code_agent import CodeAgentSource
from miner.environments.code_agent.own import OwnProblems, check_problems
from miner.executors import Execution
from tests.environments.code_agent.test_code_agent import ScriptedExecutor

EXAMPLE = Path(__file__).parents[3] / "examples" / "code_problems.py"
HEAD = "from miner.environments.code_agent import CodeProblems\n"
WHOLE = """
class Double(CodeProblems):
    problems = 50
    def question(self, number):
        return f"twice {number} ?"
    def grade(self, number, reply):
        return float(reply.strip() == str(2 * number))
"""


def written(folder: Path, text: str = WHOLE) -> str:
    path = folder / "mine.py"
    path.write_text(HEAD + text)
    return str(path)


def channel(entry: str, *overrides: str) -> CodeAgentChannel:
    words = ["environment.channel=code_agent", f"environment.code_agent.entry={entry}"]
    made = make_channel(Settings.load(None, [*words, *overrides], environ={}).environment)
    assert isinstance(made, CodeAgentChannel)
    return made


@pytest.mark.parametrize("name", ["", ":Double"])
def test_a_fifth_of_the_problems_is_held_out_and_never_trained_on(
    tmp_path: Path, name: str
) -> None:
    tasks = channel(written(tmp_path) + name).tasks
    held = {task.task_id for task in tasks.held_out(10, 7)}
    trained = {tasks.training(index, 7).task_id for index in range(1000)}
    assert (tasks.name, len(held), len(trained)) == ("Double", 10, 40)
    assert held | trained == set(range(50))
    assert tasks.training(3, 7) == channel(written(tmp_path)).tasks.training(3, 7)
    assert {task.task_id for task in tasks.held_out(11, 7)} == held, "there are no more"


async def test_its_problems_are_asked_and_graded_and_programs_have_the_tools(
    tmp_path: Path,
) -> None:
    tools, executor = tmp_path / "tools.py", ScriptedExecutor(lambda _: Execution("14\n"))
    tools.write_text("def twice(x): return 2 * x")
    made = channel(written(tmp_path), f"environment.code_agent.tools_script={tools}")
    opened = await made.open()
    opened.executor = executor
    environment = opened.open()
    task = made.tasks.training(0, 0)
    asked = await environment.reset(task)
    assert asked.messages[0]["content"] == f"twice {task.task_id} ?"
    shown = await environment.step("<code>print(twice(7))</code>")
    assert shown.messages[0]["content"] == "<output>14</output>"
    assert executor.codes == ["def twice(x): return 2 * x\nprint(twice(7))"]
    over = await environment.step(str(2 * task.task_id))
    assert (over.done, over.score) == (True, 1.0)
    await environment.reset(task)
    assert (await environment.step("none")).score == 0.0


async def test_the_example_is_sound_and_its_check_runs_the_tools(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text("def count(word, letter): return word.count(letter)")
    made = channel(f"{EXAMPLE}:Letters", f"environment.code_agent.tools_script={tools}")
    problem = made.tasks.problem(made.tasks.held_out(10, 7)[0].task_id)
    word, letter = problem.question.split(" in ")[1][:12], problem.question.split("letter ")[1][0]
    assert problem.grade(f"it is 0, or {word.count(letter)}") == 1.0
    assert problem.grade("0") == problem.grade("") == 0.0
    source = await made.open()
    findings = await made.check(source)
    assert (findings.environment, findings.scoring) == ("Letters", "Scores are those of Letters.")
    await source.close()
    tools.write_text("import nothing_of_the_kind")
    made = channel(f"{EXAMPLE}:Letters", f"environment.code_agent.tools_script={tools}")
    source = await made.open()
    with pytest.raises(ConfigurationError, match=r"correct environment.code_agent.tools_script"):
        await made.check(source)
    await source.close()


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("1 / 0\n", ":Double", r"cannot be imported: ZeroDivisionError.*mine.py, line 2"),
        (WHOLE, ":Other", r"no 'Other' in .*CodeProblems in it: Double"),
        (
            WHOLE + "class Other: pass\n",
            ":Other",
            r"write class Other\(CodeProblems\), with CodeProblems from "
            r"miner\.environments\.code_agent$",
        ),
        (WHOLE + WHOLE.replace("Double", "Two"), "", "one CodeProblems in it but Double, Two"),
        (WHOLE.replace("question", "ask"), "", "Double has no question: write def question"),
        (WHOLE.replace("grade", "mark"), "", "Double has no grade: write def grade"),
        (WHOLE.replace("50", "1"), "", "problems is 1: expected 2 or more"),
        (WHOLE + "    def __init__(self, size): pass\n", "", r"cannot be made: TypeError.*size"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(
    tmp_path: Path, text: str, name: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        channel(written(tmp_path, text) + name)
    assert "environment.entry" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"code_agent\.entry 'no\.py': there is no file"):
        channel("no.py")
    with pytest.raises(ConfigurationError, match=r"tools_script 'no\.py' cannot be read"):
        channel(written(tmp_path), "environment.code_agent.tools_script=no.py")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return 1 / len(reply)", r"grade\(\d+, ''\) raised ZeroDivisionError.*mine.py, line 8"),
        ("return float('nan')", "returned nan: expected a number from 0 to 1"),
        ("return 2", "returned 2: expected a number from 0 to 1"),
        ("raise SystemExit", r"grade\(\d+, ''\) raised SystemExit"),
        ("raise BaseException('panic')", r"grade\(\d+, ''\) raised BaseException: panic"),
        ("return None", "returned None: expected a number from 0 to 1"),
    ],
)
async def test_a_wrong_score_is_no_reward_and_is_found_before_training(
    tmp_path: Path, line: str, message: str
) -> None:
    text = WHOLE.replace("return float(reply.strip() == str(2 * number))", line)
    problems = OwnProblems(written(tmp_path, text))
    with pytest.raises(ProtocolError, match=message):
        problems.problem(3).grade("")
    source = CodeAgentSource(problems, ScriptedExecutor())
    with pytest.raises(ConfigurationError, match=rf"{message}.*; correct environment.code_agent"):
        await check_problems(problems, source.called)
    await source.close()


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ('""', r"question\(\d+\) returned '': expected a text"),
        ("1 / 0", r"question\(\d+\) raised ZeroDivisionError"),
        ("str(random.random())", r"a number must always give the same question"),
    ],
)
async def test_questions_are_texts_and_functions_of_their_number(
    tmp_path: Path, question: str, message: str
) -> None:
    text = "import random\n" + WHOLE.replace('f"twice {number} ?"', question)
    made = channel(written(tmp_path, text))
    source = await made.open()
    with pytest.raises(ConfigurationError, match=message):
        await made.check(source)
    await source.close()
    if "random" not in question:  # no reply has caused it
        with pytest.raises(InfrastructureError, match=message):
            OwnProblems(written(tmp_path, text)).problem(3)


async def test_a_grade_that_hangs_loses_its_episode_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.environments.code_agent.environment.METHOD_S", 0.5)
    released = threading.Event()
    monkeypatch.setattr(threading, "released", released, raising=False)
    line = "        import threading\n        reply == 'hang' and threading.released.wait()\n"
    text = WHOLE.replace("        return float", f"{line}        return float")
    source = CodeAgentSource(OwnProblems(written(tmp_path, text)), ScriptedExecutor())
    environment, other, task = source.open(), source.open(), EpisodeTask("Double", 3, 3)
    await other.reset(task)
    for again in ("", ": the same seed and replies are not played again"):
        await environment.reset(task)
        hung = rf"Double.grade \(mine.py, line 9\) has not returned for 0.5 s{again}$"
        with pytest.raises(InfrastructureError, match=hung):
            await environment.step("hang")
    assert (await other.step("6")).score == 1.0
    released.set()
    await source.close()


def test_an_own_fault_of_infrastructure_stays_one(tmp_path: Path) -> None:
    text = WHOLE.replace(
        "return float(reply.strip() == str(2 * number))",
        "from miner.environments import InfrastructureError\n"
        '        raise InfrastructureError("the judge is away", server="judge")',
    )
    with pytest.raises(InfrastructureError, match="the judge is away"):
        OwnProblems(written(tmp_path, text)).problem(3).grade("")
