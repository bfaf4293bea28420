"""Files, directories and links: what is planned for each way in which they can be wrong."""

from __future__ import annotations

import base64

from rules.desired import Desired, Directory, File, Link
from rules.observed import Observed
from rules.plan_files import (
    changed_paths,
    directory_changes,
    file_changes,
    link_changes,
    wrong_kinds,
)
from tests.unit.plan_support import as_desired, spoilt

CONF = File("/etc/x/a.conf", b"one\ntwo\n", mode=0o640, group="adm", reason=("G13",))
KEY = File("/etc/x/key", b"hunter2-hunter2", mode=0o600, secret=True)
BLOB = File("/etc/x/blob", b"\x00\x01\xff")
UNIT = File("/etc/systemd/system/a.service", b"[Service]\n")
HERE = Desired(
    directories=(Directory("/etc/x"),),
    files=(CONF, KEY, BLOB, UNIT),
    links=(Link("/opt/c", "releases/2"),),
)


def absent(path: str) -> Observed:
    return spoilt(HERE, "files", path, absent=True)


def test_absent_file_is_written_with_all_that_it_needs() -> None:
    (change,) = file_changes(HERE, absent(CONF.path), "files")
    assert change.sentence() == (
        "write file /etc/x/a.conf: absent -> 8 bytes c3f9c8c283a2, 0640 root:adm"
    )
    assert change.reason == ("G13",)
    assert change.action == {
        "do": "file.write",
        "content": base64.b64encode(b"one\ntwo\n").decode(),
        "secret": False,
        "over_mask": False,
        "path": "/etc/x/a.conf",
        "mode": "0640",
        "owner": "root",
        "group": "adm",
    }
    assert change.diff == ("--- /etc/x/a.conf\n+++ /etc/x/a.conf\n@@ -0,0 +1,2 @@\n+one\n+two")


def test_other_content_is_shown_as_a_difference() -> None:
    observed = spoilt(
        HERE, "files", CONF.path, sha256="ab" * 32, size=9, text="one\n\x1b[31m2\n", mode="0666"
    )
    (change,) = file_changes(HERE, observed, "files")
    assert (change.verb, change.before) == ("write", "9 bytes abababababab, 0666")
    assert change.after == "8 bytes c3f9c8c283a2, 0640"
    assert change.diff is not None
    assert change.diff.splitlines()[2:] == ["@@ -1,2 +1,2 @@", " one", "-\\x1b[31m2", "+two"]


def test_a_missing_last_newline_is_a_difference_that_shows() -> None:
    observed = spoilt(HERE, "files", CONF.path, sha256="0" * 64, size=7, text="one\ntwo")
    (change,) = file_changes(HERE, observed, "files")
    assert change.diff is not None
    assert change.diff.splitlines()[3:] == [
        " one",
        "-two",
        "\\ No newline at end of file",
        "+two",
    ]


def test_only_what_differs_is_set() -> None:
    (change,) = file_changes(HERE, spoilt(HERE, "files", CONF.path, mode="0777"), "files")
    assert (change.verb, change.before, change.after) == ("set", "0777", "0640")
    assert change.action is not None
    assert change.action["do"] == "file.attributes"
    assert "content" not in change.action
    assert change.diff is None
    (change,) = file_changes(
        HERE, spoilt(HERE, "files", CONF.path, owner="nobody", group="root"), "files"
    )
    assert (change.before, change.after) == ("nobody, root", "root, adm")


def test_binary_is_named_not_shown() -> None:
    (change,) = file_changes(HERE, absent(BLOB.path), "files")
    assert change.diff == "binary, 3 bytes"


def test_large_or_binary_former_content_is_not_shown() -> None:
    (change,) = file_changes(HERE, spoilt(HERE, "files", CONF.path, sha256="0" * 64), "files")
    assert change.diff == "what is there is binary or large; 8 bytes replace it"


def test_a_secret_shows_neither_content_nor_size_nor_hash() -> None:
    observed = spoilt(HERE, "files", KEY.path, sha256="cd" * 32, size=15, text="old secret")
    (change,) = file_changes(HERE, observed, "files")
    assert change.sentence() == "write file /etc/x/key: another content -> the secret"
    assert change.diff is None


def test_a_mask_in_the_place_of_a_unit_file_is_written_over() -> None:
    observed = spoilt(HERE, "files", UNIT.path, kind="link", target="/dev/null")
    (change,) = file_changes(HERE, observed, "files")
    assert change.before == "masked (a link to /dev/null)"
    assert change.action is not None
    assert change.action["over_mask"] is True
    assert wrong_kinds(HERE, observed) == []


def test_any_other_link_in_the_place_of_a_file_is_left_to_people() -> None:
    observed = spoilt(HERE, "files", CONF.path, kind="link", target="/dev/null")
    (change,) = file_changes(HERE, observed, "files")
    assert change.action is None
    assert wrong_kinds(HERE, observed) == [
        "/etc/x/a.conf is a link to /dev/null, expected a file: move it away and run again"
    ]


def test_directories() -> None:
    (made,) = directory_changes(HERE, spoilt(HERE, "directories", "/etc/x", absent=True), "files")
    assert made.sentence() == "create directory /etc/x: absent -> 0755 root:root"
    (owned,) = directory_changes(HERE, spoilt(HERE, "directories", "/etc/x", owner="me"), "files")
    assert owned.sentence() == "set directory /etc/x: me -> root"
    (wrong,) = directory_changes(HERE, spoilt(HERE, "directories", "/etc/x", kind="file"), "files")
    assert (wrong.before, wrong.action) == ("a file, to be moved away by hand", None)


def test_links() -> None:
    (made,) = link_changes(HERE, spoilt(HERE, "links", "/opt/c", absent=True), "files")
    assert made.sentence() == "create link /opt/c: absent -> link to releases/2"
    (moved,) = link_changes(HERE, spoilt(HERE, "links", "/opt/c", target="releases/1"), "files")
    assert (moved.verb, moved.before) == ("set", "link to releases/1")
    assert moved.action == {"do": "link.set", "path": "/opt/c", "target": "releases/2"}
    (wrong,) = link_changes(HERE, spoilt(HERE, "links", "/opt/c", kind="directory"), "files")
    assert wrong.action is None


def test_each_area_gets_its_own() -> None:
    here = Desired(
        directories=(Directory("/s", area="serving"),),
        files=(File("/s/env", b"", area="serving"), File("/f", b"")),
        links=(Link("/s/current", "1", area="serving"),),
    )
    document = as_desired(here)
    for part in ("directories", "files", "links"):
        document[part] = dict.fromkeys(document[part])
    serving = [
        *directory_changes(here, Observed(document), "serving"),
        *file_changes(here, Observed(document), "serving"),
        *link_changes(here, Observed(document), "serving"),
    ]
    assert {change.area for change in serving} == {"serving"}
    assert changed_paths(serving) == {
        "/s": "directory:/s",
        "/s/env": "file:/s/env",
        "/s/current": "link:/s/current",
    }
    assert serving[1].needs == ("directory:/s",)
