"""Directories, files and links of an area: what must be made, written or set."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Mapping
from typing import Any

from rules.change import Change
from rules.desired import Desired, Directory, File, Link
from rules.observed import Observed, Unknown

SYSTEMD = "/etc/systemd/system/"
MASK = "/dev/null"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def directory_changes(desired: Desired, observed: Observed, area: str) -> list[Change]:
    """Directories of an area to make or to set right, parents first."""
    mine = [directory for directory in desired.directories if directory.area == area]
    planned = [
        _directory(directory, desired, observed)
        for directory in sorted(mine, key=lambda directory: directory.path.count("/"))
    ]
    return [change for change in planned if change is not None]


def file_changes(desired: Desired, observed: Observed, area: str) -> list[Change]:
    """Files of an area to write or to set right."""
    planned = [_file(file, desired, observed) for file in desired.files if file.area == area]
    return [change for change in planned if change is not None]


def link_changes(desired: Desired, observed: Observed, area: str) -> list[Change]:
    """Links of an area to make or to point elsewhere."""
    planned = [_link(link, desired, observed) for link in desired.links if link.area == area]
    return [change for change in planned if change is not None]


def changed_paths(changes: list[Change]) -> dict[str, str]:
    """Path to change id, of the directory, file and link changes among `changes`."""
    return {
        change.id.partition(":")[2]: change.id
        for change in changes
        if change.id.partition(":")[0] in ("directory", "file", "link")
    }


def wrong_kinds(desired: Desired, observed: Observed) -> list[str]:
    """A sentence for each path where something of another kind is: nothing is done about those."""
    sentences = []
    things: list[tuple[str, str, str]] = [
        *(("directories", directory.path, "directory") for directory in desired.directories),
        *(("files", file.path, "file") for file in desired.files),
        *(("links", link.path, "link") for link in desired.links),
    ]
    for part, path, kind in things:
        found = observed.of(part, path)
        if isinstance(found, Mapping) and _is_wrong_kind(found, path, kind):
            sentences.append(
                f"{path} is a {_kind(found)}, expected a {kind}: move it away and run again"
            )
    return sentences


def _kind(found: Mapping[str, Any]) -> str:
    target = found.get("target")
    return f"link to {target}" if target else str(found.get("kind"))


def _is_wrong_kind(found: Mapping[str, Any], path: str, kind: str) -> bool:
    return found.get("kind") != kind and not (kind == "file" and is_mask(found, path))


def is_mask(found: Mapping[str, Any], path: str) -> bool:
    """Whether a unit file is only a mask: a link to /dev/null, which may be written over."""
    return path.startswith(SYSTEMD) and found.get("target") == MASK


def _directory(directory: Directory, desired: Desired, observed: Observed) -> Change | None:
    found = observed.of("directories", directory.path)
    action = {
        "do": "directory.make",
        "path": directory.path,
        "mode": f"{directory.mode:04o}",
        "owner": directory.owner,
        "group": directory.group,
    }
    if found is None:
        return _change(
            directory, desired, observed, "create", "absent", _attributes(action), action
        )
    return _otherwise(directory, desired, observed, found, action)


def _file(file: File, desired: Desired, observed: Observed) -> Change | None:
    found = observed.of("files", file.path)
    attributes = {
        "path": file.path,
        "mode": f"{file.mode:04o}",
        "owner": file.owner,
        "group": file.group,
    }
    masked = isinstance(found, Mapping) and is_mask(found, file.path)
    write = {
        "do": "file.write",
        "content": base64.b64encode(file.content).decode("ascii"),
        "secret": file.secret,
        "over_mask": masked,
        **attributes,
    }
    if found is None or masked:
        return _change(
            file,
            desired,
            observed,
            "write",
            "masked (a link to /dev/null)" if masked else "absent",
            f"{_content(file)}, {_attributes(write)}",
            write,
            _diff(file, ""),
        )
    same_kind = isinstance(found, Mapping) and found.get("kind") == "file"
    if isinstance(found, Unknown) or not same_kind or found.get("sha256") == file.sha256:
        return _otherwise(file, desired, observed, found, {"do": "file.attributes", **attributes})
    wrong = _wrong_attributes(found, write)
    return _change(
        file,
        desired,
        observed,
        "write",
        ", ".join([_other_content(file, found), *(str(found.get(key)) for key in wrong)]),
        ", ".join([_content(file), *(str(write[key]) for key in wrong)]),
        write,
        _diff(file, found.get("text")),
    )


def _link(link: Link, desired: Desired, observed: Observed) -> Change | None:
    found = observed.of("links", link.path)
    action = {"do": "link.set", "path": link.path, "target": link.target}
    after = f"link to {link.target}"
    if isinstance(found, Mapping) and found.get("kind") == "link":
        if found.get("target") == link.target:
            return None
        before = _kind(found)
        return _change(link, desired, observed, "set", before, after, action)
    if found is None:
        return _change(link, desired, observed, "create", "absent", after, action)
    return _otherwise(link, desired, observed, found, action)


def _otherwise(
    thing: Directory | File | Link,
    desired: Desired,
    observed: Observed,
    found: Mapping[str, Any] | Unknown | None,
    action: Mapping[str, Any],
) -> Change | None:
    """The change of a thing that is unknown, of another kind, or right but for mode and owner."""
    if isinstance(thing, Link):
        verb, after, keys = "create", f"link to {thing.target}", []
    else:
        verb, after = "write" if isinstance(thing, File) else "create", _attributes(action)
        keys = _wrong_attributes(found, action) if isinstance(found, Mapping) else []
    if isinstance(found, Unknown):
        return _change(thing, desired, observed, verb, f"unknown: {found.reason}", after, None)
    kind = type(thing).__name__.lower()
    if found is None or found.get("kind") != kind:
        before = f"a {_kind(found or {})}, to be moved away by hand"
        return _change(thing, desired, observed, verb, before, f"a {kind}", None)
    if not keys:
        return None
    before = ", ".join(str(found.get(key)) for key in keys)
    after = ", ".join(str(action[key]) for key in keys)
    return _change(thing, desired, observed, "set", before, after, action)


def _change(
    thing: Directory | File | Link,
    desired: Desired,
    observed: Observed,
    verb: str,
    before: str,
    after: str,
    action: Mapping[str, Any] | None,
    diff: str | None = None,
) -> Change:
    kind = type(thing).__name__.lower()
    return Change(
        id=f"{kind}:{thing.path}",
        area=thing.area,
        verb=verb,
        thing=f"{kind} {thing.path}",
        before=before,
        after=after,
        reason=thing.reason,
        needs=_needs(thing, desired, observed),
        action=action,
        diff=diff,
    )


def _needs(thing: Directory | File | Link, desired: Desired, observed: Observed) -> tuple[str, ...]:
    """Changes that come first: the owner and group, and the folders above of the same plan."""
    needs = []
    if not isinstance(thing, Link):
        groups = {group.name for group in desired.groups}
        users = {user.name for user in desired.users}
        if thing.owner in users and observed.of("users", thing.owner) is None:
            needs.append(f"user:{thing.owner}")
        if thing.group in groups and observed.of("groups", thing.group) is None:
            needs.append(f"group:{thing.group}")
    for directory in desired.directories:
        above = thing.path.startswith(directory.path.rstrip("/") + "/")
        if above and observed.of("directories", directory.path) is None:
            needs.append(f"directory:{directory.path}")
    return tuple(needs)


def _wrong_attributes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    return [key for key in ("mode", "owner", "group") if found.get(key) != wanted[key]]


def _attributes(action: Mapping[str, Any]) -> str:
    return f"{action['mode']} {action['owner']}:{action['group']}"


def _content(file: File) -> str:
    return "the secret" if file.secret else f"{len(file.content)} bytes {file.sha256[:12]}"


def _other_content(file: File, found: Mapping[str, Any]) -> str:
    if file.secret:
        return "another content"
    return f"{found.get('size')} bytes {str(found.get('sha256'))[:12]}"


def _diff(file: File, old: object) -> str | None:
    """The unified difference for people; None for a secret. Control characters are spelled."""
    if file.secret:
        return None
    try:
        new = file.content.decode()
    except UnicodeDecodeError:
        new = "\0"
    if "\0" in new:
        return f"binary, {len(file.content)} bytes"
    if not isinstance(old, str):
        return f"what is there is binary or large; {len(file.content)} bytes replace it"
    lines = difflib.unified_diff(_lines(old), _lines(new), file.path, file.path, lineterm="")
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", "\n".join(lines))


def _lines(text: str) -> list[str]:
    """Lines of a text, a missing last newline marked as diff(1) does."""
    *lines, last = text.split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines
