"""The API server, over the connection lightkube makes of a kubeconfig.

lightkube brings the certificates, tokens (read again when they rotate) and exec plug-ins. The rest of it is not
used: its objects would be copied into mappings and back, its watch has no read time limit, so that a dead
connection is waited for for ever, and its errors lose Retry-After.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import POD, Object, ObjectKind, meta, name_of, namespace_of
from strata.errors import MissingPart, StrataError, UsageError, need
from strata.files import read_document

MANAGER: Final = "strata"
"""The field manager of what we apply."""
PAGE: Final = 500
"""Objects a page of a list, client-go's own: 5000 nodes in one answer are 47 MB the server holds at once."""

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


def connect(*, kubeconfig: str | None = None, context: str | None = None, timeout_s: float = 10.0) -> Api:
    """Return a client: of `kubeconfig`, else $KUBECONFIG, else ~/.kube/config, else of the pod we run in.

    `timeout_s`: until a connection stands, and between two pieces of an answer. Nothing is asked yet.
    Raises MissingPart (exit 5) where lightkube or every configuration is missing, UsageError where one is bad.
    """
    need("lightkube", extra="cluster")
    adapter, http = need("lightkube.config.client_adapter", extra="cluster"), need("httpx2", extra="cluster")
    bad_config = need("lightkube.core.exceptions", extra="cluster").ConfigError
    config = _config(kubeconfig or os.environ.get("KUBECONFIG") or None, context)
    parameters = adapter.ConnectionParams(timeout=http.Timeout(timeout_s))
    try:
        made = adapter.Client(config, parameters)
    except (OSError, ValueError, http.InvalidURL, bad_config) as error:
        raise UsageError(
            f"context {config.context_name!r}: its address or certificates cannot be used: {error}",
            hint="kubectl config view --raw",
        ) from error
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells every request, and a Lease is two each 2 s
    # The last two: an exec plug-in or a token's file that is missing is only found when something is asked.
    failures = (http.HTTPError, bad_config, OSError)
    return Api(made, failures=failures, timeout_s=timeout_s, namespace=config.namespace)


def _config(path: str | None, context: str | None) -> Any:
    kube = need("lightkube.config.kubeconfig", extra="cluster")
    models = need("lightkube.config.models", extra="cluster")
    usual = Path(kube.DEFAULT_KUBECONFIG).expanduser()
    if path is None and usual.is_file():
        path = str(usual)
    if path is None:
        if "KUBERNETES_SERVICE_HOST" not in os.environ or not (ACCOUNT / "token").is_file():
            raise MissingPart(
                f"no cluster: no KUBECONFIG is set, there is no {usual}, and no service account of a pod is here",
                hint="--kubeconfig FILE",
            )
        return kube.KubeConfig.from_service_account(str(ACCOUNT)).get()
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such kubeconfig", hint="--kubeconfig with one existing file")
    try:
        config = kube.KubeConfig.from_file(path).get(context)
    except Exception as error:  # lightkube lets through whatever YAML, msgspec and missing keys raise
        reason = f"no {error}" if isinstance(error, KeyError) else _oddity(path) or error
        raise UsageError(f"{path}: not a usable kubeconfig: {reason}", hint="kubectl config view") from error
    return config if config.user is not None else config._replace(user=models.User())


def _oddity(path: str) -> str:
    """Return what of a kubeconfig is not as lightkube takes for granted, empty where that is not the trouble."""
    with suppress(StrataError):
        data = read_document(path).data
        if not isinstance(data, dict):
            return "the file is empty" if data is None else "it should be a mapping"
        for key in ("clusters", "contexts", "users"):
            if not isinstance(entries := data.get(key), list):
                return f"{key} should be a list"
            for number, entry in enumerate(entries):
                if not isinstance(entry, dict) or not isinstance(entry.get(key[:-1]), dict):
                    return f"{key}[{number}].{key[:-1]} should be a mapping"
    return ""


