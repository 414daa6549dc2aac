import asyncio
import shutil
import ssl

import pytest
from leadsman_extproc.certificates import context_of, kept_fresh, self_signed
from leadsman_extproc.http2.server import listening


async def served_by(port):
    """Return the certificate that a new connection is given."""
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
    return pem.strip()


@pytest.fixture
def files(tmp_path):
    return self_signed(tmp_path)


@pytest.fixture
def others(tmp_path):
    (tmp_path / "next").mkdir()
    return self_signed(tmp_path / "next")


async def test_a_picker_without_files_signs_a_certificate_of_its_own_each_time():
    found = []
    for _ in range(2):
        async with listening("127.0.0.1:0", {}, tls=context_of("self-signed")) as port:
            found.append(await served_by(port))

    assert len(set(found)) == 2


async def test_only_http2_is_offered(files):
    client = ssl.create_default_context(cafile=str(files.certificate))
    client.check_hostname = False
    client.set_alpn_protocols(["http/1.1", "h2"])

    async with listening("127.0.0.1:0", {}, tls=context_of(files)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        spoken = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()

    assert spoken == "h2"


async def test_a_renewed_certificate_is_served_to_new_connections(files, others):
    tls = context_of(files)
    before = files.certificate.read_text().strip()
    after = others.certificate.read_text().strip()

    async with (
        listening("127.0.0.1:0", {}, tls=tls) as port,
        kept_fresh(tls, files, every=0.01),
        asyncio.timeout(20),
    ):
        first = await served_by(port)
        shutil.copy(others.key, files.key)
        shutil.copy(others.certificate, files.certificate)
        while await served_by(port) != after:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)

    assert first == before


async def test_a_renewal_caught_half_way_leaves_what_was_served(files, others, caplog):
    tls = context_of(files)
    before = files.certificate.read_text().strip()

    async with (
        listening("127.0.0.1:0", {}, tls=tls) as port,
        kept_fresh(tls, files, every=0.01),
        asyncio.timeout(20),
    ):
        shutil.copy(others.certificate, files.certificate)
        while "certificate not renewed" not in caplog.messages:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
        during = await served_by(port)

    assert during == before


def test_files_that_are_not_there_are_an_error(files):
    files.key.unlink()

    with pytest.raises(FileNotFoundError):
        context_of(files)


def test_the_key_is_for_its_owner_alone(files):
    assert files.key.stat().st_mode & 0o077 == 0


async def test_a_picker_may_end_while_a_peer_still_shakes_hands(files):
    async with listening("127.0.0.1:0", {}, tls=context_of(files)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)

    writer.close()
