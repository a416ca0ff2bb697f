"""Many runs side by side: a grid of settings, what became of each, and which to take. No engine is imported here.

grid.py      words and a recipe's `sweep:` part -> cells, each a whole recipe
drive.py     cells -> run folders, each made by a process of its own
rows.py      a run folder -> a row of numbers
analysis.py  rows -> settings: means over seeds, intervals, differences
choice.py    settings -> the one to take, and why
report.py    tables, a heat map in text, a page; draw.py: pictures
"""
