"""The certificate that gateways are served with: from files that may change, or made at start.

Gateways speak TLS to endpoint pickers and verify nothing by default, so pickers sign a certificate
of their own where none is given. One that is given is renewed in its place (cert-manager writes a
secret, the kubelet swaps the files), so the files are looked at again and again: new connections
get what is there by then. A renewal caught half way leaves what was served before.

Source: Gateway API Inference Extension, internal/tls/tls.go (self-signed, ten years, ALPN h2).
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from leadsman.units import Seconds

LOG: Final = logging.getLogger(__name__)
LOOK_EVERY: Final[Seconds] = 10.0
_VALID: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files of a certificate, its chain included, and of its key."""

    certificate: Path
    key: Path


TlsSource: TypeAlias = Tls | Literal["self-signed"]


def context_of(source: TlsSource) -> ssl.SSLContext:
    """Make the context of a server that speaks HTTP/2 alone. Raises OSError for unread files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    if isinstance(source, Tls):
        context.load_cert_chain(source.certificate, source.key)
        return context
    with TemporaryDirectory(prefix="leadsman-tls-") as folder:  # the ssl module takes only files
        made = self_signed(Path(folder))
        context.load_cert_chain(made.certificate, made.key)
    return context


def self_signed(folder: Path) -> Tls:
    """Write a key of its own and the certificate that it signs into a folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leadsman")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("leadsman")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Tls(certificate=folder / "tls.crt", key=folder / "tls.key")
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return made


@asynccontextmanager
async def kept_fresh(
    context: ssl.SSLContext, source: TlsSource, *, every: Seconds = LOOK_EVERY
) -> AsyncIterator[None]:
    """Follow the files until left; new connections get what they hold by then."""
    if not isinstance(source, Tls):
        yield
        return
    follower = asyncio.create_task(_follow(context, source, _read(source), every))
    try:
        yield
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


_Pair: TypeAlias = tuple[bytes, bytes]


async def _follow(
    context: ssl.SSLContext, files: Tls, served: _Pair | None, every: Seconds
) -> None:
    while True:
        await asyncio.sleep(every)
        found = _read(files)
        if found is None or found == served:
            continue
        served = found
        try:
            context_of(files)  # a key that does not fit would leave half of the pair behind
            context.load_cert_chain(files.certificate, files.key)
        except (OSError, ssl.SSLError) as error:
            LOG.warning("certificate not renewed", extra={"error": str(error)})
        else:
            LOG.info("certificate renewed", extra={"certificate": str(files.certificate)})


def _read(files: Tls) -> _Pair | None:
    try:
        return files.certificate.read_bytes(), files.key.read_bytes()
    except OSError:
        return None
