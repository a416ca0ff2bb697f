"""What every HTTP server of outdo shares; it knows none of them.

sockets.py    a listening socket and its address; guard.py: who may send requests; guesses.py: slows those who guess
"""
