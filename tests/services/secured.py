"""Servers that let nobody in without TLS and a password, with certificates made for them."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.cassandra import START_TIMEOUT_S, CassandraServer
from tests.services.rabbitmq import RabbitMQServer
from tests.services.servers import (
    HOST,
    READ_BYTES,
    MemcachedServer,
    MissingServer,
    PostgresServer,
    RedisServer,
    await_condition,
)
from tests.services.zookeeper import ZooKeeperServer

USER, PASSWORD = "me", "hunter2-s3cret"

EXTENSIONS = f"subjectAltName=IP:{HOST},DNS:localhost"


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form: who signs, the server, a client, and somebody nobody knows."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def stranger(self) -> str:
        return str(self.folder / "stranger.pem")

    def cert(self, name: str = "server") -> str:
        return str(self.folder / f"{name}.pem")

    def key(self, name: str = "server") -> str:
        return str(self.folder / f"{name}.key")

    def both(self, name: str = "server") -> str:
        """Certificate and key in one file."""
        return str(self.folder / f"{name}-both.pem")


@pytest.fixture(scope="session")
def certificates() -> Iterator[Certificates]:
    if shutil.which("openssl") is None:
        pytest.skip("NO OPENSSL HERE: it makes the certificates. `apt-get install openssl`.")
    folder = Path(tempfile.mkdtemp(prefix="waterspout-certificates-"))
    for name in ("ca", "stranger"):
        openssl(folder, *new_key(name), "-x509", "-out", f"{name}.pem", "-days", "2")
    for name in ("server", "client"):
        openssl(folder, *new_key(name), "-out", f"{name}.csr")
        (folder / "extensions").write_text(EXTENSIONS)
        signed = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
        signed += ["-CAcreateserial", "-out", f"{name}.pem", "-days", "2"]
        openssl(folder, *signed, "-extfile", "extensions")
        both = (folder / f"{name}.pem").read_text() + (folder / f"{name}.key").read_text()
        (folder / f"{name}-both.pem").write_text(both)
    for path in [folder, *folder.iterdir()]:  # some servers run as another user
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield Certificates(folder)
    shutil.rmtree(folder)


def new_key(name: str) -> list[str]:
    made = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    return [*made, "-keyout", f"{name}.key", "-subj", f"/CN={name}"]


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def tls_roundtrip(port: int, request: bytes, certificates: Certificates) -> bytes:
    """Send some bytes over a new TLS connection and return the beginning of the answer."""
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(certificates.cert("client"), certificates.key("client"))
    with (
        socket.create_connection((HOST, port), timeout=2) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        connection.sendall(request)
        return connection.recv(READ_BYTES)


class SecuredRedis(RedisServer):
    """Redis with TLS alone and one user."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(durable=False)
        self.certificates = certificates

    def command(self) -> list[str]:
        users = self.folder / "users.acl"
        users.write_text(f"user default off\nuser {USER} on >{PASSWORD} ~* &* +@all\n")
        self.settings = {
            "tls_port": str(self.port),
            "tls_cert_file": self.certificates.cert(),
            "tls_key_file": self.certificates.key(),
            "tls_ca_cert_file": self.certificates.ca,
            "tls_auth_clients": "no",
            "aclfile": str(users),
            "port": "0",
        }
        return super().command()

    def answers(self) -> bool:
        return tls_roundtrip(self.port, b"PING\r\n", self.certificates).startswith(b"-NOAUTH")


class SecuredMemcached(MemcachedServer):
    """memcached with TLS and a file of users."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.certificates = certificates
        known = subprocess.run([str(self.binary), "--help"], capture_output=True, check=False)
        if b"--enable-ssl" not in known.stdout:
            self.close()
            raise MissingServer("NO MEMCACHED WITH TLS HERE: this one was built without it.")

    def command(self) -> list[str]:
        users = self.folder / "users"
        users.write_text(f"{USER}:{PASSWORD}\n")
        self.folder.chmod(0o755)
        files = f"ssl_chain_cert={self.certificates.cert()},ssl_key={self.certificates.key()}"
        return [*super().command(), "-Z", "-o", files, "-Y", str(users)]

    def answers(self) -> bool:
        return bool(tls_roundtrip(self.port, b"version\r\n", self.certificates))


class SecuredPostgres(PostgresServer):
    """PostgreSQL that wants TLS and a password (SCRAM) of everybody but its superuser."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.certificates = certificates

    def initialise(self) -> None:
        super().initialise()
        (self.data / "pg_hba.conf").write_text(
            f"host all {self.superuser} {HOST}/32 trust\nhostssl all all {HOST}/32 scram-sha-256\n"
        )
        for file, name in (
            (self.certificates.cert(), "server.crt"),
            (self.certificates.key(), "server.key"),
        ):
            shutil.copy(file, self.data / name)
            (self.data / name).chmod(0o600)
            if self.user is not None:
                shutil.chown(self.data / name, self.user)

    def command(self) -> list[str]:
        return [*super().command(), "-c", "ssl=on"]

    def make_user(self) -> None:
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
            connection.execute(f"CREATE DATABASE app OWNER {USER}")


