"""Shared by all tests: one torch thread, and the devices that a test runs on."""

import pytest
import torch
from hypothesis import settings

# The same examples every time, and no limit of time that a busy machine could break.
settings.register_profile("longtail", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("longtail")

torch.set_num_threads(1)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Every device there is; tests that use it run once on each."""
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
