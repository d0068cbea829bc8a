"""The errors that end a command with a sentence; every other is a bug and keeps its traceback."""


class UserError(ValueError):
    """A mistake in what was asked for: the message says what, which field or file, and what to do.

    The command line prints it as one sentence and ends with status 2.
    """


class DamagedModelError(UserError):
    """A model whose answers mean nothing. For whoever gave the model it is a mistake; for who asks a server, no fault
    of theirs, and where the model lies is none of their business.
    """


class MachineError(Exception):
    """What was asked for is right, and the machine refuses: no memory, no room, nobody who takes the output.

    The command line prints it as one sentence and ends with status 1.
    """


def no_readable_images() -> UserError:
    """What is said where not one image could be read."""
    return UserError("there are no images that can be read; check the data.")
