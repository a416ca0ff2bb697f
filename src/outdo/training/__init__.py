"""The loop, the kinds of run, and what happens before, around and after them."""
