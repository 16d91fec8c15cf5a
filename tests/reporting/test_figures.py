"""Figures hold what they should say; how they look was looked at."""

from pathlib import Path

import pytest

from miner.reporting.figures import evaluation_figure, learning_curve
from miner.reporting.records import TARGET_KL
from miner.reporting.style import save_figure, styled, svg_of
from tests.reporting.made import evaluation, interval, step


def test_a_curve_names_its_lines_and_references() -> None:
    checkpoints = [
        evaluation("checkpoint", 0.5 + n / 100, step=n, split="held_out", published=n == 20)
        for n in (0, 10, 20)
    ]
    svg = svg_of(learning_curve([step(n) for n in range(1, 30)], checkpoints))
    for text in (
        "training, sampled", "held-out (95% interval)", "published model",
        "random 0.50", "match (bid = prize) 0.954", "best response 0.958", "training step",
    ):  # fmt: skip
        assert text in svg
    assert svg.count(">expected<") == 2  # one label for random, one for both good policies


def test_a_curves_references_are_those_of_the_sizes_trained_on() -> None:
    svg = svg_of(learning_curve([step(1)], [evaluation("base", 0.5)], sizes=[8]))
    assert "match (bid = prize) 0.924" in svg
    assert "best response 0.932" in svg
    assert "held-out" not in svg


def test_distances_to_the_targets_are_drawn_below_the_scores() -> None:
    taught = [step(n, score=None, episodes=0, metrics={TARGET_KL: 1 / n}) for n in range(1, 9)]
    above, below = learning_curve(taught, []).axes
    assert [line.get_ydata()[-1] for line in below.lines] == [1 / 8]
    assert below.get_yscale() == "log"
    assert {"0.3", "1"} <= {label.get_text() for label in below.get_yticklabels()}
    assert above.get_ylabel().startswith("score")


def test_nothing_yet_is_a_figure_too(tmp_path: Path) -> None:
    for name, figure in {"curve": learning_curve([], []), "groups": evaluation_figure([])}.items():
        path = save_figure(figure, tmp_path / f"{name}.png")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_an_evaluation_figure_names_policies_sizes_and_seats() -> None:
    shown = [evaluation("base", 0.4), evaluation("trained", 0.9, split="grader")]
    svg = svg_of(evaluation_figure(shown))
    for text in (
        "base 0.400",
        "trained 0.900",
        "match (bid = prize), expected",
        "deck size",
        "player 1",
    ):
        assert text in svg
    assert "100 grader episodes each, 95% intervals" in svg


def test_an_evaluation_of_several_games_shows_them_in_the_place_of_seats() -> None:
    games = {f"duel:{game}": interval(0.3) for game in ("leduc_poker", "othello")}
    svg = svg_of(evaluation_figure([evaluation("base", 0.4, by_deck_size={}, by_game=games)]))
    for text in ("Score by game", "leduc poker", "othello"):
        assert text in svg
    assert "player" not in svg


@pytest.mark.parametrize("policies", [1, 2, 6])
def test_a_legend_is_whole_however_many_policies_it_names(policies: int) -> None:
    names = [f"trained model {n}, temperature 1, 8+10+12 cards" for n in range(policies)]
    figure = evaluation_figure([evaluation(name, 0.5) for name in names])
    with styled():
        figure.canvas.draw()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == policies + 1
    shown, (axes,) = legend.get_window_extent(), figure.axes
    assert figure.bbox.x0 <= shown.x0 < shown.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= shown.y0 < shown.y1 <= axes.get_window_extent().y0
    assert axes.get_window_extent().height > 0.55 * 4.8 * figure.dpi, "axes keep their height"


def test_another_game_has_no_known_scores() -> None:
    other = evaluation("base", 0.4, environment="leduc_poker", by_deck_size={})
    svg = svg_of(evaluation_figure([other]))
    assert "bid = prize" not in svg
    assert "deck size" not in svg


@pytest.mark.parametrize("name", ["costs $5 or $6", "<b>&amp;", "a_b^c"])
def test_names_are_shown_as_they_are(name: str) -> None:
    svg = svg_of(evaluation_figure([evaluation(name, 0.5)]))
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"{escaped} 0.500" in svg


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_equal_figures_are_equal_files(tmp_path: Path, suffix: str) -> None:
    first, second = (
        save_figure(evaluation_figure([evaluation("base", 0.5)]), tmp_path / f"{n}.{suffix}")
        for n in (1, 2)
    )
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 5000
