"""Typed messages: a class gives the message type, and a library converts objects to JSON.

Dataclasses and msgspec.Struct are converted by msgspec, pydantic's models by pydantic. Neither is
imported before a program names such a class.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from re import findall
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from timeoutmgr.errors import ConfigurationError, InvalidMessage, MessageRejected


class DataclassMessage(Protocol):
    """An object of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class StructMessage(Protocol):
    """An object of a msgspec.Struct."""

    __struct_fields__: ClassVar[tuple[str, ...]]


class PydanticMessage(Protocol):
    """An object of a model of pydantic."""

    model_config: ClassVar[Any]


TypedMessage: TypeAlias = DataclassMessage | StructMessage | PydanticMessage
"""A message that names its own type, and is its own body."""


class _NoBody:
    def __repr__(self) -> str:
        return "NO_BODY"


NO_BODY: Final[Any] = _NoBody()
"""Default of the body of a send; None is the body ``null``."""

TYPE_ATTRIBUTE: Final = "message_type"
"""Class attribute that names the message type, in place of the name of the class."""

PLAIN: Final = (dict, str, list, bytes, int, float, bool, type(None), tuple)
"""Types of bodies that are no messages; for a quick answer."""


class BodyMismatch(MessageRejected):
    """A body does not fit the handler's class. Neither text nor cause contains its values."""

    def __init__(self, name: str, reasons: str) -> None:
        super().__init__(
            f"the body does not fit {name}: {reasons}; mend the sender, or give the class defaults "
            "for bodies of older senders"
        )


_WITH_FIELDS: Final = "'(?:model-fields|dataclass-args|typed-dict|definition-ref)'"
"""Parts of pydantic's schemas that may have fields."""
_MASKED: Final = b"**********"
"""Text that pydantic writes for a SecretStr or SecretBytes."""


@dataclass(frozen=True, slots=True)
class TypedMessageClass:
    """A class of messages: its message type, and its conversion from and to JSON."""

    kind: type
    name: str
    """The message type: the ``message_type`` of the class itself, otherwise the class name."""
    decode: Callable[[bytes], object]
    encode: Callable[[Any], bytes]
    plain: Callable[[Any], object]
    """Returns the fields as mappings, lists and plain values."""
    whole: Callable[[Any, bytes], bytes] | None
    """Returns JSON of a message and its body, including fields that the body lacks.

    None for a class with plain fields, which cannot lose a field.
    """
    reasons: Callable[[Exception], str]
    """Returns why a body does not fit, without values of the body."""
    errors: tuple[type[Exception], ...]
    """Errors of *decode* about a body."""

    def read(self, body: bytes) -> object:
        """Return the message in *body*; raise BodyMismatch if the body does not fit."""
        try:
            return self.decode(body)
        except self.errors as error:
            # Without the cause, whose text has values of the body: the log shows causes.
            raise BodyMismatch(self.name, self.reasons(error)) from None

    def write(self, message: object) -> bytes:
        """Return *message* as JSON that ``read`` accepts; otherwise raise InvalidMessage.

        The JSON is read back, because a dataclass does not check its own values, and the receiver
        would be the first to find an error. Also refused are a float that JSON lacks, such as NaN,
        if the converter writes null; a secret, if the converter writes asterisks; and a field or
        key that the declared class lacks, such as of a subclass, which the reading would ignore.
        """
        try:
            body = self.encode(message)
            read = self.decode(body)
            if b"null" in body and self._odd_floats(message) != self._odd_floats(read):
                raise ValueError("a float that is NaN or infinite would arrive as null")
            if _MASKED in body and self.plain(message) != self.plain(read):
                raise ValueError("a secret would arrive as asterisks; send it as str or bytes")
            if self.whole is not None and self.whole(message, body) != self.encode(read):
                for lost in _lost_in(message, read):
                    raise ValueError(f"{lost:.80} is lost: the declared class has no such field")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidMessage(
                f"a {self.name} does not survive its conversion: {error}; give its fields values "
                "of their types"
            ) from error
        return body

    def _odd_floats(self, message: object) -> int:
        return _odd_floats_in(self.plain(message))


