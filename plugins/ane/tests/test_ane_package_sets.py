"""Sets of archives: the digest and the description of each, and whether they are of one model; all before Core ML."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synapse_ane import package_set
from synapse_ane.package_set import Member, members_of, open_set, package_for
from synapse_ane.scratch_folder import scratch_folder

from synapse_host.hookspecs import PluginError
from synapse_host.model_files.compiled_package import PackageFault, PackageShape, package_shape, read_package_shape

IDS_AND_MASK = ("input_ids", "attention_mask")


def described(
    length: int = 128, out: Sequence[int] = (1, 8), inputs: Sequence[str] = IDS_AND_MASK, name: str = "vector"
) -> list[dict[str, Any]]:
    taken = [{"name": each, "dataType": "Int32", "shape": f"[1, {length}]"} for each in inputs]
    return [{"inputSchema": taken, "outputSchema": [{"name": name, "shape": str(list(out))}]}]


def archive(description: Any, weights: int = 64) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        if description is not None:
            packed.writestr("m.mlmodelc/metadata.json", json.dumps(description))
        packed.writestr("m.mlmodelc/weights/weight.bin", b"\1" * weights)
    return data.getvalue()


def package(length: int = 128, **changes: Any) -> bytes:
    return archive(described(length, **changes))


def written(folder: Path, *archives: bytes) -> list[Member]:
    members = []
    for place, content in enumerate(archives):
        path = folder / f"{place}.zip"
        path.write_bytes(content)
        members.append(Member(path, hashlib.sha256(content).hexdigest()))
    return members


def test_a_set_is_ordered_by_length_and_a_row_takes_the_smallest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    packages = open_set(written(tmp_path, package(512), package(128), package(256)), out)
    assert [each.length for each in packages] == [128, 256, 512]
    assert [each.name for each in packages] == ["1.zip", "2.zip", "0.zip"]
    found = [package_for(packages, tokens) for tokens in (1, 128, 129, 512, 513)]
    assert [each and each.length for each in found] == [128, 128, 256, 512, None]


SETS: Mapping[str, tuple[tuple[bytes, ...], str]] = {
    "two of one length": ((package(128), package(128)), "two packages for one length"),
    "vectors of two widths": ((package(128), package(256, out=(1, 9))), r"0\.zip and 1\.zip are not of one model"),
    "outputs of two names": ((package(128), package(256, name="score")), "'score'"),
    "one that tells texts apart": (
        (package(128), package(256, inputs=(*IDS_AND_MASK, "token_type_ids"))),
        "told apart in",
    ),
    "one that pools and one that does not": ((package(128), package(256, out=(1, 256, 8))), r"\[1, 256, 8\]"),
    "without a description": ((archive(None),), "No such file"),
    "described wrongly": ((archive([{}]),), "describes no inputs"),
    "of several rows": ((archive(json.loads(json.dumps(described()).replace("[1, 128]", "[4, 128]"))),), "not one row"),
    "of a vision model": ((package(inputs=("image",)),), "takes image; a package takes input_ids"),
    "without a mask": ((package(inputs=("input_ids",)),), "takes input_ids; a package takes"),
    "with more inputs": ((package(inputs=(*IDS_AND_MASK, "past_keys")),), "past_keys"),
    "of two outputs": (
        (
            archive(
                [
                    {
                        **described()[0],
                        "outputSchema": described()[0]["outputSchema"] * 2 + [{"name": "b", "shape": "[1]"}],
                    }
                ]
            ),
        ),
        "gives b, vector and should give one output",
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_is_not_of_one_model_is_refused(name: str, tmp_path: Path) -> None:
    archives, said = SETS[name]
    (tmp_path / "out").mkdir()
    with pytest.raises(PluginError, match=said) as refused:
        open_set(written(tmp_path, *archives), tmp_path / "out")
    assert refused.value.code == "artifact_invalid"


def test_what_is_unpacked_is_what_was_hashed_whoever_writes_into_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (member,) = written(tmp_path, package(128))
    other = package(256)
    extract = package_set.extract

    def written_over(*given: Any) -> Path:
        with member.path.open("r+b") as file:
            file.write(other)
        return extract(*given)

    monkeypatch.setattr(package_set, "extract", written_over)
    (tmp_path / "out").mkdir()
    (opened,) = open_set([member], tmp_path / "out")
    assert (opened.length, member.path.read_bytes()) == (128, other)
    assert [path.name for path in (tmp_path / "out" / "0").iterdir()] == ["m.mlmodelc"], "no copy is left"


def test_a_disk_that_takes_no_copy_is_no_fault_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    (tmp_path / "out").mkdir()
    with pytest.raises(PluginError, match="free disk space") as refused:
        open_set(written(tmp_path, package()), tmp_path / "out")
    assert refused.value.code == "load_failed"


@pytest.mark.parametrize(
    ("most", "said"),
    [
        ({"files": 5}, r"2\.zip holds 2 files and may hold 1 of those of a set"),
        ({"bytes": 3000}, r"2\.zip would grow from \d+ to \d+ bytes, and 2[0-9]{3} are left of what a set may have"),
        ({"bytes": 700}, r"2\.zip has \d+ bytes, and 1[0-9]{2} are left of what a set may have"),
    ],
)
def test_a_set_has_a_bound_of_its_own(
    most: dict[str, int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two packages are two files of some 280 bytes, the last of 5,000."""
    monkeypatch.setattr(package_set, "SET_LIMITS", replace(package_set.SET_LIMITS, **most))
    (tmp_path / "out").mkdir()
    with pytest.raises(PluginError, match=said) as refused:
        open_set(written(tmp_path, package(128), package(256), archive(described(512), 5000)), tmp_path / "out")
    assert refused.value.code == "artifact_invalid"


