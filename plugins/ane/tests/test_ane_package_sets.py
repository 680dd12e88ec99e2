"""Archives that lie, bombs, names that lead elsewhere, wrong digests: each typed, and nothing is left outside."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from synapse_ane.package_archive import ArchiveLimits, extract
from synapse_ane.package_set import Member, composite_digest, members_of, open_set, package_for

from synapse_host.hookspecs import PluginError


def metadata(length: int, dims: int) -> bytes:
    schema = {"inputSchema": [{"name": "attention_mask", "shape": f"[1, {length}]"}, {"name": "input_ids"}]}
    schema["inputSchema"][1]["shape"] = f"[1, {length}]"
    return json.dumps([{**schema, "outputSchema": [{"name": "vector", "shape": f"[1, {dims}]"}]}]).encode()


def archive_of(members: Mapping[str, bytes | str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def package(length: int = 128, dims: int = 8) -> bytes:
    return archive_of({"m.mlmodelc/metadata.json": metadata(length, dims), "m.mlmodelc/weights/weight.bin": b"\1" * 64})


def with_link() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        link = zipfile.ZipInfo("m.mlmodelc/passwd")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    return data.getvalue()


def understating() -> bytes:
    """A member whose directory entry says 4 bytes and whose data are a thousand."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m.mlmodelc/big.bin", b"\1" * 1000)
    raw = bytearray(data.getvalue())
    at = raw.rindex(b"PK\1\2") + 24
    raw[at : at + 4] = struct.pack("<I", 4)
    return bytes(raw)


def twice() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("m.mlmodelc/a", b"1")
        archive.writestr("m.mlmodelc/A", b"2")
    return data.getvalue()


BAD: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "a path upwards": (lambda: archive_of({"m.mlmodelc/../../evil": b"x"}), "outside"),
    "an absolute path": (lambda: archive_of({"/evil": b"x"}), "outside"),
    "a path of another system": (lambda: archive_of({"m.mlmodelc/..\\evil": b"x"}), "outside"),
    "a drive": (lambda: archive_of({"C:evil": b"x"}), "outside"),
    "a link": (with_link, "neither"),
    "one name twice": (twice, "twice"),
    "a bomb": (lambda: archive_of({"m.mlmodelc/zeros": b"\0" * (64 << 20)}), "would grow"),
    "too many files": (lambda: archive_of({f"m.mlmodelc/{i}": b"x" for i in range(50)}), "50 files"),
    "two folders": (lambda: archive_of({"m.mlmodelc/a": b"x", "n.mlmodelc/a": b"x"}), "expected is one"),
    "no package": (lambda: archive_of({"weights/a": b"x"}), "expected is one"),
    "nothing": (lambda: archive_of({}), "nothing"),
    "no zip": (lambda: b"not a zip at all", "no zip"),
    "a cut zip": (lambda: package()[:-30], "no zip"),
    "more than it says": (understating, "Bad CRC"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_archive_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    make, said = BAD[name]
    folder = tmp_path / "inside" / "package"
    folder.mkdir(parents=True)
    with pytest.raises(PluginError) as refused:
        extract(io.BytesIO(make()), "it.zip", folder, ArchiveLimits(files=40))
    assert (refused.value.code, said in str(refused.value), "it.zip" in str(refused.value)) == (
        "artifact_invalid",
        True,
        True,
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert list(folder.iterdir()) == []


def test_a_good_archive_comes_out_as_it_went_in(tmp_path: Path) -> None:
    root = extract(io.BytesIO(package()), "it.zip", tmp_path)
    assert root == tmp_path / "m.mlmodelc"
    assert (root / "weights" / "weight.bin").read_bytes() == b"\1" * 64


def written(folder: Path, *archives: bytes) -> list[Member]:
    members = []
    for place, archive in enumerate(archives):
        path = folder / f"{place}.zip"
        path.write_bytes(archive)
        members.append(Member(path, hashlib.sha256(archive).hexdigest()))
    return members


def test_a_set_is_ordered_by_length_and_a_row_takes_the_smallest(tmp_path: Path) -> None:
    members = written(tmp_path, package(512), package(128), package(256))
    out = tmp_path / "out"
    out.mkdir()
    packages = open_set(members, out)
    assert [each.length for each in packages] == [128, 256, 512]
    assert [package_for(packages, tokens).length for tokens in (1, 128, 129, 512)] == [128, 128, 256, 512]
    with pytest.raises(PluginError, match="513 tokens passes the longest package, 512"):
        package_for(packages, 513)
    assert composite_digest(members) != composite_digest(members[::-1])


SETS: Mapping[str, tuple[tuple[bytes, ...], str]] = {
    "two of one length": ((package(128), package(128)), "one length"),
    "of two models": ((package(128, 8), package(256, 9)), "vectors"),
    "without a description": ((archive_of({"m.mlmodelc/weights/weight.bin": b"x"}),), "metadata.json"),
    "described wrongly": ((archive_of({"m.mlmodelc/metadata.json": b"[{}]"}),), "metadata.json"),
    "of several rows": (
        (archive_of({"m.mlmodelc/metadata.json": metadata(128, 8).replace(b"[1, 128]", b"[4, 128]")}),),
        "not one row",
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_is_not_of_one_model_is_refused(name: str, tmp_path: Path) -> None:
    archives, said = SETS[name]
    (tmp_path / "out").mkdir()
    with pytest.raises(PluginError, match=said) as refused:
        open_set(written(tmp_path, *archives), tmp_path / "out")
    assert refused.value.code == "artifact_invalid"


def test_a_file_that_is_not_its_digest_is_not_even_opened(tmp_path: Path) -> None:
    (member,) = written(tmp_path, package())
    (tmp_path / "out").mkdir()
    with pytest.raises(PluginError, match=r"0\.zip has the digest") as refused:
        open_set([Member(member.path, "0" * 64)], tmp_path / "out")
    assert refused.value.code == "artifact_invalid"
    assert list((tmp_path / "out" / "0").iterdir()) == []
    (tmp_path / "other").mkdir()
    with pytest.raises(PluginError, match="cannot be read"):
        open_set([Member(tmp_path / "absent.zip", "0" * 64)], tmp_path / "other")


@pytest.mark.parametrize(
    ("paths", "digests"),
    [
        ('["a"]', "[]"),
        ("[]", "[]"),
        ('"a"', '["' + "0" * 64 + '"]'),
        ("[1]", '["' + "0" * 64 + '"]'),
        ("no json", "[]"),
        ('["a"]', '["ABC"]'),
    ],
)
def test_lists_that_do_not_fit_are_a_fault_of_the_configuration(paths: str, digests: str) -> None:
    with pytest.raises(PluginError) as refused:
        members_of({"artifact_paths": paths, "artifact_digests": digests})
    assert refused.value.code == "config_invalid"


def test_the_lists_of_load_are_read_in_order() -> None:
    digests = [hashlib.sha256(bytes([place])).hexdigest() for place in range(2)]
    config = {"artifact_paths": '["/m/a.zip", "/m/b.zip"]', "artifact_digests": json.dumps(digests)}
    assert members_of(config) == [Member(Path("/m/a.zip"), digests[0]), Member(Path("/m/b.zip"), digests[1])]
