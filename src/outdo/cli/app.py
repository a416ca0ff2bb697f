"""The application that the commands are added to."""

from __future__ import annotations

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Trains language models with GRPO on rewards that a program can check.

\b
  outdo train                                   the default: a tiny model learns arithmetic, about two minutes
  outdo train recipes/arithmetic.yaml seed=1    a recipe, with keys set over it
  outdo train --dry-run num_generations=16      what a run would do and take
  outdo train dataset_name=my.jsonl reward_funcs=rewards.py:score model_name_or_path=./model
  outdo eval runs/NAME --task arithmetic        how good a saved model is; several in one table
  outdo chat runs/NAME                          talk with it, or -p "…" for one answer
  outdo export runs/NAME --out ./model          any model as one Hugging Face folder, an adapter merged
  outdo sft dataset_name=my.jsonl epochs=3      imitate demonstrations, without rewards
  outdo harvest runs/NAME --out right.jsonl     keep a model's own right answers as demonstrations
  outdo tasks                                   what there is to train on
  outdo graders                                 what there is to grade with
  outdo grade --reward gsm8k answers.jsonl      grade answers without training
  outdo audit arithmetic                        whether a reward is fit to train on
""",
)
