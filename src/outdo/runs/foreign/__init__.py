"""Runs of other trainers, presented to viewers as runs of ours.

names.py      the table of other trainers' names of our signals
rows.py       numbers by step, also of a run that was resumed
sources.py    which folder or file is such a run, and which files it consists of
logs.py       numbers: trainer_state.json, JSON Lines; events.py: TensorBoard; wandb_log.py: W&B; wire.py: protobuf
dumps.py      answers: parquet of TRL, JSON Lines of verl and prime-rl; answers.py: those of a run as files of groups
settings.py   the recipe keys that are known
translate.py  all of it as a run's folder, in a temporary place, renewed as the source grows

What is read is untrusted: nothing is unpickled or run, no file outside the source is opened, and sizes are bounded.
"""
