"""Updates that must not happen, since something in them is not finite."""

import logging
import math
from collections.abc import Collection

logger = logging.getLogger(__name__)


class TrainingDivergedError(RuntimeError):
    """Updates stayed not finite: starting again from the newest checkpoint is the way back."""


class UpdateGuard:
    """Counts updates that must not happen: skipped one by one, and ended when they do not stop.

    Invariants: weights never take a step along a gradient that is not finite, or that came of a
    loss or of log-probabilities that are not; a checkpoint is never declared complete while updates
    are being skipped, so that the newest complete one is from before.

    Args:
        most: so many in a row are skipped; the next one ends training.

    Attributes:
        streak: skipped ones in a row, up to now.
    """

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self.streak = 0

    def allows(self, grad_norm: float, step: int, unsound: Collection[str] = ()) -> bool:
        """Return whether an update may happen.

        Args:
            grad_norm: of the whole gradient, before clipping.
            unsound: other parts of the step that were not finite on any process, such as "loss".

        Raises: `TrainingDivergedError` when it happened too often in a row.
        """
        found = [*sorted(unsound), *(() if math.isfinite(grad_norm) else ["gradient"])]
        if not found:
            self.streak = 0
            return True
        self.streak += 1
        if self.streak > self._most:
            raise TrainingDivergedError(
                f"updates were not finite ({', '.join(found)}) {self.streak} times in a row, at "
                f"last at step {step}: start again from the last checkpoint, with a lower "
                "optimizer.learning_rate if it happens again"
            )
        logger.warning("step %d skipped: not finite: %s", step, ", ".join(found))
        return False
