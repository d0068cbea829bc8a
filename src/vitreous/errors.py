"""The one kind of error that a person can mend."""


class UserError(ValueError):
    """A mistake in what was asked for: the message says what, which field or file, and what to do.

    The command line prints it as one sentence and ends with status 2; everything else is a bug and keeps its traceback.
    """
