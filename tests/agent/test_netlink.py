"""Addresses of this machine as the agent reads them from the kernel."""

from __future__ import annotations

from reconciler.agent import netlink


def test_each_address_comes_with_the_network_that_it_is_in() -> None:
    loopback = next(i for i in netlink.interfaces() if "127.0.0.1" in i.addresses)
    assert "127.0.0.1/8" in loopback.networks
    assert tuple(own.split("/")[0] for own in loopback.networks) == loopback.addresses
