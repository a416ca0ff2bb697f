"""Sweeps: a grid of settings, the result of each, and which to pick. No engine is imported here.

grid.py      arguments and a recipe's `sweep:` part -> cells, each with a complete recipe
drive.py     cells -> run folders, each by a process of its own
analysis.py  rows -> settings: means over seeds, intervals, differences
choice.py    settings -> the one to pick, and why
report.py    tables, a heat map, a page; draw.py: pictures
"""
