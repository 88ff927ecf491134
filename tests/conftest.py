"""Settings for every kind of test."""

import os

import pytest
from hypothesis import settings
from tests.e2e.rights import Overseer

# A busy machine may take its time, and a gate must say the same twice: surprises belong on the machine of whoever looks for them.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """Where a session is overseen, look at the end of it whether the operator has used the rights that it has."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Overseer(config), "the operator's rights")
