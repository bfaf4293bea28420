"""The schema in words: what a variable may be, and where an error in a value lies.

Error sentences and ``docs/variables.md`` are made of the same words.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence
from functools import cache
from typing import Any, Union

from pydantic import BaseModel, StringConstraints, Tag
from pydantic.fields import FieldInfo

from rules.schema import HostConfig
from rules.values import PATTERN_WORDS

Path = tuple[str | int, ...]

# Where a key is refused, pydantic puts this after the key in the error's location.
KEY_SIGN = "[key]"

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?($|[_-])|secret|token|credential|api[_-]?key", re.I
)
_SECRET_VALUE = re.compile(
    r"^(hf_|sk-|gh[opsu]_|glpat-|AKIA)|-----BEGIN|://[^/\s]*:[^/\s]*@|https?://\S*@"
    r"|[?&#][\w.-]*(token|key|secret|signature|password)=",
    re.I,
)
_LONGEST_SHOWN = 60


def words(annotation: Any) -> str:
    """What a value of this type may be, as a noun phrase (``a whole number of at least 0``)."""
    base, low, high, pattern, shortest = _unwrapped(annotation)
    if _is_union(base):
        return _either(words(branch) for branch in typing.get_args(base))
    origin = typing.get_origin(base)
    if origin is typing.Literal:
        return _either(repr(value) for value in typing.get_args(base))
    if origin is list:
        (item,) = typing.get_args(base)
        empty = ", not empty" if shortest else ""
        return f"a list{empty}, each item {words(item)}"
    if origin is dict:
        key, value = typing.get_args(base)
        of = "" if value is Any else f", each value {words(value)}"
        key_words = words(key)
        return f"a dictionary{'' if key_words == 'text' else f', each key {key_words}'}{of}"
    if isinstance(base, type) and issubclass(base, BaseModel):
        return f"a dictionary with the keys {', '.join(base.model_fields)}"
    if base is str and pattern:
        return PATTERN_WORDS[pattern]
    if base in (int, float):
        return _number("a whole number" if base is int else "a number", low, high)
    simple = {str: "text", bool: "True or False", type(None): "None", Any: "anything"}
    return f"{simple[base]}, not empty" if base is str and shortest else simple[base]


@cache
def hints(model: type[BaseModel]) -> dict[str, Any]:
    """The annotations of a model's fields, limits included."""
    return typing.get_type_hints(model, include_extras=True)


def locate(location: Sequence[str | int]) -> tuple[Path, Any, bool]:
    """Where a pydantic error lies in the data, what is allowed there, and whether it is a key.

    pydantic names the branch of a union in its location (``gpu_layers``, ``int``); here it is
    left out, since the data has no such key. An unknown key has the annotation None.
    """
    path: list[str | int] = []
    annotation: Any = HostConfig
    parts = list(location)
    while parts:
        annotation = _unwrapped(annotation)[0]
        if _is_union(annotation):
            branches = [b for b in typing.get_args(annotation) if b is not type(None)]
            if len(branches) > 1:
                chosen = [branch for branch in branches if _tag(branch) == parts[0]]
                if not chosen:  # a scalar's branch: the whole union says what is allowed
                    return tuple(path), annotation, False
                parts.pop(0)
                annotation = chosen[0]
            else:
                annotation = branches[0]
            continue
        part = parts.pop(0)
        path.append(part)
        arguments = typing.get_args(annotation)
        origin = typing.get_origin(annotation)
        if origin is dict and parts[:1] == [KEY_SIGN]:
            return tuple(path), arguments[0], True
        if origin is dict:
            annotation = arguments[1]
        elif origin is list:
            annotation = arguments[0]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = hints(annotation).get(str(part))
        else:
            return tuple(path), None, False
    return tuple(path), annotation, False


def keys_beside(path: Path) -> list[str]:
    """The keys that the schema knows where the last part of this path stands."""
    annotation: Any = locate(path[:-1])[1]
    for branch in _branches(annotation):
        if isinstance(branch, type) and issubclass(branch, BaseModel):
            return list(branch.model_fields)
    return []


def models_within(annotation: Any) -> list[type[BaseModel]]:
    """The models that a value of this type is made of, at any depth of lists and dictionaries."""
    base = _unwrapped(annotation)[0]
    if isinstance(base, type) and issubclass(base, BaseModel):
        return [base]
    return [model for part in typing.get_args(base) for model in models_within(part)]


def dotted(path: Path) -> str:
    """``models.tiny.files[0].size``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.isprintable() or not part.strip():
            text += f"[{part!r}]"  # a sentence stays on one line, whatever a key is
        else:
            text += f".{part}" if text else part
    return text


def shown(path: Path, value: object) -> str:
    """A value for an error sentence: short, and hidden when it looks like a secret."""
    if isinstance(value, (dict, list, tuple, set)):
        return f"a {type(value).__name__} of {len(value)}"
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    secret = _SECRET_NAME.search(name) or (isinstance(value, str) and looks_secret(value))
    if secret and value not in (None, "", True, False):
        return "(hidden)"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def looks_secret(value: str) -> bool:
    """Whether a text has the form of a key or token, or holds one."""
    return _SECRET_VALUE.search(value) is not None


def _unwrapped(annotation: Any) -> tuple[Any, Any, Any, str | None, int | None]:
    """The bare type, lowest and highest value, pattern, shortest length."""
    low = high = pattern = shortest = None
    while hasattr(annotation, "__metadata__"):
        for item in annotation.__metadata__:
            limits: Sequence[object] = item.metadata if isinstance(item, FieldInfo) else [item]
            for limit in limits:
                low = getattr(limit, "ge", low)
                high = getattr(limit, "le", high)
                shortest = getattr(limit, "min_length", shortest)
                if isinstance(limit, StringConstraints):
                    pattern = str(limit.pattern) if limit.pattern else pattern
        annotation = annotation.__origin__
    return annotation, low, high, pattern, shortest


def _branches(annotation: Any) -> tuple[Any, ...]:
    base = _unwrapped(annotation)[0]
    if _is_union(base):
        return tuple(b for branch in typing.get_args(base) for b in _branches(branch))
    return (base,)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType)


def _tag(annotation: Any) -> str | None:
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, Tag):
            return item.tag
    return None


def _either(choices: typing.Iterable[str]) -> str:
    *most, last = dict.fromkeys(choices)
    return f"{', '.join(most)} or {last}" if most else last


def _number(noun: str, low: Any, high: Any) -> str:
    if low is not None and high is not None:
        return f"{noun} from {low} to {high}"
    return f"{noun} of at least {low}" if low is not None else noun
