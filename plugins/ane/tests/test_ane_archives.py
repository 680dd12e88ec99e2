"""Archives that lie, bombs, names that lead elsewhere: each refused and typed, and nothing is left anywhere."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synapse_ane.package_archive import ArchiveLimits, extract

from synapse_host.hookspecs import PluginError

LIMITS = ArchiveLimits(files=40, bytes=1 << 20)


def archive_of(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


def package() -> bytes:
    return archive_of({"m.mlmodelc/metadata.json": b"[{}]", "m.mlmodelc/weights/weight.bin": b"\1" * 64})


def of_kind(name: str, mode: int, content: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (mode | 0o777) << 16
        archive.writestr(entry, content)
    return data.getvalue()


def through_a_link() -> bytes:
    """A link to the folder above, and a file written through it."""
    data = io.BytesIO(of_kind("m.mlmodelc/up", stat.S_IFLNK, b"../.."))
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("m.mlmodelc/up/evil", b"x")
    return data.getvalue()


def patched(raw: bytes, record: bytes, offset: int, form: str, *values: int) -> bytes:
    """``raw`` with numbers of its last ``record`` replaced."""
    found = bytearray(raw)
    struct.pack_into(form, found, found.rindex(record) + offset, *values)
    return bytes(found)


def understating() -> bytes:
    """A member whose directory entry says 4 bytes and whose data are a thousand."""
    whole = archive_of({"m.mlmodelc/big.bin": b"\1" * 1000}, zipfile.ZIP_STORED)
    return patched(whole, b"PK\1\2", 24, "<I", 4)


def spoiled() -> bytes:
    """A member whose packed bytes are no such bytes."""
    raw = bytearray(archive_of({"m.mlmodelc/a": bytes(range(256)) * 8}))
    raw[60:70] = b"\xff" * 10
    return bytes(raw)


def renamed_inside() -> bytes:
    """A member whose own header gives it another name than the list of files."""
    raw = bytearray(archive_of({"m.mlmodelc/good": b"x"}))
    raw[30 : 30 + len(b"m.mlmodelc/good")] = b"../../../../evl"
    return bytes(raw)


def overlapping() -> bytes:
    """Thirty members that are one: the list names the same bytes again and again."""
    raw = archive_of({"m.mlmodelc/00": b"\0" * 200_000})
    at, end = raw.rindex(b"PK\1\2"), raw.rindex(b"PK\5\6")
    entry = raw[at:end]
    listed = b"".join(entry.replace(b"/00", f"/{i:02}".encode()) for i in range(30))
    return raw[:at] + listed + patched(raw[end:], b"PK\5\6", 8, "<HHI", 30, 30, len(listed))


def many_claimed() -> bytes:
    """An end that says there are sixty thousand files."""
    return patched(package(), b"PK\5\6", 8, "<HH", 60_000, 60_000)


BAD: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "a path upwards": (lambda: archive_of({"m.mlmodelc/../../evil": b"x"}), "outside"),
    "an absolute path": (lambda: archive_of({"/evil": b"x"}), "outside"),
    "a path of another system": (lambda: archive_of({"m.mlmodelc/..\\evil": b"x"}), "outside"),
    "a drive": (lambda: archive_of({"C:evil": b"x"}), "outside"),
    "a share": (lambda: archive_of({"\\\\host\\evil": b"x"}), "outside"),
    "a step that stays": (lambda: archive_of({"m.mlmodelc/./a": b"x"}), "outside"),
    "an empty step": (lambda: archive_of({"m.mlmodelc//a": b"x"}), "outside"),
    "no name": (lambda: of_kind("", stat.S_IFREG, b"x"), "without a name"),
    "spoiled bytes": (spoiled, "no zip archive"),
    "a sign that is none": (lambda: archive_of({"m.mlmodelc/a\x1b[2J": b"x"}), "outside"),
    "a link": (lambda: of_kind("m.mlmodelc/passwd", stat.S_IFLNK, b"/etc/passwd"), "neither"),
    "a file through a link": (through_a_link, "neither"),
    "a device": (lambda: of_kind("m.mlmodelc/null", stat.S_IFCHR, b""), "neither"),
    "a pipe": (lambda: of_kind("m.mlmodelc/pipe", stat.S_IFIFO, b""), "neither"),
    "one name twice": (lambda: archive_of({"m.mlmodelc/a": b"1", "m.mlmodelc/A": b"2"}), "twice"),
    "one letter spelled twice": (lambda: archive_of({"m.mlmodelc/\xe9": b"1", "m.mlmodelc/e\u0301": b"2"}), "twice"),
    "folders of one name": (lambda: archive_of({"m.mlmodelc/w/a": b"1", "m.mlmodelc/W/b": b"2"}), "twice"),
    "a file that is a folder": (lambda: archive_of({"m.mlmodelc/a": b"1", "m.mlmodelc/a/b": b"2"}), "as a folder"),
    "a folder that is a file": (lambda: archive_of({"m.mlmodelc/a/b": b"1", "m.mlmodelc/a": b"2"}), "as a folder"),
    "a bomb": (lambda: archive_of({"m.mlmodelc/zeros": b"\0" * (900 << 10)}), "would grow"),
    "more than there may be": (
        lambda: archive_of({"m.mlmodelc/a": b"x" * (2 << 20)}, zipfile.ZIP_STORED),
        "would grow",
    ),
    "a bomb of one member": (overlapping, "would grow"),
    "too many files": (lambda: archive_of({f"m.mlmodelc/{i}": b"x" for i in range(50)}), "50 files"),
    "a list of too many": (many_claimed, "60000 files"),
    "a deep path": (lambda: archive_of({"m.mlmodelc/" + "a/" * 40 + "b": b"x"}), "folders deep"),
    "a long name": (lambda: archive_of({"m.mlmodelc/" + "a" * 300: b"x"}), "does not take"),
    "a strange method": (lambda: archive_of({"m.mlmodelc/a": b"x"}, zipfile.ZIP_LZMA), "method 14"),
    "a secret": (lambda: patched(archive_of({"m.mlmodelc/a": b"x"}), b"PK\1\2", 8, "<H", 1), "encrypted"),
    "two folders": (lambda: archive_of({"m.mlmodelc/a": b"x", "n.mlmodelc/a": b"x"}), "expected is one"),
    "a file for a package": (lambda: archive_of({"m.mlmodelc": b"x"}), "expected is one"),
    "no package": (lambda: archive_of({"weights/a": b"x"}), "expected is one"),
    "an archive in it": (lambda: archive_of({"m.mlmodelc.zip": package()}), "expected is one"),
    "nothing": (lambda: archive_of({}), "nothing"),
    "no zip": (lambda: b"not a zip at all", "no zip"),
    "no bytes": (lambda: b"", "no zip"),
    "a cut zip": (lambda: package()[:-30], "no zip"),
    "more than it says": (understating, "Bad CRC"),
    "another name inside": (renamed_inside, "no zip archive"),
}


def zipped_by_a_mac(*before: str) -> bytes:
    """What the Finder makes of a folder: its own files stand beside and within."""
    own = {"__MACOSX/m.mlmodelc/._metadata.json": b"\0" * 90, ".DS_Store": b"x", "m.mlmodelc/.DS_Store": b"x"}
    package = {"m.mlmodelc/metadata.json": b"[{}]", "m.mlmodelc/weights/weight.bin": b"\1" * 64}
    return archive_of({**dict.fromkeys(before, b"x"), **own, "m.mlmodelc/": b"", **package})


def left_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_archive_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    make, said = BAD[name]
    folder = tmp_path / "inside" / "package"
    folder.mkdir(parents=True)
    with pytest.raises(PluginError) as refused:
        extract(io.BytesIO(make()), "it.zip", folder, LIMITS)
    assert refused.value.code == "artifact_invalid"
    assert said in str(refused.value)
    assert "it.zip" in str(refused.value)
    assert left_below(tmp_path) == []
    assert list(folder.iterdir()) == []


def test_a_disk_that_takes_no_more_is_no_fault_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(PluginError, match="free disk space") as refused:
        extract(io.BytesIO(package()), "it.zip", tmp_path)
    assert refused.value.code == "load_failed"


def test_a_good_archive_comes_out_as_it_went_in(tmp_path: Path) -> None:
    root = extract(io.BytesIO(package()), "it.zip", tmp_path)
    assert root == tmp_path / "m.mlmodelc"
    assert (root / "weights" / "weight.bin").read_bytes() == b"\1" * 64


def test_what_a_mac_puts_beside_a_folder_is_left_in_the_archive(tmp_path: Path) -> None:
    root = extract(io.BytesIO(zipped_by_a_mac()), "it.zip", tmp_path)
    assert root == tmp_path / "m.mlmodelc"
    assert sorted(left_below(tmp_path)) == [root / "metadata.json", root / "weights" / "weight.bin"]


@pytest.mark.parametrize("name", ["__MACOSX/../../evil", "__MACOSX/../m.mlmodelc/evil", "../__MACOSX/evil/.DS_Store"])
def test_nothing_goes_by_the_name_of_what_a_mac_puts_there(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "inside" / "package"
    folder.mkdir(parents=True)
    raw = zipped_by_a_mac(name)
    root, code = outcome(raw, folder)
    assert root is None or not any("evil" in path.name for path in left_below(tmp_path))
    assert (root is None) == (code == "artifact_invalid")
    assert all(root is not None and root in path.parents for path in left_below(tmp_path))


def test_an_archive_inside_stays_a_file(tmp_path: Path) -> None:
    nested = archive_of({"../../evil": b"\0" * 100_000})
    root = extract(io.BytesIO(archive_of({"m.mlmodelc/nested.zip": nested})), "it.zip", tmp_path)
    assert (root / "nested.zip").read_bytes() == nested
    assert left_below(tmp_path) == [root / "nested.zip"]


def outcome(raw: bytes, folder: Path) -> tuple[Path | None, str | None]:
    """Where the archive came out, or the code it was refused with."""
    try:
        return extract(io.BytesIO(raw), "it.zip", folder, LIMITS), None
    except PluginError as refused:
        return None, refused.code


PARTS = st.sampled_from(
    ["m.mlmodelc", "M.mlmodelc", "..", ".", "", "a", "A", "w", "metadata.json", "C:", "\\", "é", "x" * 80]
)
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
CONTENTS = st.sampled_from([b"", b"x", b"\0" * 5000])
SPOILINGS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NAMES, CONTENTS, st.sampled_from([0, stat.S_IFLNK, stat.S_IFDIR])), max_size=5), SPOILINGS)
def test_whatever_an_archive_holds_it_comes_out_inside_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, bytes, int]], spoilings: list[tuple[int, int]]
) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, kind in members:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (kind | 0o644) << 16
            archive.writestr(entry, content)
    raw = bytearray(data.getvalue())
    for place, value in spoilings:
        raw[place % len(raw)] = value
    outside = tmp_path_factory.mktemp("fuzz")
    folder = outside / "package"
    folder.mkdir()
    root, code = outcome(bytes(raw), folder)
    left = left_below(outside)
    assert list(outside.iterdir()) == [folder]
    if root is None:
        assert (code, list(folder.iterdir())) == ("artifact_invalid", [])
        return
    assert root.parent == folder
    assert all(not path.is_symlink() and root in path.parents for path in left)
    assert sum(path.stat().st_size for path in left) <= LIMITS.bytes
