"""Type checks of settings, by the annotations, at the place where a program gives them."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Protocol, TypeVar, Union, get_args, get_origin

from timeoutmgr.errors import ConfigurationError

Kinds = tuple[type, ...]
Settings = TypeVar("Settings")
_REMEDY: Final = {timedelta: "a timedelta, such as timedelta(seconds=5)", NoneType: "None"}


def check_field_types(settings: Any) -> None:
    """Raise ConfigurationError for a field of the dataclass *settings* with a wrong type."""
    of: type = type(settings)
    for name, kinds in kinds_of(of).items():
        check_kind(f"{of.__name__}.{name}", getattr(settings, name), kinds)


def check_kind(name: str, value: object, kinds: Kinds) -> None:
    """Raise ConfigurationError unless *value* is of one of *kinds*; a bool is not an int."""
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        expected = " or ".join(_REMEDY.get(kind, kind.__name__) for kind in kinds)
        raise ConfigurationError(
            f"{name} takes {expected}, got {value!r:.80} of type {type(value).__name__}"
        )


def settings_of(kind: type[Settings], given: Settings | None) -> Settings:
    """Return *given*, or the defaults of *kind* for None; raise ConfigurationError for the rest."""
    made = kind() if given is None else given
    check_kind("settings", made, (kind,))
    return made


@lru_cache(maxsize=64)
def kinds_of(settings: Any) -> Mapping[str, Kinds]:
    """Return the types of the fields of the dataclass *settings* that are plain classes.

    A field whose annotation is a Protocol, a function, or a text is left out.
    """
    found = ((field.name, _kinds(field.type)) for field in fields(settings) if field.init)
    return {name: kinds for name, kinds in found if kinds is not None}


def _kinds(annotation: Any) -> Kinds | None:
    is_union = get_origin(annotation) in (Union, UnionType)
    parts = get_args(annotation) if is_union else (annotation,)
    parts += (int,) if float in parts else ()
    return tuple(parts) if all(map(_is_plain, parts)) else None


def _is_plain(kind: Any) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and Protocol not in kind.__mro__
