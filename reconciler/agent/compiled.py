"""The agent compiled for this node's own Python, beside the file it came from.

A zip application cannot keep compiled code, and to compile 8,000 lines at each start costs more
than all else that a start does. The copy's name ends in its own content hash, so that the
bootstrap can check it like the original. Losing it is safe: it is only slower. The sources are
in it too: should the node's Python be upgraded under a session, what that starts compiles them.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import sys
import zipfile

from . import store


def make(agent: str) -> str:
    """Write the compiled copy of `agent` beside it; its path, or "" where it cannot be written."""
    import importlib.util

    data = io.BytesIO()
    with zipfile.ZipFile(agent) as source, zipfile.ZipFile(data, "w") as target:
        for name in sorted(source.namelist()):
            text = source.read(name)
            code = compile(text, "%s/%s" % (agent, name), "exec", dont_inherit=True)
            # Flag 1: a pyc that is told apart by hash and is not checked against a source.
            header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
            for kind, content in (("c", header + marshal.dumps(code)), ("", text)):
                info = zipfile.ZipInfo(name + kind, (1980, 1, 1, 0, 0, 0))
                target.writestr(info, content)
    packed = data.getvalue()
    name = "%s.%s-%x.%s.pyz" % (
        os.path.basename(agent)[: -len(".pyz")],
        sys.implementation.cache_tag,
        sys.hexversion,
        hashlib.sha256(packed).hexdigest(),
    )
    path = os.path.join(os.path.dirname(agent), name)
    try:
        store.write_bytes(path, packed)
    except OSError:
        return ""
    return path