class Api:
    """Threads may share one. `namespace`: of the kubeconfig's context, used where none is given.

    Every method raises ApiFailed; `get` returns None where the object, or its kind, is not there.
    """

    def __init__(
        self, http: Any, *, failures: tuple[type[Exception], ...], timeout_s: float, namespace: str = "default"
    ) -> None:
        self._http, self._failures, self._timeout_s, self.namespace = http, failures, timeout_s, namespace

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def get(self, kind: ObjectKind, name: str, namespace: str = "") -> Object | None:
        """Return one object."""
        try:
            return self._ask("GET", self._path(kind, name, namespace))
        except ApiFailed as failed:
            if failed.status == 404:
                return None
            raise

    def list(self, kind: ObjectKind, *, namespace: str = "", labels: str = "") -> tuple[Sequence[Object], str]:
        """Return all objects of a kind and the resource version they are of.

        Read page by page; in one piece where the pages' past is forgotten meanwhile (410).
        """
        path = _everywhere(kind) if not namespace else self._path(kind, None, namespace)
        wanted = {"labelSelector": labels} if labels else {}
        try:
            return self._pages(kind, path, {**wanted, "limit": str(PAGE)})
        except ApiFailed as failed:
            if not failed.is_gone:
                raise
            return self._pages(kind, path, wanted)

    def _pages(self, kind: ObjectKind, path: str, wanted: Mapping[str, str]) -> tuple[Sequence[Object], str]:
        objects: list[Object] = []
        more = ""
        while True:
            page = self._ask("GET", path, wanted={**wanted, **({"continue": more} if more else {})})
            # In a list the server leaves both out of each object of its own kinds.
            objects += (
                {"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page.get("items") or ()
            )
            more = str(meta(page).get("continue") or "")
            if not more:
                return objects, str(meta(page).get("resourceVersion") or "")

    def watch(self, kind: ObjectKind, *, since: str, timeout_s: float, labels: str = "") -> Stream:
        """Return (ADDED | MODIFIED | DELETED | BOOKMARK, object), one after the other, until the server ends it.

        It stands when this returns; a server that says nothing for `timeout_s` is given up.
        """
        wanted = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(timeout_s)))}
        wanted |= {"resourceVersion": since} if since else {}
        wanted |= {"labelSelector": labels} if labels else {}
        path = _everywhere(kind)
        limits = dict.fromkeys(("connect", "write", "pool"), self._timeout_s)
        request = self._http.build_request("GET", path, params=wanted)
        request.extensions["timeout"] = {**limits, "read": timeout_s + self._timeout_s}
        answer = self._send(request, is_stream=True)
        return Stream(answer, f"watch {path}", failures=self._failures)

    def create(self, kind: ObjectKind, obj: Object, *, is_dry_run: bool = False) -> Object:
        """Create an object."""
        wanted = {"fieldManager": MANAGER, **({"dryRun": "All"} if is_dry_run else {})}
        path = self._path(kind, None, namespace_of(obj))
        return self._ask("POST", path, wanted=wanted, body=_typed(kind, obj))

    def replace(self, kind: ObjectKind, obj: Object, *, subresource: str = "") -> Object:
        """Replace an object; with its `resourceVersion` a conflict is refused."""
        path = self._path(kind, name_of(obj), namespace_of(obj), subresource)
        return self._ask("PUT", path, wanted={"fieldManager": MANAGER}, body=_typed(kind, obj))

    def patch(
        self,
        kind: ObjectKind,
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, Any],
        subresource: str = "",
        resource_version: str = "",
    ) -> Object:
        """Patch an object by a JSON merge patch."""
        if resource_version:
            body = {**body, "metadata": {**(body.get("metadata") or {}), "resourceVersion": resource_version}}
        path = self._path(kind, name, namespace, subresource)
        return self._ask("PATCH", path, wanted={"fieldManager": MANAGER}, body=body, content=MERGE)

    def apply(self, kind: ObjectKind, obj: Object, *, subresource: str = "", manager: str = MANAGER) -> Object:
        """Apply an object by the server, taking over fields from other managers."""
        path = self._path(kind, name_of(obj), namespace_of(obj), subresource)
        wanted = {"fieldManager": manager, "force": "true"}
        return self._ask("PATCH", path, wanted=wanted, body=_typed(kind, obj), content=APPLY)

    def delete(self, kind: ObjectKind, name: str, namespace: str = "") -> None:
        """Delete an object, its dependants in the background; one that is not there is no error."""
        self._gone("DELETE", self._path(kind, name, namespace), body={"propagationPolicy": "Background"})

    def evict(self, name: str, namespace: str) -> None:
        """Evict a pod, one that is not there too: refused with 429 while a budget of disruption forbids it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        self._gone("POST", self._path(POD, name, namespace, "eviction"), body=body)

    def log(self, name: str, namespace: str = "", *, tail: int | None = None) -> str:
        """Return what a pod's first container wrote, or the last lines of it."""
        wanted = {} if tail is None else {"tailLines": str(tail)}
        request = self._http.build_request("GET", self._path(POD, name, namespace, "log"), params=wanted)
        return str(self._send(request).text)

    def metrics(self) -> str:
        """Return the API server's own metrics, as Prometheus reads them."""
        return str(self._send(self._http.build_request("GET", "/metrics")).text)

    def serves(self, kind: ObjectKind) -> bool:
        """Return whether the server has a kind, as far as it tells those who may not list it."""
        try:
            known = self._ask("GET", _root(kind)).get("resources") or ()
        except ApiFailed as failed:
            if failed.status == 404:
                return False
            raise
        return any(each.get("name") == kind.plural for each in known)

    def schema(self, kind: ObjectKind) -> Mapping[str, Any]:
        """Return the OpenAPI schema that the server has of a kind; all who are let in may read it."""
        path = f"/openapi/v3{_root(kind)}"
        schemas = (self._ask("GET", path).get("components") or {}).get("schemas") or {}
        wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        for schema in schemas.values():
            if wanted in schema.get("x-kubernetes-group-version-kind", ()):
                return dict(schema)
        raise ApiFailed(f"GET {path}: the server has no schema of {kind.kind}")

    def minor_version(self) -> int:
        """Return the 36 of a 1.36 API server. Raises ApiFailed."""
        minor = str(self._ask("GET", "/version").get("minor"))
        # Managed clusters write 36+.
        digits = minor.rstrip("+")
        if not (digits.isascii() and digits.isdigit()):
            raise ApiFailed(f"GET /version: {minor[:40]!r} is not a minor version")
        return int(digits)

    def _gone(self, method: str, path: str, *, body: Mapping[str, Any]) -> None:
        try:
            self._ask(method, path, body=body)
        except ApiFailed as failed:
            if failed.status != 404:
                raise

    def _path(self, kind: ObjectKind, name: str | None, namespace: str, subresource: str = "") -> str:
        parts = [_root(kind)]
        if kind.is_namespaced:
            parts += ["namespaces", _word(namespace or self.namespace)]
        parts.append(kind.plural)
        if name is not None:
            parts.append(_word(name))
        return "/".join(parts + ([subresource] if subresource else []))

    def _ask(
        self,
        method: str,
        path: str,
        *,
        wanted: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
    ) -> Object:
        sent = {} if body is None else {"content": json.dumps(body), "headers": {"Content-Type": content}}
        request = self._http.build_request(method, path, params=wanted, **sent)
        answer = self._send(request)
        try:
            obj = answer.json()
        except ValueError:
            obj = None
        if not isinstance(obj, dict):
            raise ApiFailed(f"{method} {request.url.path}: the answer is not an object: {answer.text[:80]!r}")
        return obj

    def _send(self, request: Any, *, is_stream: bool = False) -> Any:
        what = f"{request.method} {request.url.path}"
        try:
            answer = self._http.send(request, stream=is_stream)
            if answer.is_success:
                return answer
            with closing(answer):
                answer.read()
        except self._failures as error:
            # Its text may be empty, as that of a time limit often is; its type then says it.
            raise ApiFailed(f"{what}: {type(error).__name__}: {error}") from error
        raise _refused(what, answer)


