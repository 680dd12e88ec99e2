"""The plugin's kernels change under a running host: refused by name, until somebody says which kernels are meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import synapse_owned_cpu

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EngineCrashed, ProbeRequired
from synapse_host.testing.running_host import RunningHost, load_model, python_path

MODEL, TEXT = "swapped", "the tide came in"


def installed_copy(folder: Path) -> Path:
    """The cpu plugin in a folder of its own, which comes before the installed one."""
    (package,) = map(Path, synapse_owned_cpu.__path__)
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / package.name


def refused(client: Client) -> EngineCrashed:
    with pytest.raises(EngineCrashed) as caught:
        client.embed_query(MODEL, TEXT)
    assert caught.value.details is not None
    return caught.value


def test_swapped_kernels_are_refused_with_both_values_until_the_model_is_loaded_again(
    tmp_path: Path, tiny_directory: Path
) -> None:
    plugin = installed_copy(tmp_path / "site")
    with RunningHost(tmp_path / "home", python_path(plugin.parent)) as host, host.client() as client:
        load_model(client, tiny_directory, engine="cpu", model_id=MODEL)
        before = client.embed_query(MODEL, TEXT)
        kernels = plugin / "openvino_ops.py"
        sound = kernels.read_text()
        kernels.write_text(f"{sound}\n_REVISED = 1\n")
        # A running worker has the kernels it was started with.
        assert client.embed_query(MODEL, TEXT).fingerprint == before.fingerprint
        client.model_unload(MODEL)
        for _ in range(3):
            error = refused(client)
            assert error.details is not None
            assert error.details["handshake_code"] == "kernel_revision_mismatch"
            assert (error.error_class, error.safe_to_retry) == ("permanent", False)
            expected, actual = error.details["expected"], error.details["actual"]
            assert expected != actual
            for said in (expected, actual, "load the model again", "reinstall the plugin"):
                assert said in error.message
        assert client.call("admission.status")["health"]["lanes"][0]["strikes"] == 0

        # Probing the registered identity cannot help, and takes nothing away from it.
        job = client.probe_start([MODEL])["job_id"]
        with pytest.raises(EngineCrashed, match="kernel_revision"):
            client.wait_for_probe(job)
        assert client.probe_report()["lanes"][0]["certified"]

        # First remedy: the kernels the model was registered with.
        kernels.write_text(sound)
        again = client.embed_query(MODEL, TEXT)
        assert again.fingerprint == before.fingerprint
        assert again.vectors.tobytes() == before.vectors.tobytes()

        # Second remedy: register the model with the new ones.
        kernels.write_text(f"{sound}\n_REVISED = 2\n")
        status = load_model(client, tiny_directory, engine="cpu", model_id=MODEL, certify=False)
        assert status["fingerprint"] != before.fingerprint
        with pytest.raises(ProbeRequired):
            client.embed_query(MODEL, TEXT)