def test_the_bound_of_a_set_is_room_for_the_ladder_of_a_large_model() -> None:
    """The largest model of the catalog has 1.2 GB in half precision, and each of seven packages holds all of it."""
    assert 7 * 1_200_000_000 * 2 < package_set.SET_LIMITS.bytes <= 32 << 30
    assert package_set.SET_LIMITS.files >= 32 * 20


def test_a_file_that_is_not_its_digest_is_not_even_opened(tmp_path: Path) -> None:
    (member,) = written(tmp_path, package())
    (tmp_path / "out").mkdir()
    with pytest.raises(PluginError, match=r"0\.zip has the digest") as refused:
        open_set([Member(member.path, "0" * 64)], tmp_path / "out")
    assert refused.value.code == "artifact_invalid"
    assert list((tmp_path / "out" / "0").iterdir()) == []


def test_what_is_no_file_is_refused_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "folder.zip").mkdir()
    for place, (name, said) in enumerate({"pipe": "regular", "folder": "regular", "absent": "cannot be read"}.items()):
        out = tmp_path / f"out-{place}"
        out.mkdir()
        with pytest.raises(PluginError, match=said) as refused:
            open_set([Member(tmp_path / f"{name}.zip", "0" * 64)], out)
        assert refused.value.code == "artifact_invalid"


