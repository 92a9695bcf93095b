"""A certificate for a server on the loopback, and who signed it."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path


def make_certificate(folder: Path) -> tuple[Path, Path, Path]:
    """Return files in `folder`: an authority (ca.crt), the certificate it signed (tls.crt), its key (tls.key)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject, public_key, extension, is_critical):
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            issuer_name=name("test authority"),
            subject_name=name(subject),
            public_key=public_key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(hours=1),
            not_valid_after=now + timedelta(days=1),
        )
        return builder.add_extension(extension, is_critical).sign(signer, hashes.SHA256())

    signer, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), loopback])
    authority = certificate("test authority", signer.public_key(), x509.BasicConstraints(True, None), True)
    made = certificate("test server", key.public_key(), names, False)
    pem = serialization.Encoding.PEM
    files = folder / "ca.crt", folder / "tls.crt", folder / "tls.key"
    files[0].write_bytes(authority.public_bytes(pem))
    files[1].write_bytes(made.public_bytes(pem))
    form = serialization.PrivateFormat.TraditionalOpenSSL
    files[2].write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return files