def _odd_floats_in(value: object) -> int:
    """Return how many floats in *value* are NaN or infinite."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return 0
    return sum(map(_odd_floats_in, value))


def _lost_in(sent: object, read: object, at: str = "") -> Iterator[str]:
    """Yield the places of the fields and keys that *sent* has and *read* lacks."""
    if isinstance(sent, Set) and isinstance(read, Set):
        # Common items lost nothing; a set has no order by which to compare the rest.
        both = sent - read, read - sent
        sent, read = (sorted(each, key=lambda one: type(one).__qualname__) for each in both)
    ours, theirs = _members(sent), _members(read)
    if ours is None or theirs is None or (theirs is read and ours is not sent):
        return  # A plain value, or an object under a field of any type, whose names may differ.
    if theirs is read and len(ours) <= len(theirs):
        # The same keys in the same order; their types may differ: 1 is read as 1.0.
        theirs = dict(zip(ours, theirs.values(), strict=False))
    for name, value in ours.items():
        if name in theirs:
            yield from _lost_in(value, theirs[name], f"{at}{name}.")
        else:
            yield f"{at}{name}"


def _members(own: Any) -> Mapping[Any, object] | None:
    """Return the members of *own* by field, key or index; None for a plain value."""
    if isinstance(own, Mapping):
        return own
    if isinstance(own, Sequence):
        return None if isinstance(own, str | bytes | bytearray) else dict(enumerate(own))
    kind: Any = type(own)
    if _is_struct(kind):
        names, values = kind.__struct_encode_fields__, kind.__struct_fields__
        return {name: getattr(own, each) for name, each in zip(names, values, strict=True)}
    attrs: Any = sys.modules.get("attr")
    if dataclasses.is_dataclass(kind) or (attrs is not None and attrs.has(kind)):
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else attrs.fields(kind)
        return {each.name: getattr(own, each.name, None) for each in fields}
    if not _is_model(kind):
        return None
    names = (name for name, each in kind.model_fields.items() if not each.exclude)
    return {**{name: getattr(own, name, None) for name in names}, **(own.model_extra or {})}


def message_class(given: type) -> TypedMessageClass:
    """Return how to convert messages of the class *given*; raise ConfigurationError if none can."""
    return _converted(given)


@lru_cache(maxsize=512)
def _converted(given: Any) -> TypedMessageClass:
    if _is_model(given):
        return _of_pydantic(given)
    if _is_struct(given) or dataclasses.is_dataclass(given):
        return _of_msgspec(given)
    raise ConfigurationError(
        f"a message class is a dataclass, a model of pydantic or a msgspec.Struct, got "
        f"{given.__qualname__}; decorate it with @dataclass, or name the message type as a text"
    )


def class_of(message: Any) -> TypedMessageClass:
    """Return how to convert *message*, which ``is_message``."""
    return message_class(type(message))


def is_message(given: object) -> bool:
    """Return whether *given* is an object of a class that ``message_class`` takes."""
    kind = type(given)
    return dataclasses.is_dataclass(kind) or _is_model(kind) or _is_struct(kind)


def type_and_body(message_type: object, body: object) -> tuple[str, object]:
    """Return the type and body of a send, which gives both or an object that is both.

    Raises InvalidMessage if neither is given.
    """
    if isinstance(message_type, str) and message_type:
        if body is NO_BODY:
            raise InvalidMessage(
                f"message type {message_type!r:.80} has no body; give a body, or None for null"
            )
        return message_type, body
    if not is_message(message_type):
        raise InvalidMessage(
            "a message type is a name, or the message itself: an object of a dataclass, a model of "
            f"pydantic or a msgspec.Struct; got {message_type!r:.80}"
        )
    name = class_of(message_type).name
    if body is not NO_BODY:
        raise InvalidMessage(
            f"a {name} is its own body, and another body was given; give options by their keyword"
        )
    return name, message_type


def _of_msgspec(given: type) -> TypedMessageClass:
    try:
        import msgspec
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"messages of the class {given.__qualname__} need msgspec; install timeoutmgr[typed], "
            "or name the message type as a text"
        ) from error
    try:
        # This refuses types that the decoder would accept without reading.
        nests = str(msgspec.json.schema(given)).count("$ref") > 1
        decode: Callable[[bytes], object] = msgspec.json.Decoder(given).decode
    except (TypeError, NameError, ValueError, RecursionError) as error:
        raise _refused(given, error) from error
    errors = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
    encode, plain = msgspec.json.encode, msgspec.to_builtins

    whole = (lambda _message, body: body) if nests else None
    return TypedMessageClass(
        given, _name(given), decode, encode, plain, whole, _msgspec_reasons, errors
    )


def _of_pydantic(given: Any) -> TypedMessageClass:
    from pydantic import RootModel, TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        adapter: Any = TypeAdapter(given)
    except (PydanticUserError, NameError) as error:
        raise _refused(given, error) from error

    dump: Callable[..., bytes] = adapter.dump_json

    def encode(message: object) -> bytes:
        return dump(message, by_alias=True, round_trip=True)

    def whole(message: object, _body: bytes) -> bytes:
        # The body has only the fields of declared classes, unless a field is SerializeAsAny.
        return dump(message, by_alias=True, round_trip=True, serialize_as_any=True, warnings=False)

    errors, decode = (ValidationError, RecursionError), adapter.validate_json
    own = 0 if issubclass(given, RootModel) else 1
    is_flat = len(findall(_WITH_FIELDS, str(adapter.core_schema))) == own
    return TypedMessageClass(
        *(given, _name(given), decode, encode, adapter.dump_python),
        whole=None if is_flat else whole,
        reasons=lambda error: _pydantic_reasons(error, adapter),
        errors=errors,
    )


def _refused(given: type, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"messages of the class {given.__qualname__} cannot be read from JSON: {error}; give its "
        "fields types that JSON can carry, at the top level of a module"
    )


def _name(given: type) -> str:
    """Return the message type of *given*; a subclass does not inherit it."""
    named = vars(given).get(TYPE_ATTRIBUTE)
    is_field = TYPE_ATTRIBUTE in vars(given).get("__dataclass_fields__", {}) and (
        TYPE_ATTRIBUTE in {each.name for each in dataclasses.fields(given)}
    )
    if isinstance(named, str) and named and not is_field:
        return named
    if "," in given.__name__ or ";" in given.__name__:
        # A generic class with two parameters: a receiver would read only half of its name.
        raise ConfigurationError(
            f"the name of the class {given.__name__!r:.80} has a comma or semicolon, behind which "
            "a receiver reads no message type; give the class a message_type (a ClassVar)"
        )
    return given.__name__


def _is_model(given: type) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and (
        issubclass(given, pydantic.BaseModel) or "__pydantic_validator__" in vars(given)
    )


def _is_struct(given: type) -> bool:
    msgspec: Any = sys.modules.get("msgspec")
    return msgspec is not None and issubclass(given, msgspec.Struct)


def _msgspec_reasons(error: Exception) -> str:
    """Return a text for *error*: msgspec's own may show enum values, and texts of a class."""
    said, at, place = str(error).rpartition(" - at ")
    if not at:
        said, place = str(error), "`$`"
    if error.__cause__ is not None:
        said = f"the class raised {type(error.__cause__).__name__}"
    elif said.startswith("Invalid "):
        said = " ".join(each for each in said.split(" ")[:3] if each.isalpha())
    return f"{said} at {place}"


def _pydantic_reasons(error: Any, adapter: Any) -> str:
    """Return the kinds and places of the first errors, without keys that are data of the body.

    Pydantic's own texts contain tags of the input, and texts of the model's validators.
    """
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    known = _properties(adapter)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{each['type']} at `{_place(each['loc'], known)}`" for each in found[:5]]
    return ", ".join(shown)


def _place(parts: tuple[str | int, ...], known: frozenset[str]) -> str:
    shown = [
        f"[{part}]" if isinstance(part, int) else f".{part}" if part in known else "[...]"
        for part in parts
    ]
    return "$" + "".join(shown)


def _properties(adapter: Any) -> frozenset[str]:
    """Return the names of all body fields of the class; empty if it has no schema."""
    from pydantic.errors import PydanticUserError

    try:
        schema = adapter.json_schema()
    except PydanticUserError:
        return frozenset()
    tables = (schema, *schema.get("$defs", {}).values())
    return frozenset(name for table in tables for name in table.get("properties", {}))
