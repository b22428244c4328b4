"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples on every run: a failure seen once can be seen again. No deadline: machines under
# load are slow, not wrong.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
