"""A certificate authority for one cluster, and the certificates of its servers and clients."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = timedelta(days=2)
_USES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
type _Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder; `certificate` is what everybody trusts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tidemill-test-cluster", "")
        builder = _builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._sign(builder.add_extension(_SIGNS, critical=True), self.certificate)

    def issue(self, name: str, user: str, group: str = "", addresses: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Certificate:
        """A certificate for a server at these addresses and names, or for a client whom Kubernetes shall see as this user of this group."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(user, group), key).add_extension(_USES, critical=False)
        alternatives = [*(x509.IPAddress(ipaddress.ip_address(a)) for a in addresses), *(x509.DNSName(n) for n in names)]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        made = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        self._sign(builder, made.certificate)
        _write_key(made.key, key)
        return made

    def signing_key(self, name: str) -> Path:
        """A key of its own, for service account tokens: RSA, as most clusters have."""
        file = self.folder / f"{name}.key"
        _write_key(file, rsa.generate_private_key(public_exponent=65537, key_size=2048))
        return file

    def _sign(self, builder: x509.CertificateBuilder, file: Path) -> None:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())  # Python 3.13 asks for one
        certificate = builder.issuer_name(self._name).add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _name(common: str, organization: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + _LIFE)


def _write_key(file: Path, key: _Key) -> None:
    file.touch(mode=0o600)
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