def _refused(what: str, answer: Any) -> ApiFailed:
    try:
        status = answer.json()
    except ValueError:
        status = None
    status = status if isinstance(status, dict) else {}
    message = status.get("message") or answer.text[:200].strip() or answer.reason_phrase
    wait = answer.headers.get("Retry-After", "")
    return ApiFailed(
        f"{what}: {answer.status_code}: {message}",
        status=answer.status_code,
        reason=str(status.get("reason") or ""),
        retry_after_s=float(wait) if wait.isdecimal() else 0.0,
    )


def _root(kind: ObjectKind) -> str:
    return f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"


def _everywhere(kind: ObjectKind) -> str:
    return f"{_root(kind)}/{kind.plural}"


def _typed(kind: ObjectKind, obj: Object) -> Object:
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind}


def _word(name: str) -> str:
    """Return a name as one step of a path: a user's must not lead elsewhere."""
    if name in ("", ".", ".."):
        raise UsageError(f"{name!r} is not the name of an object")
    return quote(name, safe="")


def lines_of(chunks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of a body, cut at \n alone: a string in the JSON may hold U+0085, which httpx cuts at too.

    What follows the last \n is half an event of a connection that broke, and is dropped.
    """
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def event_of(line: bytes) -> tuple[str, Object]:
    """Return one event. Raises ApiFailed where it is the server's end of the watch, as 410 is."""
    try:
        event: dict[str, Any] = json.loads(line)
        kind, obj = str(event["type"]), event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiFailed(f"the API server sent something that is not a watch event: {line[:80]!r}") from error
    if kind == "ERROR":
        raise ApiFailed(
            f"the API server ended the watch: {obj.get('message', '')}",
            status=int(obj.get("code") or 0),
            reason=str(obj.get("reason") or ""),
        )
    return kind, obj


class Stream(Iterator[tuple[str, Object]]):
    """Yields (type, object). `failures`: what the HTTP client raises, told as ApiFailed."""

    def __init__(self, response: Any, what: str, *, failures: tuple[type[Exception], ...]) -> None:
        self._response, self._is_closed = response, False
        self._events = self._read(what, failures)

    def __next__(self) -> tuple[str, Object]:
        return next(self._events)

    def _read(self, what: str, failures: tuple[type[Exception], ...]) -> Iterator[tuple[str, Object]]:
        try:
            for line in lines_of(self._response.iter_bytes()):
                yield event_of(line)
        except failures as error:
            if not self._is_closed:
                raise ApiFailed(f"{what}: the stream broke: {type(error).__name__}: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """End it, also from another thread while this one waits for the next event.

        Closing a socket does not wake who reads it; shutting it down does. It is shut below TLS, which is not
        meant to be closed under a reader.
        """
        self._is_closed = True
        network = self._response.extensions.get("network_stream")
        connection = network and network.get_extra_info("socket")
        if connection is None:  # no socket, no other thread that waits for it
            self._response.close()
            return
        try:
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        except OSError:  # the server was faster
            return
