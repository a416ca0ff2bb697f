"""Which rows of a run can be compared: those of a curriculum's easier start, and those of the task itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outdo.doctor.history import History
from outdo.tasks.saturation import WINDOW, is_saturated


def current_phase(history: History) -> History:
    """The rows since the easier task ended. While it lasts all rows, and no held-out success, which is of the task.

    Success falls where a curriculum moves on, lengths and entropy jump: that is its design and no illness.
    """
    easy = num_easy(history)
    return replace(history, held=()) if easy and easy == len(history) else history.since(easy)


def num_easy(history: History) -> int:
    """Rows of the easier task, by the recipe and the shares that the curriculum went by. Of a history that lacks its
    first rows it may be too many, never too few."""
    most = int(history.recipe.get("curriculum_steps") or 0)
    least = float(history.recipe.get("curriculum_informative") or 0.0)
    within = int(np.searchsorted(history.steps, most))
    shares = np.nan_to_num(history.columns.get("informative", np.ones(len(history)))).tolist()
    windows = ((row, shares[max(0, row - WINDOW) : row]) for row in range(1, within))
    return next((row for row, window in windows if is_saturated(window, least)), within)
