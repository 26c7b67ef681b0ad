"""Makes the shared fixtures known to all test folders."""

from tests.support.fixtures import loopback_fleet, start_fleet

__all__ = ["loopback_fleet", "start_fleet"]