@pytest.mark.parametrize(
    ("paths", "digests"),
    [
        ('["a"]', "[]"),
        ("[]", "[]"),
        ('"a"', '["' + "0" * 64 + '"]'),
        ("[1]", '["' + "0" * 64 + '"]'),
        ("no json", "[]"),
        ('["a"]', '["ABC"]'),
        ("[" * 100_000, "[]"),
        (json.dumps(["a"] * 33), json.dumps(["0" * 64] * 33)),
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


def test_a_package_is_described_without_being_unpacked() -> None:
    shape = PackageShape(256, kinds=True, output="score", output_shape=(1, 1))
    raw = package(256, out=(1, 1), inputs=(*IDS_AND_MASK, "token_type_ids"), name="score")
    assert read_package_shape(io.BytesIO(raw)) == shape
    # Core ML may leave the shape of an output open.
    assert package_shape(json.dumps(described(out=())).encode()).output_shape == ()
    assert package_shape(json.dumps(described(out=(1, 128, 8))).encode()).output_shape == (1, 128, 8)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "no zip"),
        (package()[:-40], "no zip"),
        (archive(None), "holds 0 files"),
        (archive({"deep": 1}), "describes no inputs"),
    ],
)
def test_what_describes_nothing_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(PackageFault, match=said):
        read_package_shape(io.BytesIO(raw))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": ("input_\ud800ids",)}, r"takes 'input_\\ud800ids'; a package"),
        ({"inputs": ("a\0\x1b[31m",)}, r"takes 'a\\x00\\x1b\[31m'; a package"),
        ({"inputs": tuple(f"{i:04}" + "x" * 150 for i in range(3000))}, r"x and 2992 more; a package"),
        ({"length": 999_999_999}, r"\[1, 999999999\], and a row has at most 131072 positions"),
        ({"length": 131_073}, "at most 131072"),
    ],
)
def test_names_and_lengths_of_a_stranger_are_told_in_few_printable_words(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PackageFault, match=said) as refused:
        read_package_shape(io.BytesIO(archive(described(**changes))))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 800
    assert read_package_shape(io.BytesIO(package(131_072))).length == 131_072


def test_a_description_packed_in_a_rare_way_is_not_read() -> None:
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", method) as packed:
            packed.writestr("m.mlmodelc/metadata.json", json.dumps(described()))
        raw = bytearray(data.getvalue())
        raw[60:64] = b"\xff" * 4
        with pytest.raises(PackageFault, match=f"packed by method {method}"):
            read_package_shape(io.BytesIO(bytes(raw)))


def lying_about_its_list(files: int, *, larger: bool) -> bytes:
    """An archive of ``files`` empty files whose end says that it is one; ``larger`` puts a zip64 end before that."""
    name = b"a"
    entry = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0)
    listed = (entry + name) * files
    end = b""
    if larger:
        end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, files, files, len(listed), 0)
        end += struct.pack("<4sIQI", b"PK\6\7", 0, len(listed), 1)
    return listed + end + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, 0 if larger else len(listed), 0, 0)


def test_a_list_of_too_many_files_is_counted_and_not_believed() -> None:
    assert len(zipfile.ZipFile(io.BytesIO(lying_about_its_list(12_000, larger=False))).infolist()) == 12_000
    with pytest.raises(PackageFault, match="lists 12000 files"):
        read_package_shape(io.BytesIO(lying_about_its_list(12_000, larger=False)))
    assert len(zipfile.ZipFile(io.BytesIO(lying_about_its_list(12_000, larger=True))).infolist()) == 12_000
    with pytest.raises(PackageFault, match="zip the package without zip64"):
        read_package_shape(io.BytesIO(lying_about_its_list(12_000, larger=True)))


def test_a_long_description_is_not_read() -> None:
    with pytest.raises(PackageFault, match="2000002 bytes"):
        read_package_shape(io.BytesIO(archive("x" * 2_000_000)))


def test_folders_of_processes_that_are_no_more_are_removed(tmp_path: Path) -> None:
    first = scratch_folder(tmp_path)
    assert re.match(rf"{os.getpid()}-", first.name)
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    orphan, strange = first.parent / f"{pid}-abc", first.parent / "kept"
    for folder in (orphan, strange):
        (folder / "m.mlmodelc").mkdir(parents=True)
    second = scratch_folder(tmp_path)
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, second.name, "kept"])


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    root = scratch_folder(tmp_path).parent
    root.chmod(0o777)
    with pytest.raises(PluginError, match="not a folder of this user alone"):
        scratch_folder(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    root.chmod(0o700)
    root.rename(elsewhere)
    root.symlink_to(elsewhere)
    with pytest.raises(PluginError, match="not a folder of this user alone"):
        scratch_folder(tmp_path)
