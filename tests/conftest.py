"""Where tests find what a clone does not carry."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny models gain nothing from more, and lose much where tests share a machine

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """Real weights and pictures beside the project; a clone elsewhere does not have them."""
    if not SHARED.is_dir():
        pytest.skip("needs the real weights and pictures in ../shared/data, which are not part of the project")
    return SHARED
