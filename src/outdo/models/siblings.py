"""Which rows share a prompt, for the kernel that reads a shared prompt once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outdo.models.ops import Uploaded

SIBLINGS = 8  # rows that one program serves; more rows of a prompt are several times 8


class Siblings:
    """Rows in chunks of up to 8 that share a prompt, on the device. A row that shares none is in no chunk."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.chunks = Uploaded((max(rows // 2, 1), SIBLINGS), device)  # filled up with -1
        self.shares = Uploaded((rows,), device)
        self.stale = True

    def upload(self, prompts: Sequence[list[int] | None]) -> None:
        """`prompts` has each row's pages of its prompt: one list for all rows that share it."""
        if not self.stale:
            return
        rows_of: dict[int, list[int]] = {}
        for row, pages in enumerate(prompts):
            if pages:
                rows_of.setdefault(id(pages), []).append(row)
        pieces = (rows[i : i + SIBLINGS] for rows in rows_of.values() for i in range(0, len(rows), SIBLINGS))
        chunks = [piece for piece in pieces if len(piece) > 1]
        self.chunks.host[:], self.shares.host[:] = -1, 0
        for chunk, rows in enumerate(chunks):
            self.chunks.host[chunk, : len(rows)] = rows
            self.shares.host[np.asarray(rows)] = 1
        self.chunks.send()
        self.shares.send()
        self.stale = False

    def among(self, rows: int) -> tuple[Tensor, Tensor]:
        """The chunks of the first `rows` rows, and for each of these rows whether it is in one."""
        return self.chunks.device[: max(rows // 2, 1)], self.shares.device[:rows]
