"""Where the webhook's certificates are kept: in a Secret that all replicas share, or in files somebody mounts.

What clients should trust is told to the API server before a server shows what it signed.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from strata.cluster.admission.certs import CertificatePair, Certificates, step
from strata.cluster.api.client import Api
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import MUTATING_WEBHOOK, SECRET, Object, meta
from strata.errors import StrataError, UsageError

log = logging.getLogger(__name__)

NAME: Final = "strata-webhook"
"""Of the service and of the MutatingWebhookConfiguration."""
NAMESPACE: Final = "strata-system"
SECRET_NAME: Final = "strata-webhook-certs"
LOOK_S: Final = 60.0
"""How often certificates are looked at; an authority is announced for ten times as long before it signs."""

_TRIES: Final = 8
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)


class Keeper:
    """Keeps the certificates of one service in a Secret; any number of replicas may keep the same."""

    def __init__(self, api: Api, *, service: str = NAME, namespace: str = NAMESPACE) -> None:
        self.api, self.service, self.namespace = api, service, namespace

    def look(self, now: datetime) -> CertificatePair:
        """Return what to show clients from now on, after the API server was told whom to trust.

        Raises ApiFailed: go on with what there is, and look again.
        """
        for _ in range(_TRIES):
            try:
                certificates = self._renewed(now)
                self._announce(certificates.bundle)
            except ApiFailed as error:
                if not error.is_conflict:
                    raise
                continue  # another replica was faster, and all show what it made
            assert certificates.serving is not None, "a step always leaves one"
            return certificates.serving
        raise ApiFailed(f"secret {SECRET_NAME} changes all the time", status=409)

    def _renewed(self, now: datetime) -> Certificates:
        secret = self.api.get(SECRET, SECRET_NAME, self.namespace)
        before = Certificates() if secret is None else read_secret(secret)
        names = (f"{self.service}.{self.namespace}.svc",)
        try:
            after = step(before, names, now)
        except UsageError as error:
            log.warning("certificates of secret %s are made anew: %s", SECRET_NAME, error)
            after = step(Certificates(), names, now)
        if after is before:
            return after
        if secret is None:
            self.api.create(SECRET, self._secret(after))
        else:
            self.api.replace(SECRET, self._secret(after, since=secret))
        return after

    def _secret(self, certificates: Certificates, *, since: Object | None = None) -> Object:
        metadata: dict[str, Any] = {"name": SECRET_NAME, "namespace": self.namespace}
        if since is not None:
            metadata = {**meta(since), **metadata}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": metadata,
            "data": {key: base64.b64encode(value).decode() for key, value in _files(certificates).items()},
        }

    def _announce(self, bundle: bytes) -> None:
        """Tell the API server whom to trust, for all webhooks of the service."""
        configuration = self.api.get(MUTATING_WEBHOOK, NAME)
        if configuration is None:
            log.warning("there is no MutatingWebhookConfiguration %s yet", NAME)
            return
        encoded = base64.b64encode(bundle).decode()
        webhooks = [self._trusting(webhook, encoded) for webhook in configuration.get("webhooks") or []]
        if webhooks != configuration.get("webhooks"):
            version = str(meta(configuration).get("resourceVersion", ""))
            self.api.patch(MUTATING_WEBHOOK, NAME, body={"webhooks": webhooks}, resource_version=version)
            log.info("the API server was told whom to trust")

    def _trusting(self, webhook: Object, bundle: str) -> Object:
        client = webhook.get("clientConfig") or {}
        service = client.get("service") or {}
        if (service.get("name"), service.get("namespace")) != (self.service, self.namespace):
            return webhook
        return {**webhook, "clientConfig": {**client, "caBundle": bundle}}


def _files(certificates: Certificates) -> dict[str, bytes]:
    assert certificates.serving is not None, "a step always leaves one"
    return {
        "ca.crt": certificates.bundle,
        "ca.key": b"".join(authority.key for authority in certificates.authorities),
        "tls.crt": certificates.serving.cert,
        "tls.key": certificates.serving.key,
    }


def read_secret(secret: Object) -> Certificates:
    """Return the certificates of a Secret; none of a kind where what it holds cannot be them."""
    try:
        data: Mapping[str, bytes] = {
            key: base64.b64decode(value, validate=True) for key, value in (secret.get("data") or {}).items()
        }
    except (binascii.Error, ValueError, TypeError):
        return Certificates()
    certs, keys = ([match[0] for match in _PEM.finditer(data.get(name, b""))] for name in ("ca.crt", "ca.key"))
    if len(certs) != len(keys):
        return Certificates()
    shown = CertificatePair(data.get("tls.crt", b""), data.get("tls.key", b""))
    authorities = tuple(CertificatePair(cert, key) for cert, key in zip(certs, keys, strict=True))
    return Certificates(authorities, shown if shown.cert and shown.key else None)


def read_folder(folder: Path) -> CertificatePair:
    """Return the pair in `tls.crt` and `tls.key`, as cert-manager and kubectl name them. Raises UsageError."""
    try:
        return CertificatePair((folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes())
    except OSError as error:
        raise UsageError(
            f"{error.filename}: {error.strerror}", hint="--cert-dir with tls.crt and tls.key"
        ) from None


def server_context() -> ssl.SSLContext:
    """Return a context that has no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def show(context: ssl.SSLContext, pair: CertificatePair) -> None:
    """Show a certificate to all who connect from now on. Raises StrataError for a pair that is none.

    Call it where connections are accepted: between its certificate and its key a context has no pair.
    """
    memory = os.memfd_create("strata-webhook")  # a private key need not touch a disk
    try:
        os.write(memory, pair.cert + b"\n" + pair.key)
        path = f"/proc/self/fd/{memory}"
        server_context().load_cert_chain(path)  # first where a fault does no harm
        context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise StrataError(f"certificate and key of the webhook do not load: {error}") from None
    finally:
        os.close(memory)
