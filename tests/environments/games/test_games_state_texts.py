"""State blocks and labels of the games with hidden cards and dice."""

from miner.environments.games import GameSession


def test_leduc_poker_as_recorded() -> None:
    session = GameSession(200_000_000, 0)
    assert session.state_text() == (
        "Your card: Q♥\nCurrent round: 1/2\nPot size: 2 chips\nYour chips: 99\n"
        "Opponent chips: 99\nYour turn to act"
    )
    assert session.turn().labels == {1: "Call", 2: "Raise"}
    session.play(1)
    assert session.state_text() == (
        "Your card: Q♥\nCurrent round: 1/2\nPot size: 4 chips\nYour chips: 99\n"
        "Opponent chips: 97\nRound 1 betting: Call, Raise\nYour turn to act"
    )
    session.play(0)
    assert session.returns() == [-1.0, 1.0]
    assert session.score() == 12 / 26
    assert [move.label for move in session.history] == [
        "Chance outcome:3", "Chance outcome:4", "Call", "Raise", "Fold",
    ]  # fmt: skip


def test_leduc_poker_shows_the_public_card_in_the_second_round() -> None:
    texts = []
    for seed in range(40):
        session = GameSession(200_000_000, seed)
        while not session.done:
            texts.append(session.state_text())
            session.play(1)
    second = [text for text in texts if "Current round: 2/2" in text]
    assert second
    for text in second:
        lines = dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)
        paired = lines["Your card"][0] == lines["Public card"][0]
        assert lines.get("Hand") == ("Pair" if paired else None)
        assert "Round 1 betting" in lines
    assert any("Hand: Pair" in text for text in second)
    assert not any("Public card" in text for text in texts if text not in second)


def test_liars_dice_as_recorded() -> None:
    session = GameSession(100_000_000, 1)
    assert session.state_text() == (
        "Your dice: [1, 2, 3, 3, 4] (showing: 1, 2, 3, 3, 4)\nNumber of dice per player: 5\n"
        "Total dice in game: 10\nNumber of players: 2\nCurrent player to act: Player 1\n\n"
        'Current bid: "6-6" (claiming at least 6 dice showing 6 across all players)\n'
        "You can either: (1) Make a higher bid, or (2) Call 'Liar'"
    )
    labels = session.turn().labels
    assert list(labels) == list(range(36, 61))
    assert (labels[36], labels[60]) == ("7-1", "Liar")
    session.play(36)
    assert 'Current bid: "9-4"' in session.state_text()
    session.play(52)
    assert session.score() == 0.0


def test_liars_dice_before_the_first_bid() -> None:
    session = GameSession(100_000_000, 2)
    assert "Current bid" not in session.state_text()
    assert "Current player to act: Player 0" in session.state_text()
    assert 60 not in session.turn().labels, "there is no bid to doubt yet"


def test_gin_rummy_hides_the_opponents_cards() -> None:
    for seed in (4, 5):
        session = GameSession(300_000_000, seed)
        own, other = f"Player{seed % 2}", f"Player{1 - seed % 2}"
        text = session.state_text()
        assert f"{own}: Deadwood=" in text
        assert f"{other}:\n" in text
