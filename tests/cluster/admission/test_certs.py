"""The webhook's own certificates: what signs what, when they change, and that replicas agree."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from strata.cluster.admission import certs
from strata.cluster.admission.certs import AUTHORITY_LIFE, SERVING_LIFE, SPREAD, CertificatePair, Certificates
from strata.cluster.admission.keeper import (
    NAME,
    SECRET_NAME,
    Keeper,
    read_folder,
    read_secret,
    server_context,
    show,
)
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import MUTATING_WEBHOOK, SECRET
from strata.errors import StrataError, UsageError

pytestmark = pytest.mark.real("cryptography")

T0 = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("strata-webhook.strata-system.svc",)


def verifies(shown: CertificatePair, bundle: bytes, now: datetime) -> bool:
    """Whether a client that trusts `bundle` accepts a server's certificate, by the library's own path building."""
    from cryptography import x509
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(NAMES[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(shown.cert), [])
    except VerificationError:
        return False
    return True


class Server:
    """An API server that knows one Secret and one configuration, and refuses stale writes."""

    def __init__(self):
        self.version = 1
        self.objects = {
            (MUTATING_WEBHOOK, NAME): {
                "metadata": {"name": NAME, "resourceVersion": "1"},
                "webhooks": [
                    {"name": "a", "clientConfig": {"service": {"name": NAME, "namespace": "strata-system"}}},
                    {"name": "b", "clientConfig": {"service": {"name": "of-others", "namespace": "x"}}},
                ],
            }
        }
        self.writes = 0
        self.before_write = lambda: None

    def get(self, kind, name, namespace=""):
        return self.objects.get((kind, name))

    def create(self, kind, obj, *, is_dry_run=False):
        self.before_write()
        if (kind, obj["metadata"]["name"]) in self.objects:
            raise ApiFailed("it is there", status=409)
        return self._write(kind, obj)

    def replace(self, kind, obj, *, subresource=""):
        self.before_write()
        self._check(kind, obj["metadata"]["name"], obj["metadata"]["resourceVersion"])
        return self._write(kind, obj)

    def patch(self, kind, name, namespace="", *, body, subresource="", resource_version=""):
        self._check(kind, name, resource_version)
        return self._write(kind, {**self.objects[kind, name], **body})

    def _check(self, kind, name, version):
        if self.objects[kind, name]["metadata"]["resourceVersion"] != version:
            raise ApiFailed("it has changed", status=409)

    def _write(self, kind, obj):
        self.version += 1
        self.writes += 1
        said = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        self.objects[kind, obj["metadata"]["name"]] = said
        return said

    @property
    def bundle(self) -> bytes:
        webhooks = self.objects[MUTATING_WEBHOOK, NAME]["webhooks"]
        return base64.b64decode(webhooks[0]["clientConfig"]["caBundle"])


def test_a_first_certificate_is_trusted_by_who_trusts_the_authority():
    made = certs.step(Certificates(), NAMES, T0)
    assert verifies(made.serving, made.bundle, T0)
    assert not verifies(made.serving, certs.issue_authority(T0).cert, T0)


def test_nothing_changes_before_two_thirds_of_a_life_are_over():
    made = certs.step(Certificates(), NAMES, T0)
    assert certs.step(made, NAMES, T0 + SERVING_LIFE * 0.66) is made
    renewed = certs.step(made, NAMES, T0 + SERVING_LIFE * 0.67)
    assert renewed.authorities == made.authorities
    assert renewed.serving != made.serving


def test_another_name_makes_another_certificate():
    made = certs.step(Certificates(), NAMES, T0)
    assert certs.step(made, ("other.ns.svc",), T0).serving != made.serving


def test_a_clock_that_is_behind_by_minutes_still_trusts():
    made = certs.step(Certificates(), NAMES, T0)
    assert verifies(made.serving, made.bundle, T0 - timedelta(minutes=4))


def test_over_a_lifetime_what_is_shown_is_always_trusted_by_what_was_announced_before():
    now, state = T0, certs.step(Certificates(), NAMES, T0)
    announced, signers = state.bundle, {state.authorities[0]}
    for step_ in [timedelta(days=20)] * 400:
        now += step_
        for moment in (now, now + SPREAD + timedelta(minutes=6)):
            state = certs.step(state, NAMES, moment)
            assert verifies(state.serving, announced, moment)
            announced = state.bundle
            signers.add(state.authorities[0])
    assert len(signers) >= 3
    assert len(state.authorities) <= 2


def test_a_new_authority_does_not_sign_before_it_was_announced():
    first = certs.step(Certificates(), NAMES, T0)
    later = T0 + AUTHORITY_LIFE * 0.7
    rotated = certs.step(first, NAMES, later)
    assert len(rotated.authorities) == 2
    assert verifies(rotated.serving, first.bundle, later)
    assert not verifies(rotated.serving, rotated.authorities[0].cert, later)


def test_a_key_of_another_certificate_is_replaced():
    made = certs.step(Certificates(), NAMES, T0)
    mixed = Certificates(made.authorities, CertificatePair(made.serving.cert, certs.issue_authority(T0).key))
    assert certs.step(mixed, NAMES, T0).serving != mixed.serving


@pytest.mark.parametrize("pair", [CertificatePair(b"", b""), CertificatePair(b"no", b"no")])
def test_what_is_no_certificate_is_said_to_be_none(pair):
    with pytest.raises(UsageError, match="not a certificate"):
        certs.due(pair, T0)


def test_the_server_is_told_whom_to_trust_and_other_webhooks_keep_what_they_have():
    server = Server()
    shown = Keeper(server).look(T0)
    assert verifies(shown, server.bundle, T0)
    assert server.objects[MUTATING_WEBHOOK, NAME]["webhooks"][1]["clientConfig"].get("caBundle") is None


def test_looking_again_writes_nothing():
    server = Server()
    shown = Keeper(server).look(T0)
    writes = server.writes
    assert Keeper(server).look(T0 + timedelta(days=1)) == shown
    assert server.writes == writes


def test_two_replicas_that_start_at_once_show_the_same():
    server = Server()
    second: list[CertificatePair] = []

    def race():
        server.before_write = lambda: None
        second.append(Keeper(server).look(T0))

    server.before_write = race
    first = Keeper(server).look(T0)
    assert [first] == second


def test_two_replicas_that_renew_at_once_show_the_same():
    server, later = Server(), T0 + SERVING_LIFE * 0.7
    old = Keeper(server).look(T0)
    second: list[CertificatePair] = []

    def race():
        server.before_write = lambda: None
        second.append(Keeper(server).look(later))

    server.before_write = race
    assert [Keeper(server).look(later)] == second
    assert second != [old]


def test_a_server_that_always_conflicts_is_given_up():
    server = Server()

    def always():
        raise ApiFailed("busy", status=409)

    server.before_write = always
    with pytest.raises(ApiFailed, match="all the time"):
        Keeper(server).look(T0)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"tls.crt": "%%%"},
        {"tls.crt": 7},
        {"ca.crt": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()},
        {
            "ca.crt": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode(),
            "ca.key": base64.b64encode(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").decode(),
        },
    ],
    ids=["empty", "no-base64", "no-text", "no-key", "no-pem"],
)
def test_a_secret_somebody_spoiled_is_made_anew(data):
    server = Server()
    server.objects[SECRET, SECRET_NAME] = {"metadata": {"name": SECRET_NAME, "resourceVersion": "1"}, "data": data}
    shown = Keeper(server).look(T0)
    assert verifies(shown, server.bundle, T0)
    assert read_secret(server.objects[SECRET, SECRET_NAME]).serving == shown


def test_a_pair_loads_into_a_live_context_and_a_wrong_one_leaves_it_as_it_was(tmp_path):
    made = certs.step(Certificates(), NAMES, datetime.now(UTC))  # the library looks at the real clock
    (tmp_path / "tls.crt").write_bytes(made.serving.cert)
    (tmp_path / "tls.key").write_bytes(made.serving.key)
    context = server_context()
    show(context, read_folder(tmp_path))
    with pytest.raises(StrataError, match="do not load"):
        show(context, CertificatePair(made.serving.cert, made.authorities[0].key))
    assert handshake(context, made.bundle)


def handshake(context: ssl.SSLContext, bundle: bytes) -> bool:
    """Whether a client that trusts `bundle` agrees with a server's context, in memory."""
    client = ssl.create_default_context(cadata=bundle.decode())
    client.check_hostname = False
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up), context.wrap_bio(up, down, server_side=True)]
    done = [False, False]
    for _ in range(6):
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                continue
    return all(done)


def test_a_folder_without_a_key_says_which_file_is_missing(tmp_path):
    with pytest.raises(UsageError, match=r"tls\.crt"):
        read_folder(tmp_path)
