"""A run as one HTML page to send, which loads nothing. It imports no engine.

facts.py      everything that the page shows, read from the run; examples.py: answers before and after
sentences.py  the result in a sentence, the command that repeats the run
html.py       elements with escaped text; svg.py: curves for print and for browsers without scripts
page.py       the sections; write.py: the complete file, with page.css, page.js and the chart scripts of web/
plot.py       curves as a picture (matplotlib)
"""
