import pytest

from support.web import serve


@pytest.fixture
def web():
    with serve() as found:
        yield found
