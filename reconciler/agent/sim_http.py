"""The HTTP side of the sim engine: health, models, chat completions (also streamed), metrics."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any, Dict, List, Tuple

MAX_BODY = 4 * 1024 * 1024


class Engine:
    """What the handlers share."""

    def __init__(self, names: Tuple[str, ...], context: int, token_time_s: float) -> None:
        self.names = names
        self.context = context
        self.token_time_s = token_time_s
        self.health = 503
        self.draining = False
        self.running = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.finished = 0
        self.lock = threading.Lock()

    def metrics(self) -> str:
        """Prometheus text with vLLM's names (0.32.0)."""
        rows = (
            ("num_requests_running", "gauge", self.running),
            ("num_requests_waiting", "gauge", 0),
            ("kv_cache_usage_perc", "gauge", min(1.0, self.running / 100)),
            ("num_preemptions_total", "counter", 0),
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("generation_tokens_total", "counter", self.generated_tokens),
            ("request_success_total", "counter", self.finished),
        )
        lines = []
        for name, kind, value in rows:
            label = 'engine="0",model_name="%s"' % self.names[0]
            if name == "request_success_total":
                label += ',finished_reason="stop"'
            lines.append("# TYPE vllm:%s %s" % (name, kind))
            lines.append("vllm:%s{%s} %s" % (name, label, float(value)))
        return "\n".join(lines) + "\n"


class Server(socketserver.ThreadingTCPServer):
    """Threaded, on one address."""

    allow_reuse_address = True
    allow_reuse_port = False
    """Two engines on one port would share its requests."""
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int, engine: Engine) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.engine = engine
        super().__init__((host, port), Handler)

    def drain(self) -> None:
        """Accept nothing more."""
        self.engine.draining = True
        self.engine.health = 503
        self.shutdown()
        self.server_close()


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    timeout = 60
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted, not logged: health alone would fill the log."""

    def do_GET(self) -> None:
        """Health, models, metrics, version."""
        engine = self.server.engine
        path = self.path.split("?")[0]
        if path in ("/health", "/ping"):
            self._send(engine.health, b"", "text/plain")
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": [self._model(n) for n in engine.names]})
        elif path == "/metrics":
            self._send(200, engine.metrics().encode(), "text/plain; version=0.0.4")
        elif path == "/version":
            self._json(200, {"version": "sim"})
        else:
            self._error(404, "no such path: %s" % path)

    def do_POST(self) -> None:
        """Chat and text completions."""
        engine = self.server.engine
        with engine.lock:
            engine.running += 1
        try:
            self._complete(self._body())
        except _Refused as error:
            self._error(error.status, str(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with engine.lock:
                engine.running -= 1

    def _body(self) -> Dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            raise _Refused(400, "Content-Length: %r" % length)
        try:
            body = json.loads(self.rfile.read(int(length)).decode("utf-8"))
        except (ValueError, RecursionError):
            raise _Refused(400, "the body is no JSON") from None
        if not isinstance(body, dict):
            raise _Refused(400, "the body is no object")
        return body

    def _complete(self, body: Dict[str, Any]) -> None:
        engine = self.server.engine
        if engine.health != 200:
            raise _Refused(503, "the model is not ready")
        chat = self.path.split("?")[0] == "/v1/chat/completions"
        if not chat and self.path.split("?")[0] != "/v1/completions":
            raise _Refused(404, "no such path: %s" % self.path)
        model = body.get("model", engine.names[0])
        if model not in engine.names:
            raise _Refused(404, "the model %r is not served here" % model)
        prompt = _prompt(body, chat)
        if len(prompt) > engine.context:
            text = "the prompt has %d tokens, more than the context of %d"
            raise _Refused(400, text % (len(prompt), engine.context))
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 64
        words = ["You", "said:", *prompt][: max(1, int(limit))]
        made = self._stream if body.get("stream") is True else self._whole
        made(str(model), words, len(prompt), chat)
        with engine.lock:
            engine.prompt_tokens += len(prompt)
            engine.generated_tokens += len(words)
            engine.finished += 1

    def _whole(self, model: str, words: List[str], asked: int, chat: bool) -> None:
        time.sleep(self.server.engine.token_time_s * len(words))
        text = " ".join(words)
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {
            "prompt_tokens": asked,
            "completion_tokens": len(words),
            "total_tokens": asked + len(words),
        }
        answer = _head(model, "chat.completion" if chat else "text_completion")
        answer["choices"] = [{"index": 0, "finish_reason": "stop", **content}]
        self._json(200, {**answer, "usage": usage})

    def _stream(self, model: str, words: List[str], asked: int, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        head = _head(model, "chat.completion.chunk" if chat else "text_completion")
        for number, word in enumerate(words):
            time.sleep(self.server.engine.token_time_s)
            text = word if number == 0 else " " + word
            delta = {"delta": {"content": text}} if chat else {"text": text}
            self._event({**head, "choices": [{"index": 0, "finish_reason": None, **delta}]})
        last: Dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        self._event({**head, "choices": [{"index": 0, "finish_reason": "stop", **last}]})
        self.wfile.write(b"data: [DONE]\n\n")
        self.wfile.flush()

    def _event(self, data: Dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def _model(self, name: str) -> Dict[str, Any]:
        engine = self.server.engine
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "sim",
            "max_model_len": engine.context,
        }

    def _json(self, status: int, data: Dict[str, Any]) -> None:
        self._send(status, json.dumps(data).encode(), "application/json")

    def _error(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "sim", "code": status}})

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.server.engine.draining:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def _head(model: str, kind: str) -> Dict[str, Any]:
    return {"id": "sim-%d" % time.monotonic_ns(), "object": kind, "created": 0, "model": model}


def _prompt(body: Dict[str, Any], chat: bool) -> List[str]:
    """The words of the last message; a part that is no text counts as one word."""
    if not chat:
        return str(body.get("prompt", "")).split()
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise _Refused(400, "messages: a list of at least one object")
    content = messages[-1].get("content", "")
    if isinstance(content, list):
        return [w for p in content if isinstance(p, dict) for w in str(p.get("text", "?")).split()]
    return str(content).split()
