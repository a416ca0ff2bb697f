"""A model behind OpenAI's interface: over HTTP (`outdo serve`) and in process, with the same code between.

api.py           what the endpoints do, without HTTP; start.py: with a model loaded for it
requests.py, messages.py, fields.py   what was sent, validated; errors.py: what is refused, and how
engine_host.py   the engine's thread, for requests of any parameters; backend.py: who answers, a host or a training run
following.py     answers while they are generated; texts.py: the text to show of them
calls.py         the tool calls in an answer; replies.py: OpenAI's JSON of an answer
recording.py     what each session sampled, as a trajectory
client.py        the client for agents in this process; app.py, server.py: the HTTP server
"""
