"""A real Kubernetes control plane on this machine: etcd and kube-apiserver, without containers.

The programs come from KUBEBUILDER_ASSETS where that is set, as elsewhere in Kubernetes' own tests.
Otherwise they are built from their Go modules, once, into a folder under the user's cache: one
binary under two names. Cold that takes some minutes on idle cores and 3 GB of Go's caches;
afterwards nothing. A start takes three seconds and half a gigabyte, state included.

Run as a program it builds, and says where.
"""

import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leadsman_bench.processes import dying_with_parent, free_ports

from .go_programs import NotToBeHadError, built

MODULE: Final = Path(__file__).parent / "controlplane"
PROGRAMS: Final = ("etcd", "kube-apiserver")
PATIENCE: Final = 120.0


@dataclass(frozen=True)
class ControlPlane:
    """A running API server, and its process. `kubeconfig` is the administrator's."""

    url: str
    token: str
    authority: Path
    kubeconfig: Path
    pid: int

    def ask(self, method, path, body=None, *, kind="application/json", table=False):
        """Send one request as the administrator; gives the status and what was answered.

        table: as `kubectl get` has it printed.
        """
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io" if table else "application/json"
        request = urllib.request.Request(  # our own server's address
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self.token}",
                "content-type": kind,
                "accept": accept,
            },
        )
        context = ssl.create_default_context(cafile=str(self.authority))
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, _read(error.read())

    def token_of(self, namespace, account):
        """Ask for a token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        status, said = self.ask("POST", path, body)
        assert status == 201, said
        return said["status"]["token"]


def _read(said: bytes):
    """Read an error's body: JSON, but where a kind is not served yet."""
    try:
        return json.loads(said)
    except ValueError:
        return said.decode(errors="replace")


def programs() -> Path:
    """Find or build the programs; gives their folder. Raises NotToBeHadError."""
    stated = os.environ.get("KUBEBUILDER_ASSETS")
    if stated:
        missing = [name for name in PROGRAMS if not (Path(stated) / name).exists()]
        if missing:
            raise NotToBeHadError(
                f"KUBEBUILDER_ASSETS is {stated}, without {' and '.join(missing)}"
            )
        return Path(stated)
    program = built("control-plane", MODULE, stamps=_stamps())
    for name in PROGRAMS:
        link = program.with_name(name)
        if not link.is_symlink():
            link.symlink_to(program.name)
    return program.parent


def _stamps() -> list[str]:
    lines = (MODULE / "go.mod").read_text().splitlines()
    version = next(
        line.split()[1] for line in lines if line.strip().startswith("k8s.io/kubernetes ")
    )
    versions = {"gitVersion": version, "gitMajor": "1", "gitMinor": version.split(".")[1]}
    return [f"k8s.io/component-base/version.{key}={value}" for key, value in versions.items()]


@contextmanager
def control_plane(folder: Path, *, address: str = "127.0.0.1") -> Iterator[ControlPlane]:
    """Run etcd and an API server, state in a folder, until left. Raises NotToBeHadError.

    address: where the API server listens.
    """
    where = programs()
    with ExitStack() as stack:
        plane = _start(_Begin(stack, where, folder), folder, address)
        yield plane


def _start(begin: "_Begin", folder: Path, address: str) -> ControlPlane:
    store, peer, api = free_ports(3)
    token = secrets.token_hex(16)
    key = folder / "accounts.key"
    _make_key(key)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    etcd = begin(
        "etcd",
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls=http://127.0.0.1:{store}",
        f"--advertise-client-urls=http://127.0.0.1:{store}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
    )
    server = begin(
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{store}",
        f"--cert-dir={folder / 'certs'}",
        f"--bind-address={address}",
        f"--advertise-address={address}",
        f"--secure-port={api}",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--profiling=false",
    )
    plane = ControlPlane(
        url=f"https://{address}:{api}",
        token=token,
        authority=folder / "certs" / "apiserver.crt",
        kubeconfig=folder / "kubeconfig",
        pid=server.pid,
    )
    plane.kubeconfig.write_text(kubeconfig(plane, token))
    _wait_until_ready(plane, [etcd, server], folder)
    return plane


class _Begin:
    """Starts programs that end with a stack, each with its log in a folder."""

    def __init__(self, stack: ExitStack, where: Path, folder: Path) -> None:
        self._stack = stack
        self._where = where
        self._folder = folder

    def __call__(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            dying_with_parent([str(self._where / name), *arguments]),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        self._stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kubeconfig(plane: ControlPlane, token: str) -> str:
    """Write what a client with this token needs, as JSON, which is YAML too."""
    cluster = {"server": plane.url, "certificate-authority": str(plane.authority)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        }
    )


def _wait_until_ready(
    plane: ControlPlane, processes: list[subprocess.Popen[bytes]], folder: Path
) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for process in processes:
            if process.poll() is not None:
                logs = sorted(folder.glob("*.log"))
                said = [line for log in logs for line in log.read_text().splitlines()[-3:]]
                raise NotToBeHadError(
                    f"a program stopped with {process.returncode}: {' '.join(said)}"
                )
        try:
            status, _ = plane.ask("GET", "/api/v1/namespaces/default")
        except OSError:
            status = None
        if status == 200:
            return
        time.sleep(0.1)
    raise NotToBeHadError(f"the API server was not ready after {PATIENCE:.0f} s")


def _make_key(path: Path) -> None:
    if shutil.which("openssl") is None:
        raise NotToBeHadError("no openssl to make a key with")
    subprocess.run(
        ["openssl", "genrsa", "-out", str(path), "2048"], check=True, capture_output=True
    )


if __name__ == "__main__":
    try:
        print(programs())
    except NotToBeHadError as problem:
        sys.exit(f"no Kubernetes control plane: {problem}")
