"""No process of the host touches the network: not the host, not the probe child, not a worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from synapse_host.errors import SynapseError
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, write_tiny_catalog
from synapse_host.testing.network_trap import NetworkTrap
from synapse_host.testing.running_host import RunningHost, load_model

#: A whole life of a host with the cpu engine, in one program, so that it can be run where there is no network at all.
LIFE = """
import sys
from pathlib import Path
from synapse_host.testing.running_host import RunningHost, load_model

with RunningHost(Path(sys.argv[1])) as host, host.client() as client:
    load_model(client, Path(sys.argv[2]), engine="cpu", model_id="tiny")
    assert client.embed_query("tiny", "text").dims == 32
"""
#: Runs a program given as argument and then says how often the kernel of a cut-off network was asked for a way out.
#: Native code is counted as well, which no trap in Python sees.
COUNTED = """
import subprocess, sys
from pathlib import Path

def unroutable():
    heads, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines()[:2])
    return int(values[heads.index("OutNoRoutes")])

before = unroutable()
subprocess.run([sys.executable, "-P", "-c", *sys.argv[1:]], check=True)
print(unroutable() - before)
"""
USES = {
    "connect": "socket.create_connection(('127.0.0.1', 9), 1)",
    "connect of IPv6": "socket.socket(socket.AF_INET6).connect(('::1', 9))",
    "name": "socket.getaddrinfo('example.org', 80)",
    "old name": "socket.gethostbyname('example.org')",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "listening": "socket.socket(socket.AF_INET).bind(('127.0.0.1', 0))",
    "http": "__import__('urllib.request').request.urlopen('http://127.0.0.1:9/', timeout=1)",
}


def test_nothing_the_host_starts_uses_the_network(tmp_path: Path, tiny_directory: Path) -> None:
    trap = NetworkTrap.set_in(tmp_path / "trap")
    with RunningHost(tmp_path / "home", trap.environment) as host, host.client() as client:
        load_model(client, tiny_directory, engine="cpu", model_id="tiny")
        assert client.embed_query("tiny", "text").dims == 32
        client.model_unload("tiny")
        client.embed_batch("tiny", ["brought", "back"])
    assert trap.caught() == []
    commands = [" ".join(command) for command in trap.started()]
    for part in (
        "-m synapse_host serve",
        "synapse_host.worker.probe cpu",
        "synapse_host.worker cpu",
        "worker reference",
    ):
        assert any(part in command for command in commands), (part, commands)


def test_serving_models_of_the_catalog_never_tries_the_network(tmp_path: Path) -> None:
    trap = NetworkTrap.set_in(tmp_path / "trap")
    catalog = write_tiny_catalog(tmp_path / "catalog")
    catalog.install(tmp_path / "home", EMBED)
    with RunningHost(tmp_path / "home", {**trap.environment, **catalog.environment}) as host, host.client() as client:
        answer = client.embed_query(EMBED, "a text")
        client.model_unload(f"{EMBED}-reference")
        assert client.embed_query(EMBED, "a text").fingerprint == answer.fingerprint
        # What is not here is refused, not fetched.
        for model in (OTHER, f"{EMBED}-metal"):
            with pytest.raises(SynapseError):
                client.embed_query(model, "a text")
        client.models_catalog()
        client.models_list()
    assert trap.caught() == []


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_the_trap_catches(tmp_path: Path, use: str) -> None:
    trap = NetworkTrap.set_in(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-P", "-c", f"import socket; {use}"],
        env={**os.environ, **trap.environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1
    assert "trapped" in ran.stderr
    assert len(trap.caught()) >= 1


def test_the_trap_lets_unix_sockets_pass(tmp_path: Path) -> None:
    trap = NetworkTrap.set_in(tmp_path)
    pair = "a, b = socket.socketpair(); a.sendall(b'x'); assert b.recv(1) == b'x'; a.close(); b.close()"
    subprocess.run([sys.executable, "-c", f"import socket; {pair}"], env={**os.environ, **trap.environment}, check=True)
    assert trap.caught() == []


def attempts_when_cut_off(program: str, *arguments: str) -> int:
    """How often ``program`` asked for a way out, in a network namespace that has none."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-n", "true"], capture_output=True).returncode != 0:
        pytest.skip("this system or user cannot cut the network off (unshare -n)")
    command = [unshare, "-n", sys.executable, "-P", "-c", COUNTED, program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_a_host_lives_its_whole_life_with_the_network_cut_and_asks_for_none(
    tmp_path: Path, tiny_directory: Path
) -> None:
    assert attempts_when_cut_off(LIFE, str(tmp_path), str(tiny_directory)) == 0


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_what_asks_for_a_way_out_is_counted(kind: str) -> None:
    peer = f"socket.socket(socket.AF_INET, socket.{kind})"
    assert attempts_when_cut_off(f"import socket; peer = {peer}; peer.connect_ex(('192.0.2.1', 53)); peer.close()") > 0
