"""What the hostile tests share."""

import pytest
from commands import Commands


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    """`commands("predict", MODEL, PICTURE)`: what the command line does, each in a process of its own."""
    made = Commands(tmp_path_factory.mktemp("commands"))
    yield made
    made.close()
