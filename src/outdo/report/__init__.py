"""A run as one page to send: an HTML file that asks nobody for anything. It imports no engine.

story.py      what is told of a run, read as the dashboard reads it; examples.py: answers before and after
words.py      the verdict in a sentence, how to do it again
html.py       elements whose text is text; svg.py: curves for paper and for those without scripts
page.py       the sections; write.py puts the whole together. page.css, page.js: its looks, its charts
"""
