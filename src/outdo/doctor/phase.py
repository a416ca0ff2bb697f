"""Which rows of a run are comparable: those of a curriculum's easier start, or those of the task itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outdo.doctor.history import History
from outdo.tasks.saturation import WINDOW, is_saturated


def current_phase(history: History) -> History:
    """The rows since the easier task ended. While it lasts: all rows, without held-out success, which is of the task.

    Success drops where a curriculum moves on, and lengths and entropy jump: that is by design, no failure.
    """
    easy = num_easy(history)
    return replace(history, held=(), splits={}) if easy and easy == len(history) else history.since(easy)


def num_easy(history: History) -> int:
    """The number of rows of the easier task, by the recipe and the informative shares. Where the first rows of a
    history are missing it may be too many, never too few."""
    max_steps = int(history.recipe.get("curriculum_steps") or 0)
    min_share = float(history.recipe.get("curriculum_informative") or 0.0)
    end = int(np.searchsorted(history.steps, max_steps))
    shares = np.nan_to_num(history.columns.get("informative", np.ones(len(history)))).tolist()
    windows = ((row, shares[max(0, row - WINDOW) : row]) for row in range(1, end))
    return next((row for row, window in windows if is_saturated(window, min_share)), end)
