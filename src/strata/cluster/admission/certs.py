"""Certificates of the webhook's server, made and renewed by itself: an authority, and what it signed.

`step` says what the certificates should be at a time; `keeper.py` keeps them in a Secret that all replicas share.
An authority signs only once it is `SPREAD` old: until then API servers may know only the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from strata.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY_LIFE: Final = timedelta(days=3650)
SERVING_LIFE: Final = timedelta(days=90)
SPREAD: Final = timedelta(minutes=10)
"""How long a new authority is only announced."""
SKEW: Final = timedelta(minutes=5)
"""Certificates are valid this long before they are made, for clocks that are behind."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, both PEM."""

    cert: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Certificates:
    """authorities: all that are trusted, the newest first. serving: what the server shows; None at first."""

    authorities: tuple[CertificatePair, ...] = ()
    serving: CertificatePair | None = None

    @property
    def bundle(self) -> bytes:
        """What clients should trust, PEM."""
        return b"".join(authority.cert for authority in self.authorities)


def due(pair: CertificatePair, now: datetime) -> bool:
    """Return whether two thirds of a certificate's life are over. Raises UsageError for what is none."""
    cert = _read(pair.cert)
    life = cert.not_valid_after_utc - cert.not_valid_before_utc
    return bool(now >= cert.not_valid_before_utc + life * 2 / 3)


def step(certificates: Certificates, names: Sequence[str], now: datetime) -> Certificates:
    """Return the certificates that should be used at `now`: the same where none has to change.

    The newest authority is followed by another when it is due; an expired one goes. Raises UsageError where a
    certificate or a key cannot be read.
    """
    authorities = tuple(
        authority
        for authority in certificates.authorities
        if _belongs(authority) and now < _read(authority.cert).not_valid_after_utc
    )
    if not authorities or due(authorities[0], now):
        authorities = (issue_authority(now), *authorities)
    grown = [
        authority for authority in authorities if now >= _read(authority.cert).not_valid_before_utc + SKEW + SPREAD
    ]
    signer = (grown or authorities[-1:])[0]
    serving = certificates.serving
    if serving is None or due(serving, now) or not _is_good(serving, authorities, names):
        serving = issue(signer, names, now)
    after = Certificates(authorities, serving)
    return certificates if after == certificates else after


def issue_authority(now: datetime) -> CertificatePair:
    """Return a new authority; another each time, as its key is drawn."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    name = _name(f"strata-webhook-ca-{now:%Y%m%d%H%M%S}")
    builder = (
        _builder(name, name, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _signed(builder, key, key)


def issue(
    authority: CertificatePair, names: Sequence[str], now: datetime, *, life: timedelta = SERVING_LIFE
) -> CertificatePair:
    """Return a certificate of a server for some DNS names. Raises UsageError for an authority that is none."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    signer, signing_key = _read(authority.cert), _read_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        # The subject is no more than a label, and holds 64 characters at most.
        _builder(_name(names[0][:64]), signer.subject, key, now, life)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**dict.fromkeys(_USAGES, False) | {"digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False
        )
    )
    return _signed(builder, key, signing_key)


_USAGES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _is_good(serving: CertificatePair, authorities: Sequence[CertificatePair], names: Sequence[str]) -> bool:
    """Whether one of the authorities signed a certificate, and it has just these names."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    cert = _read(serving.cert)
    if not _belongs(serving):
        return False
    try:
        alternative_names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    if set(alternative_names.get_values_for_type(x509.DNSName)) != set(names):
        return False
    for authority in authorities:
        try:
            cert.verify_directly_issued_by(_read(authority.cert))
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _read(pem: bytes) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UsageError(f"this is not a certificate: {error}") from None


def _read_key(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"this is not a private key: {error}") from None


def _belongs(pair: CertificatePair) -> bool:
    return bool(_read_key(pair.key).public_key() == _read(pair.cert).public_key())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, now: datetime, life: timedelta) -> Any:
    from cryptography import x509

    start = now.astimezone(UTC).replace(microsecond=0) - SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + SKEW + life)
    )


def _signed(builder: Any, key: Any, by: Any) -> CertificatePair:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    cert = builder.sign(by, hashes.SHA256())
    return CertificatePair(
        cert.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