class SecuredRabbitMQ(RabbitMQServer):
    """RabbitMQ that listens with TLS alone."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.certificates = certificates

    def settings(self) -> Iterator[tuple[str, object]]:
        file = self.folder / "rabbitmq.conf"
        file.write_text(
            f"listeners.tcp = none\nlisteners.ssl.default = {HOST}:{self.port}\n"
            f"ssl_options.cacertfile = {self.certificates.ca}\n"
            f"ssl_options.certfile = {self.certificates.cert()}\n"
            f"ssl_options.keyfile = {self.certificates.key()}\n"
            "ssl_options.verify = verify_none\n"
        )
        for name, value in super().settings():
            if name not in ("RABBITMQ_NODE_IP_ADDRESS", "RABBITMQ_NODE_PORT"):
                yield name, file if name == "RABBITMQ_CONFIG_FILE" else value

    @property
    def url(self) -> str:
        return f"amqps://guest:guest@{self.host}:{self.port}/%2F"

    def answers(self) -> bool:
        hello = b"AMQP\x00\x00\x09\x01"
        return tls_roundtrip(self.port, hello, self.certificates).startswith(b"\x01")


class SecuredZooKeeper(ZooKeeperServer):
    """ZooKeeper that listens with TLS alone, and wants the certificate of a client."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.certificates = certificates

    def command(self) -> list[str]:
        words = super().command()
        settings = Path(words[-1])
        text = settings.read_text().replace("clientPort=", "secureClientPort=")
        text = text.replace("clientPortAddress=", "secureClientPortAddress=")
        settings.write_text(
            f"{text}serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={self.certificates.both()}\nssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={self.certificates.ca}\nssl.trustStore.type=PEM\n"
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n"
            "ssl.authProvider=x509\n"
        )
        return words

    def answers(self) -> bool:
        said = tls_roundtrip(self.port, b"srvr", self.certificates)
        return said.startswith(b"Zookeeper version")


class SecuredCassandra(CassandraServer):
    """Cassandra that wants TLS and a password; its first user is cassandra, so called."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__()
        self.certificates = certificates

    def command(self) -> list[str]:
        words = super().command()
        store = self.folder / "keystore.p12"
        openssl(
            self.folder, "pkcs12", "-export", "-in", self.certificates.both(),
            "-out", str(store), "-password", "pass:changeit",
        )  # fmt: skip
        settings = self.folder / "cassandra.yaml"
        settings.write_text(
            f"{settings.read_text()}authenticator: PasswordAuthenticator\n"
            "authorizer: CassandraAuthorizer\n"
            "client_encryption_options:\n  enabled: true\n  optional: false\n"
            f'  keystore: "{store}"\n  keystore_password: changeit\n  store_type: PKCS12\n'
        )
        # Its first user is made ten seconds after the start, unless it is told otherwise.
        return [words[0], "-Dcassandra.superuser_setup_delay_ms=0", *words[1:]]

    def create_keyspace(self, name: str) -> None:
        """Create a keyspace, as soon as the first user is let in."""
        await_condition(lambda: self.created(name), START_TIMEOUT_S, self.said)

    def created(self, name: str) -> bool:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import Cluster, NoHostAvailable

        with Cluster(
            [self.address],
            auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
            ssl_context=ssl.create_default_context(cafile=self.certificates.ca),
            protocol_version=4,
        ) as cluster:
            try:
                cluster.connect().execute(
                    f"CREATE KEYSPACE {name} WITH replication = "
                    "{'class': 'SimpleStrategy', 'replication_factor': 1}"
                )
            except NoHostAvailable:
                return False
        return True

    def answers(self) -> bool:
        hello = b"\x04\x00\x00\x00\x05\x00\x00\x00\x00"
        return tls_roundtrip(self.port, hello, self.certificates)[:1] in (b"\x84", b"\x85")
