"""A replay as a self-contained page: no scripts, no other files, every text escaped."""

from __future__ import annotations

from markupsafe import Markup

from miner.reporting.records import Replay
from miner.reporting.replay_picture import description, headline, replay_picture
from miner.reporting.style import svg_of
from miner.reporting.templates import render


def replay_html(replay: Replay) -> str:
    """The page of one game: the picture, then every round with hands, bids and exact replies."""
    picture = Markup(svg_of(replay_picture(replay, titled=False))) if replay.rounds else None
    return render(
        "replay.html.j2",
        replay=replay,
        headline=headline(replay),
        description=description(replay),
        picture=picture,
        hand_width=2 * min(8, replay.deck_size or 0),
    )
