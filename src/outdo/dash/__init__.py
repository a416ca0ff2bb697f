"""The dashboard: run folders over HTTP, to be looked at and never written. It imports no engine.

files.py      what is on the disk, read in bounded pieces and only inside the root
places.py     which folders hold runs, and which folder a run's id means
table.py      rows of numbers as columns, and fewer points of them; metrics.py is how they are sent
blocks.py     where each group stands in groups/; answers.py shapes them, prompts.py follows one through the steps
book.py       one run as far as it was read; a shelf of those that were looked at last
summary.py, findings.py, comparing.py, sweeps.py   what is said of a run, of its health, of several
shapes.py     what comes out, typed
app.py        the addresses; guard.py who may ask; live.py what is new; page.py the page; serve.py the process
"""
