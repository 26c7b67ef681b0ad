"""Packs the agent into one zip application, in memory: the same sources always give the same bytes.

Runs on the control machine only. The content hash names the file on the node, so a node has the
right agent or is sent it, and two versions live side by side.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from functools import lru_cache
from typing import Dict, Tuple

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest date that zip knows: a file's own date would change the hash."""

_MAIN = b"""import sys
from reconciler.agent.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@lru_cache(maxsize=1)
def build() -> Tuple[bytes, str]:
    """The agent's zip application and its sha256 in hex.

    Stored, not compressed: the output of a compressor depends on its version. Raises
    ModuleNotFoundError where nvidia-ml-py is not installed.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_files().items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o600 << 16
            archive.writestr(info, content)
    packed = data.getvalue()
    return packed, hashlib.sha256(packed).hexdigest()


def _files() -> Dict[str, bytes]:
    here = os.path.dirname(os.path.abspath(__file__))
    files = {"__main__.py": _MAIN, "reconciler/__init__.py": b"", "pynvml.py": _pynvml()}
    for name in os.listdir(here):
        if name.endswith(".py"):
            files["reconciler/agent/" + name] = _read(os.path.join(here, name))
    return files


def _pynvml() -> bytes:
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pynvml: not installed; pip install nvidia-ml-py")
    return _read(spec.origin)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
