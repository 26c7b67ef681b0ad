"""Addresses as flags want them: bare for a flag that takes an address, bracketed inside host:port.

Half of the flags want brackets around an IPv6 address and half must not have them; joined without
them, `2001:db8::10:29500` is another address and no port.
"""

from __future__ import annotations


def is_v6(address: str) -> bool:
    """Whether `address` is an IPv6 address (names and IPv4 have no colon)."""
    return ":" in address


def host(address: str) -> str:
    """`address` as the host part of a URL or of host:port."""
    return f"[{address}]" if is_v6(address) else address


def host_port(address: str, port: int) -> str:
    """`10.0.0.1:8000`, `[2001:db8::1]:8000`."""
    return f"{host(address)}:{port}"
