"""Write a Java trust store with the certificates that this machine trusts.

Java ignores the certificates of the machine and uses its own list. In a network whose proxy has a certificate of a
private authority, pip therefore works and Java does not. The JKS format is simple, so this module writes it without
`keytool`, which would need a run per certificate.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path

BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
DEBIAN = "/etc/ssl/certs/ca-certificates.crt"  # a Python that was built from source does not search there
PASSWORD = "changeit"  # Java's default password: the content is public


def write_truststore(file: Path) -> bool:
    """Write the machine's certificate authorities to `file` as JKS.

    Returns False, and writes no file, if the machine has none.
    """
    certificates = _authorities()
    if not certificates:
        return False
    entries = b"".join(_entry(number, certificate) for number, certificate in enumerate(certificates))
    content = struct.pack(">III", 0xFEEDFEED, 2, len(certificates)) + entries
    # The checksum of the format: SHA-1 over the password, a fixed text and the content.
    seal = hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content + seal)
    return True


def _authorities() -> list[bytes]:
    context = ssl.create_default_context()
    for bundle in (*(os.environ.get(name, "") for name in BUNDLES), DEBIAN):
        if Path(bundle).is_file():
            context.load_verify_locations(bundle)
    return context.get_ca_certs(binary_form=True)


def _entry(number: int, certificate: bytes) -> bytes:
    trusted_certificate, created = 2, 0
    return (
        struct.pack(">I", trusted_certificate)
        + _text(f"ca{number}")
        + struct.pack(">Q", created)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
    )


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
