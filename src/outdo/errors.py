"""One tree of errors. Each says what, where and what to do; the command line prints it and exits with its status."""


class OutdoError(Exception):
    """Something the user should read. Never shown with a traceback."""

    exit_status = 1


class RecipeError(OutdoError, ValueError):
    """The recipe asks for something that cannot be."""

    exit_status = 2


class TaskError(OutdoError, ValueError):
    """The prompts cannot be had, or are not what a task must give."""

    exit_status = 2


class GraderError(OutdoError, ValueError):
    """A reward function cannot be found or does not keep its contract."""

    exit_status = 2


class ModelError(OutdoError, ValueError):
    """The model or its tokenizer cannot be loaded or used."""

    exit_status = 2


class EngineError(OutdoError, RuntimeError):
    """Sampling or training failed."""


class Halted(OutdoError):
    """Training was halted by a guard."""

    exit_status = 3


class NumericsError(Halted, ArithmeticError):
    """The numbers went where no learning happens."""


class BrokenGraders(Halted, RuntimeError):
    """Too many answers could not be judged."""


class RunError(OutdoError, OSError):
    """The run folder cannot be written or read."""


class PlaceError(RunError):
    """The place that was named is none to read from or write to: no run, a file for a folder, another's run."""

    exit_status = 2
