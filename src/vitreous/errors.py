"""Errors that end a command with one sentence; any other error is a bug and keeps its traceback."""


class UserError(ValueError):
    """A mistake of the user: the message names the field or file and says what to do. Exit status 2."""


class DamagedModelError(UserError):
    """A model whose outputs are not finite. The server answers with status 500 and without the model's path, because
    the client has made no mistake."""


class MachineError(Exception):
    """The request is valid and the machine cannot do it: memory, disk, file handles, closed output. Exit status 1."""


def no_readable_images() -> UserError:
    return UserError("there are no images that can be read; check the data.")
