"""What a conversion writes: texts, copies of files, and a model that has no folder yet."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from outdo.bridges.convert.plan import Plan, literal, refuse_existing
from outdo.errors import RecipeError
from outdo.models.sources import TINY
from outdo.runs.files import write_atomic

MODEL_FOLDER = "model"


@dataclass
class Files:
    """The files of one conversion by their names in its folder. `main` is the one to start with."""

    main: str
    texts: dict[str, str] = field(default_factory=dict)
    copies: dict[str, Path] = field(default_factory=dict)
    folders: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    binaries: dict[str, Callable[[Path], None]] = field(default_factory=dict)

    def rename_main(self, name: str) -> None:
        """Gives the main file the name that --out has. Raises RecipeError where another file has it."""
        if name != self.main and name in (*self.texts, *self.copies):
            raise RecipeError(f"--out {name}: another file of this conversion has that name; take another name")
        self.texts[name] = self.texts.pop(self.main)
        self.main = name

    def write(self, folder: Path, force: bool) -> list[Path]:
        """Writes all of them, the main one first in what is returned. Raises RecipeError where one exists."""
        names = [self.main, *(n for n in (*self.texts, *self.copies, *self.binaries, *self.folders) if n != self.main)]
        if folder.exists() and not folder.is_dir():
            raise RecipeError(f"--out {folder}: is a file; name a folder")
        refuse_existing((folder / name for name in names), force)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, copied in self.copies.items():
                shutil.copyfile(copied, folder / name)
            for name, write in (*self.binaries.items(), *self.folders.items()):
                write(folder / name)
            for name, text in self.texts.items():
                (folder / name).parent.mkdir(exist_ok=True)
                write_atomic(folder / name, text)
        except OSError as error:
            raise RecipeError(f"--out {folder}: cannot be written: {error.strerror or error}") from error
        return [folder / name for name in names]


def name_of(plan: Plan) -> str:
    """A name for the folder of the run."""
    recipe = plan.recipe
    name = recipe.run_name or Path(recipe.dataset_name.rpartition(":")[0] or recipe.dataset_name).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "run"


def model_files(plan: Plan, files: Files) -> str:
    """The expression of the model's place in a script. One that a run makes from nothing is written as a folder."""
    name = plan.recipe.model_name_or_path
    if name == TINY:
        files.folders[MODEL_FOLDER] = lambda folder: _save_tiny(folder, plan.recipe.seed)
        return f'str(HERE / "{MODEL_FOLDER}")'
    if name.endswith(".gguf") or name == "smollm2":
        plan.lost.append(f"the model {name}: write it as a folder: outdo export {name} --out ./model, and name that")
    if Path(name).is_dir() and not _has_template(Path(name)):
        plan.lost.append(
            f"the prompts: {name} has no chat template, so they are plain text here: add one to its tokenizer"
        )
    return literal(str(Path(name).resolve()) if Path(name).is_dir() else name)


def _has_template(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    in_config = config.is_file() and "chat_template" in config.read_text(encoding="utf-8", errors="replace")
    return in_config or any(folder.glob("chat_template*"))


def _save_tiny(folder: Path, seed: int) -> None:
    from outdo.models.load import load_policy, save_policy

    save_policy(load_policy(TINY, device="cpu", seed=seed), folder)
