"""Settings for every kind of test."""

import os

from hypothesis import settings

# A busy machine may take its time, and a gate must say the same twice: surprises belong on the machine of whoever looks for them.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")
