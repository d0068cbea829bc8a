"""The errors that end a command with a sentence; every other is a bug and keeps its traceback."""


class UserError(ValueError):
    """A mistake in what was asked for: the message says what, which field or file, and what to do.

    The command line prints it as one sentence and ends with status 2.
    """


class MachineError(Exception):
    """What was asked for is right, and the machine refuses: no memory, no room, nobody who takes the output.

    The command line prints it as one sentence and ends with status 1.
    """
