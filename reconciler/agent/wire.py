"""Requests and answers as lines: framing, limits, and the one error that reaches the other side.

Knows nothing of what the requests mean.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

MAX_REQUEST = 8 * 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024
"""The reader calls anything longer damaged, so it is refused here, where the reason is known."""

Json = Dict[str, Any]


class AgentError(Exception):
    """A refusal: `code` is one of docs/agent-protocol.md, the message names the values."""

    def __init__(self, code: str, message: str, findings: Optional[List[str]] = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.findings = list(findings or ())


def frame(marker: str, payload: Json) -> str:
    """One framed line. ASCII only: no encoding on the way can change its length."""
    text = json.dumps(payload, ensure_ascii=True, separators=(",", ":"))
    if len(text) > MAX_ANSWER:
        error = AgentError("io", "the answer has %d bytes, more than %d" % (len(text), MAX_ANSWER))
        text = json.dumps(failure(payload.get("id"), error), separators=(",", ":"))
    return "\x1eRECONCILE %s %d %s\n" % (marker, len(text), text)


def success(request_id: object, result: object) -> Json:
    """The answer to a request that was carried out."""
    return {"id": request_id, "ok": True, "result": result}


def failure(request_id: object, error: AgentError) -> Json:
    """The answer to a request that was refused."""
    body = {"code": error.code, "message": error.message, "findings": error.findings}
    return {"id": request_id, "ok": False, "error": body}


def parse_request(line: str) -> Json:
    """The request of one line. AgentError `bad-request` says what is wrong with it."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AgentError("bad-request", "the line is no JSON: %s" % error) from None
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise AgentError("bad-request", "a request is an object with an `op`")
    return request


class Fields:
    """Typed access to a request's fields; a misfit is a `bad-request` that names field and type."""

    def __init__(self, data: Json, where: str = "") -> None:
        self.data = data
        self.where = where

    def text(self, name: str, default: Optional[str] = None) -> str:
        value: str = self._get(name, str, "text", default)
        return value

    def integer(self, name: str, default: Optional[int] = None) -> int:
        value: int = self._get(name, int, "an integer", default)
        return value

    def number(self, name: str, default: Optional[float] = None) -> float:
        return float(self._get(name, (int, float), "a number", default))

    def object(self, name: str, default: Optional[Json] = None) -> Json:
        value: Json = self._get(name, dict, "an object", default)
        return value

    def _get(self, name: str, kind: Any, words: str, default: Any) -> Any:
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise AgentError(
                "bad-request", "%s%s: %s where %s belongs" % (self.where, name, _kind(value), words)
            )
        return value


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
