"""The dashboard: run folders over HTTP, read-only. It imports no engine.

app.py        the endpoints; models.py: what they answer with, beside the records of `outdo.runs` and `outdo.doctor`
places.py     which folders hold runs, and which folder a run's id names
summaries.py, prompts.py   what is computed for an endpoint
live.py       server-sent events; page.py: files and HTML; serve.py: the process. Access control is in `outdo.web`
"""
