"""The run folder as the processes see it that train along: the first one writes, these only know where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.runs.held_out import HeldOutAnswer
from outdo.runs.manifest import Manifest, Status
from outdo.runs.writer import RunWriter, Tokens
from outdo.types import Group


class SilentWriter(RunWriter):
    """Writes nothing and holds no lock. Its manifest is the first process's when this was made, with its own facts."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest, lock=None)

    def record_step(
        self, step: int, row: Mapping[str, Any], groups: Sequence[Group], tokens: Sequence[Tokens] = ()
    ) -> None: ...

    def record_answers(self, step: int, split: str, answers: Sequence[HeldOutAnswer]) -> None: ...

    def record_eval(self, row: Mapping[str, Any]) -> None: ...

    def record_sft(self, row: Mapping[str, Any]) -> None: ...

    def record_finding(self, step: int, row: Mapping[str, Any]) -> None: ...

    def record_failed_step(self, step: int, groups: Sequence[Group]) -> Path:
        return self.folder

    def offsets(self) -> dict[str, int]:
        return {}

    def rewind(self, offsets: Mapping[str, int]) -> None: ...

    def archive(self) -> Path:
        return self.folder

    def link_model(self) -> None: ...

    def update_manifest(self, **facts: Any) -> None:
        self.manifest = self.manifest.updated(**facts)

    def heartbeat(self) -> None: ...

    def finish(self, status: Status, why: str = "") -> None: ...
