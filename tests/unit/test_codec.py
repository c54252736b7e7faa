"""What is read equals what was written, or the value is refused with the path of its place [S12.3]."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import ipaddress
import math
import pathlib
import sys
import threading
import types
import uuid
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import bson
import numpy as np
import pytest
from bson.codec_options import CodecOptions
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy._core._rational_tests import rational
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    PrivateAttr,
    RootModel,
    SecretStr,
    create_model,
    field_validator,
)

from choreography_ray.codec import MAX_DEPTH, decode, encode, encoded_size, import_type
from choreography_ray.errors import NotStorable, UnknownJobType

T = TypeVar("T")
OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)


class Color(enum.Enum):
    RED = "r"
    ROUGE = "r"  # noqa: PIE796 - an alias
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    A = "a"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Base(BaseModel):
    a: int = 1


class Sub(Base):
    b: str = "x"


class Box(BaseModel, Generic[T]):
    item: T


class Secretive(BaseModel):
    model_config = ConfigDict(extra="allow")
    shown: int = 0
    _hidden: list[int] = PrivateAttr(default_factory=list)
    _unset: int = PrivateAttr()


class Names(RootModel[list[str]]):
    pass


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True)
    positive: int = Field(1, gt=0)

    @field_validator("positive")
    @classmethod
    def _never_again(cls, value: int) -> int:
        raise ValueError("validators do not run on reading")


class Cached(BaseModel):
    n: int = 2

    @functools.cached_property
    def square(self) -> int:
        return self.n * self.n


class Anything(BaseModel):
    value: Any = None
    items: list[Any] = []
    keys: dict[Any, Any] = {}


class Everything(BaseModel):
    """A field of each type that S12.3 names."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    base: Base = Base()
    bases: list[Base] = []
    model: BaseModel = Base()
    anything: Any = None
    number: float = math.nan
    big: int = 2**63
    raw: bytes = b""
    numbers: set[float] = set()
    by_pair: dict[tuple[int, str], str] = {}
    by_number: dict[int, float] = {}
    by_key: dict[str, Any] = {}
    price: Decimal = Decimal("1.10")
    uid: uuid.UUID = uuid.UUID(int=1)
    day: dt.date = dt.date(2020, 2, 29)
    moment: dt.datetime = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    span: dt.timedelta = dt.timedelta(1)
    color: Color = Color.RED
    generic: Box[Base] | None = None
    of_generics: Box[list[Box[int]]] | None = None
    scalar: Any = np.float32(0.1)
    parent: Everything | None = None
    twins: tuple[Everything, ...] = ()


@dataclasses.dataclass
class Point:
    x: int
    y: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    tags: tuple[str, ...] = ()


@dataclasses.dataclass
class Wrapped(Generic[T]):
    item: T


class Pair(NamedTuple):
    left: int
    right: Any = None


class MyInt(int):
    pass


class MyStr(str):
    pass


class Plain:
    pass


def through_store(value: object) -> Any:
    """Encode, take the form through BSON as a store does, decode."""
    stored = bson.encode({"_id": 1, "payload": encode(value)})
    return decode(bson.decode(stored, OPTIONS)["payload"])


def story(value: Any) -> str:
    """A repr in which the members of sets are in order: NaN is not equal to itself, so sets cannot be compared."""
    match value:
        case set() | frozenset():
            return f"{type(value).__name__}({sorted(map(story, value))})"
        case tuple():
            return f"{type(value).__name__}({list(map(story, value))})"
    return repr(value)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if type(left) is not type(right):
        return False
    match left:
        case float() | np.floating() if math.isnan(left):
            return math.isnan(right)
        case float():
            return left == right and math.copysign(1, left) == math.copysign(1, right)
        case int():
            return left == right
        case complex() | np.complexfloating():
            return same(left.real, right.real) and same(left.imag, right.imag)
        case Decimal():
            return left.as_tuple() == right.as_tuple()
        case np.ndarray():
            return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
        case np.longdouble() if not np.isnan(left):  # bytes between two of them are of no meaning
            return bool(left == right and np.signbit(left) == np.signbit(right))
        case np.generic():
            return left.dtype == right.dtype and left.tobytes() == right.tobytes()
        case dt.datetime() | dt.time():
            return left.isoformat() == right.isoformat() and left.fold == right.fold and left.tzname() == right.tzname()
        case BaseModel():
            return (
                same(left.__dict__, right.__dict__)
                and left.model_fields_set == right.model_fields_set
                and same(left.__pydantic_extra__, right.__pydantic_extra__)
                and same(left.__pydantic_private__, right.__pydantic_private__)
            )
        case Point():
            return same(left.__dict__, right.__dict__)
        case dict():
            pairs = zip(zip(left, right, strict=True), zip(left.values(), right.values(), strict=True), strict=True)
            return len(left) == len(right) and all(same(*keys) and same(*items) for keys, items in pairs)
        case list() | tuple() | deque():
            return len(left) == len(right) and all(map(same, left, right))
        case set() | frozenset():
            return story(left) == story(right)
    return bool(left == right) and repr(left) == repr(right)


BERLIN = ZoneInfo("Europe/Berlin")


class Addressed(BaseModel):
    model_config = ConfigDict(url_preserve_empty_path=True)
    url: AnyUrl


def _without_a_value() -> Anything:
    made = Anything(value=1)
    del made.value
    return made


VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -(2**31),
    2**31,
    2**63 - 1,
    -(2**63),
    2**63,
    -(2**63) - 1,
    10**30,
    10**6000,
    1.5,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "zürich 🗝",
    "with\0nul",
    "\ud800 lone",
    b"",
    bytes(range(256)),
    bytearray(b"ab"),
    1 + 2j,
    complex(math.nan, -0.0),
    (),
    (1, (2, [3])),
    [],
    [1, [True, None]],
    set(),
    {1, 2},
    frozenset({"a", ("b", 1)}),
    {},
    {"a": {"b": 1}},
    {(1, 2): "t"},
    {True: "a bool is no int"},
    {1: "a", "1": "b", None: "c", 1.5: "d", b"x": "e", Color.RED: "f", Pair(1): "g"},
    {"model.v1/a.b": 1, "$set": 2, "": 3},
    {"~": "tuple", "items": [1]},
    {"~x": 1},
    {"nul\0": 1, "\udfff": 2},
    {"$ref": "a", "$id": 1},
    {"ключ": 1, "with space": 2, "-": 3, "a$": 4, "_id": 5, "~~": 6},
    deque([1, 2], maxlen=3),
    deque([1]),
    OrderedDict([("b", 1), ("a", 2)]),
    Counter("abba"),
    range(1, 9, 2),
    Decimal("1.10"),
    Decimal("NaN"),
    Decimal("-0E+5"),
    Decimal("sNaN12"),
    Fraction(1, 3),
    uuid.UUID(int=7),
    dt.date(2020, 2, 29),
    dt.date(1, 1, 1),
    dt.time(1, 2, 3, 4),
    dt.time(1, 2, tzinfo=dt.UTC, fold=1),
    dt.datetime(2020, 1, 1, 12, 0, 0, 123456),  # noqa: DTZ001
    dt.datetime(2020, 1, 1, 12, 0, 0, 123456, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5), "EST")),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(-dt.timedelta(seconds=1, microseconds=7))),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=-1))),
    dt.time(1, 2, tzinfo=dt.timezone(dt.timedelta(microseconds=999_999), "odd")),
    dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    dt.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN),
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.timedelta(days=3, microseconds=5),
    dt.timedelta.min,
    dt.UTC,
    BERLIN,
    pathlib.Path("/a/b"),
    pathlib.PurePosixPath("x/\udcff"),
    pathlib.PureWindowsPath("C:/a"),
    ipaddress.ip_address("::1"),
    ipaddress.ip_network("10.0.0.0/8"),
    HttpUrl("https://example.org/a?b=c"),
    AnyUrl("redis://h/1"),
    Color.RED,
    Color.ROUGE,
    Level.LOW,
    Name.A,
    Access.READ,
    Access.READ | Access.WRITE,
    Access(0),
    Base(),
    Base(a=1),
    Sub(b="kept"),
    [Sub(b="kept"), Base()],
    Anything(value=Sub(a=2), items=[Base(), (Sub(),)], keys={(1, 2): Sub(), "a.b": 1}),
    Box[int](item=3),
    Box[str](item="s"),
    Box[Box[Sub]](item=Box[Sub](item=Sub())),
    Box[list[int]](item=[1]),
    Box[dict[str, tuple[int, ...]]](item={"a": (1,)}),
    Box[int | None](item=None),
    Box[Literal["a", 1]](item="a"),
    Box[Any](item=Base()),
    Box(item=1),
    Secretive(shown=1, **{"more.of": 1, "~": 2}),
    Names(["a"]),
    Strict.model_construct(positive=-1),
    Base.model_construct(a="not an int"),
    Point(1, [Point(2)]),
    Frozen(1, ("a",)),
    Wrapped[int](1),
    Pair(1),
    Pair(1, Pair(2)),
    np.float64(1.5),
    np.float64("nan"),
    np.float32(0.1),
    np.float16(0.5),
    np.longdouble("0.1"),
    np.int8(-1),
    np.int64(2**40),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.complex128(1 + 2j),
    np.str_("ü"),
    np.bytes_(b"x"),
    np.datetime64("2020-01-01T00:00:00.123456789"),
    np.datetime64("NaT"),
    np.timedelta64(5, "D"),
    np.array([[1, 2], [3, 4]], dtype="<i4"),
    np.array([[1.5, np.nan]]).T,
    np.array(3.0),
    np.zeros((0, 3)),
    np.array(["a", "bc"]),
    np.array(["2020-01-01"], dtype="M8[D]"),
    np.array([True, False]),
    np.array([1, 2], dtype=">i2"),
    np.str_("a\0"),
    np.bytes_(b"a\0"),
    _without_a_value(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_kind_of_value_comes_back_equal_and_of_its_type(value: Any) -> None:
    """Alone, and inside a model's `Any` field, a list, a tuple and a dict with an awkward key."""
    assert same(value, through_store(value))
    around = Anything(value=value, items=[value, (value,)], keys={"a.b": value})
    assert same(around, through_store(around))


def test_private_attributes_extra_fields_and_the_explicit_fields_come_back() -> None:
    """What `model_dump` leaves out is part of the value too."""
    model = Secretive(shown=3, other=[1])
    model._hidden.append(7)
    back = through_store(model)
    assert back._hidden == [7]
    assert back.model_extra == {"other": [1]}
    assert back.model_fields_set == {"shown", "other"}
    with pytest.raises(AttributeError):
        _ = back._unset
    assert through_store(Secretive()).model_fields_set == set()


def test_a_generic_model_comes_back_as_the_very_class() -> None:
    """`Box[int]` is not `Box`."""
    assert type(through_store(Box[int](item=1))) is Box[int]
    assert type(through_store(Box[Sub](item=Sub()))) is Box[Sub]


def test_a_cached_property_is_made_again_rather_than_stored() -> None:
    """It is no field: it would be in the way of a reader."""
    model = Cached()
    assert model.square == 4
    assert "square" not in encode(model)
    assert through_store(model).square == 4


def test_an_offset_that_pydantic_parsed_comes_back_as_the_same_moment_and_offset() -> None:
    """pydantic's own zone class becomes `datetime.timezone`."""

    class _Unused(BaseModel):
        at: dt.datetime

    at = _Unused(at="2020-01-01T12:00:00.000001+02:00").at
    back = through_store(at)
    assert back == at
    assert back.utcoffset() == dt.timedelta(hours=2)


def test_documents_are_readable_and_name_their_class() -> None:
    """A person who looks into MongoDB sees fields and class names."""
    name = f"{Sub.__module__}:Sub"
    assert encode(Sub(a=2, b="x")) == {"~": name, "a": 2, "b": "x"}
    assert encode({1: Color.RED}) == {
        "~": "dict",
        "items": [[1, {"~": f"{Color.__module__}:Color", "name": "RED"}]],
    }
    assert encode(dt.timedelta(days=1)) == {"~": "timedelta", "days": 1, "seconds": 0, "microseconds": 0}
    assert encode({"plain": [1, "a"]}) == {"plain": [1, "a"]}


def keys_of(payload: Any) -> set[str]:
    """Every key of every document inside."""
    match payload:
        case dict():
            return set(payload).union(*map(keys_of, payload.values()))
        case list():
            return set().union(*map(keys_of, payload))
    return set()


def test_no_stored_key_has_a_dot_a_dollar_or_a_nul_or_is_empty() -> None:
    """No update of MongoDB can touch a wrong path."""
    keys = keys_of([encode(value) for value in VALUES])
    assert keys
    assert not {key for key in keys if not key or set(key) & {".", "$", "\0"}}


class Old(BaseModel):
    kept: int = 1
    dropped: int = 2


class New(BaseModel):
    kept: int
    added: list[int] = [5]
    _also: str = PrivateAttr("new")


def test_a_fraction_of_any_size_comes_back() -> None:
    """Python turns no number of more than 4,300 digits into text."""
    assert through_store(Fraction(10**5000 + 1, 3)) == Fraction(10**5000 + 1, 3)


class Stricter(BaseModel):
    kept: int
    needed: int


@dataclasses.dataclass
class StricterPoint:
    kept: int
    needed: int


@pytest.mark.parametrize("newer", [Stricter, StricterPoint])
def test_a_field_that_was_gained_without_a_default_is_told_and_not_left_out(newer: type) -> None:
    """Otherwise a body would die of a missing attribute, much later and elsewhere."""
    with pytest.raises(UnknownJobType, match="the stored value has no needed, and the field no default"):
        decode(encode(Old(kept=7, dropped=8)), lambda _: newer)


def test_a_field_that_the_class_has_gained_gets_its_default_and_one_that_it_lost_is_dropped() -> None:
    """A job that was saved by older code goes on with newer code."""
    back = decode(encode(Old(kept=7, dropped=8)), lambda _: New)
    assert (back.kept, back.added, back._also) == (7, [5], "new")
    assert back.model_fields_set == {"kept"}
    back.added.append(6)
    assert decode(encode(Old(kept=7, dropped=8)), lambda _: New).added == [5]


def test_what_is_decoded_shares_nothing_with_the_value_or_the_payload() -> None:
    """A hook that changes its state must not change what is stored."""
    value = {"a": [1], "b": Base()}
    payload = encode(value)
    value["a"].append(2)
    first = decode(payload)
    first["a"].append(3)
    assert decode(payload)["a"] == [1]


class Cyclic(list[Any]):
    pass


def _cycle() -> list[Any]:
    ring: list[Any] = []
    ring.append([ring, ring])
    return ring


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


Loose = namedtuple("Lost", "a")  # noqa: PYI024 - its name is not the name that it is found by


class Ref:
    __module__ = "ray"


@dataclasses.dataclass
class LessPoint:
    """One whose field was deleted, as its class has a value for it, so that it has as many attributes as fields."""

    x: int = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int


@dataclasses.dataclass
class HalfSlotted(Slotted):
    y: int


class Row(BaseModel):
    a: int = 0


OldRow = Row  # as a notebook holds the class of a cell that is then run again
Row = create_model("Row", b=(int, 0), __module__=__name__)  # type: ignore[misc]
Unfound = create_model("Nowhere", b=(int, 0), __module__=__name__)
Lost = create_model("Lost", __module__="no.such.module")


class MyFloat64(np.float64):
    pass


def _with_an_attribute_more(value: Any) -> Any:
    if isinstance(value, LessPoint):
        del value.x
    value.more = 5
    return value


def _local_class() -> type[BaseModel]:
    class Local(BaseModel):
        pass

    return Local


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Anything(items=[1, 2, 3, threading.Lock()]), "items[3]"),
        (Anything(keys={"a.b": print}), "keys['a.b']"),
        (Anything(keys={"a.b": 1, "bad": print}), "keys['bad']"),
        (Anything(keys={1: "ok", 2: "ok", 3: print}), "keys[3]"),
        (Anything(keys={"before": "ok", 2: {"c.d": 1, 4: print}}), "keys[2][4]"),
        (Anything(keys={"a": Anything(value=[{"x": Plain()}])}), "keys['a'].value[0]['x']"),
        (Anything(keys={Plain: 1}), f"keys[{Plain!r}]"),
        (Anything(value=Point(1, Plain())), "value.y"),
        (Anything(value=Pair(1, Plain())), "value.right"),
        (Anything(value=(1, {frozenset({MyInt(1)})})), "value[1][0][0]"),
        (MyInt(1), ""),
        (MyStr("a"), ""),
        (type("Sneaky", (bytes,), {})(b""), ""),
        (object(), ""),
        (lambda: 1, ""),
        (Plain, ""),
        (sys, ""),
        (types.SimpleNamespace(a=1), ""),
        (ValueError("x"), ""),
        (iter([]), ""),
        (memoryview(b"a"), ""),
        (Cyclic(), ""),
        (Ref(), ""),
        (_local_class()(), ""),
        (Loose(1), ""),
        (Anything(value=OldRow(a=1)), "value"),
        (Anything(items=[Box[OldRow](item=OldRow())]), "items[0]"),
        (Unfound(), ""),
        (Lost(), ""),
        (_with_an_attribute_more(Point(1)), "more"),
        (_with_an_attribute_more(LessPoint(1)), "more"),
        (_with_an_attribute_more(HalfSlotted(1, 2)), "more"),
        (np.array([object()]), ""),
        (np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), ""),
        (np.ma.masked_array([1], [True]), ""),
        (MyFloat64(1), ""),
        (np.array([rational(1, 2)]), ""),
        (rational(1, 2), ""),
        (Addressed.model_validate({"url": "http://example.com"}), "url"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_path(value: Any, path: str) -> None:
    """Also values that are silently a base class's after a round trip elsewhere."""
    with pytest.raises(NotStorable) as caught:
        encode(value)
    assert caught.value.path == path
    assert caught.value.why
    with pytest.raises(NotStorable) as caught:
        encode(value, "request")
    assert caught.value.path == ("request." + path if path and path[0].isalpha() else "request" + path)


@pytest.mark.parametrize("wrap", [lambda model: model(), lambda model: Box[model](item=model())])
def test_an_instance_of_a_cell_that_was_run_again_is_refused(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    """Its name leads to the new class by now, as which it would be read; one of the new class is stored."""
    main = sys.modules["__main__"]
    older, newer = (create_model("Item", note=(str, note), __module__="__main__") for note in ("older", "newer"))
    monkeypatch.setattr(main, "Item", older, raising=False)
    value = wrap(older)
    assert through_store(value) == value
    monkeypatch.setattr(main, "Item", newer)
    with pytest.raises(NotStorable, match="another class of the name Item is in the module __main__ by now"):
        encode(value)
    assert through_store(wrap(newer)) == wrap(newer)
    monkeypatch.delattr(main, "Item")
    with pytest.raises(NotStorable, match="not found under its name in the module __main__"):
        encode(value)


def test_private_attributes_are_refused_with_their_path_too() -> None:
    """A lock in a private attribute is no different from one in a field."""
    model = Secretive()
    model._hidden.append(threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(NotStorable) as caught:
        encode(model)
    assert caught.value.path == "_hidden[0]"


def test_a_secret_is_refused_with_what_to_do_instead() -> None:
    """Whoever may look into the database would see it."""
    with pytest.raises(NotStorable, match="SecretStr would lie open in the database; store where"):
        encode(SecretStr("hush"))


def test_an_open_file_is_refused(tmp_path: pathlib.Path) -> None:
    """It means nothing in another process."""
    with (tmp_path / "f").open("w") as file, pytest.raises(NotStorable):
        encode([file])


def test_depth_is_bounded_and_a_cycle_is_refused() -> None:
    """MongoDB takes about a hundred levels; a value must be refused before that, not at the write."""
    assert same(_deep(MAX_DEPTH), through_store(_deep(MAX_DEPTH)))
    for value in (_deep(MAX_DEPTH + 1), _cycle()):
        with pytest.raises(NotStorable, match="nested deeper"):
            encode(value)


def levels(payload: Any) -> int:
    """How many documents and lists lie in each other."""
    match payload:
        case dict():
            return 1 + max(map(levels, payload.values()), default=0)
        case list():
            return 1 + max(map(levels, payload), default=0)
    return 0


@pytest.mark.parametrize(
    "nest",
    [lambda v: (v,), lambda v: {1: v}, lambda v: Anything(value=v), lambda v: {"a": v}, lambda v: frozenset({v})],
)
def test_no_payload_is_deeper_than_the_bound_however_it_is_nested(nest: Any) -> None:
    """Tagged forms take more levels than the value has."""
    value: Any = 1
    deepest = 0
    for _ in range(MAX_DEPTH + 2):
        value = nest(value)
        try:
            deepest = max(deepest, levels(encode(value)))
        except NotStorable:
            break
    assert MAX_DEPTH - 4 < deepest <= MAX_DEPTH


def test_an_unknown_class_or_form_is_a_sentence() -> None:
    """Never a crash of something shared [S13]."""
    for payload in (
        {"~": "no.such.module:X"},
        {"~": "json:nothing"},
        {"~": "os:getcwd"},
        {"~": "builtins:print"},
        {"~": "threading:Thread"},
        {"~": "form of the future"},
        {"~": f"{Color.__module__}:Color", "name": "GREEN"},
    ):
        with pytest.raises(UnknownJobType):
            decode(payload)


def test_names_are_resolved_by_whoever_knows_the_code() -> None:
    """Captured code is in no importable module [S13]."""
    asked: list[str] = []

    def resolve(name: str) -> type:
        asked.append(name)
        return import_type(name)

    assert decode(encode([Box[Sub](item=Sub())]), resolve) == [Box[Sub](item=Sub())]
    assert {name.partition(":")[2] for name in asked} == {"Box", "Sub"}


def test_the_size_is_that_of_the_document() -> None:
    """Bytes, so that a caller can refuse in time."""
    assert 1000 < encoded_size(encode({"a": "x" * 1000})) < 1050


def test_numpy_is_not_imported_for_values_that_are_not_of_it() -> None:
    """It is optional, and slow to import."""
    import subprocess

    code = (
        "import sys; from choreography_ray.codec import encode, decode;"
        "decode(encode([1, (2,), {'a.b': 3}])); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


class AcceptanceColor(enum.Enum):
    RED = "r"


class AcceptanceRequest(BaseModel):
    """The values of the acceptance script, field by field."""

    items: list[Base] = [Sub(b="kept"), Base()]
    anything: Any = None
    nan: float = math.nan
    inf: float = -math.inf
    raw: bytes = bytes(range(256))
    aset: set[int] = {1, 2}
    tup: dict[tuple[int, int], str] = {(1, 2): "t"}
    ints: dict[int, str] = {1: "one"}
    keys: dict[str, int] = {"model.v1/a.b": 1, "$set": 2, "": 3}
    dec: Decimal = Decimal("1.10")
    uid: uuid.UUID = uuid.UUID(int=7)
    day: dt.date = dt.date(2020, 2, 29)
    at: dt.datetime = dt.datetime(2020, 1, 1, 12, 0, 0, 123456, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    span: dt.timedelta = dt.timedelta(days=3, microseconds=5)
    color: AcceptanceColor = AcceptanceColor.RED
    big: int = 2**63


def test_the_request_of_the_acceptance_script_comes_back() -> None:
    """All its values in one model, also inside an `Any` of another."""
    request = AcceptanceRequest(anything=AcceptanceRequest())
    assert same(request, through_store(request))


# ---------------------------------------------------------------- any value at all

text = st.text(st.characters(categories=["L", "N", "P", "Cs", "Cc", "S"]), max_size=6)
zones = (
    st.none()
    | st.timezones()
    | st.just(dt.UTC)
    | st.builds(dt.timezone, st.timedeltas(dt.timedelta(-0.9), dt.timedelta(0.9)))
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    text,
    st.binary(max_size=6),
    st.complex_numbers(),
    st.decimals().filter(lambda number: not number.is_snan()),  # cannot be hashed
    st.uuids(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(timezones=zones),
    st.sampled_from([*Color, *Level, *Name, Access.READ | Access.WRITE]),
    st.fractions(),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.sampled_from(["a.b", "$", "~", "", "\0"]),
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=3)
bases = st.builds(Base, a=st.integers()) | st.builds(Sub, a=st.integers(), b=text)
trees = st.recursive(
    st.builds(Everything),
    lambda inner: st.builds(Everything, parent=inner, twins=st.tuples(inner, inner)),
    max_leaves=3,
)


def filled(tree: st.SearchStrategy[Any], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Models with a field of each type that S12.3 names."""
    return st.builds(
        Everything,
        base=bases,
        bases=st.lists(bases, max_size=2),
        model=bases | st.builds(Point, st.integers()).map(lambda point: Anything(value=point)),
        anything=inner,
        number=st.floats(),
        big=st.integers(-(2**70), 2**70),
        raw=st.binary(max_size=4),
        numbers=st.sets(st.floats() | st.integers(), max_size=3),
        by_pair=st.dictionaries(st.tuples(st.integers(), text), text, max_size=2),
        by_number=st.dictionaries(st.integers(), st.floats(), max_size=2),
        by_key=st.dictionaries(st.sampled_from(["a.b", "$set", "", "~", "ключ", "\0"]), inner, max_size=2),
        price=st.decimals(allow_nan=False, allow_infinity=False),
        uid=st.uuids(),
        day=st.dates(),
        moment=st.datetimes(timezones=zones.filter(bool)),
        span=st.timedeltas(),
        color=st.sampled_from(Color),
        generic=bases.map(lambda base: Box[Base](item=base)),
        of_generics=st.integers().map(lambda number: Box[list[Box[int]]](item=[Box[int](item=number)])),
        scalar=st.integers(0, 2**64 - 1).map(np.uint64) | st.floats(width=16).map(np.float16),
        parent=st.none() | tree,
    )


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        filled(trees, inner),
        bases,
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(text, inner, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
        st.builds(Anything, value=inner, items=st.lists(inner, max_size=2)),
        st.builds(lambda v: Box[Any](item=v), inner),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.sets(hashable, max_size=3),
    ),
    max_leaves=12,
)

unstorable = st.sampled_from([len, object(), threading.Lock(), MyInt(1), MyStr("a"), Plain(), Plain, math])
spoiled = st.recursive(
    unstorable,
    lambda inner: st.one_of(
        st.tuples(scalars, inner),
        st.lists(inner, min_size=1, max_size=2),
        st.dictionaries(hashable, inner, min_size=1, max_size=2),
        st.builds(Anything, value=scalars, items=st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda v: Box[Any](item=v), inner),
        st.builds(Point, scalars, inner),
        inner.map(lambda v: Everything(anything=v)),
    ),
    max_leaves=4,
)
"""Values that hold, somewhere, what cannot be stored."""


@settings(max_examples=300, deadline=None)
@given(spoiled)
def test_a_value_with_something_unstorable_anywhere_inside_is_refused(value: Any) -> None:
    """And never stored as something else."""
    with pytest.raises(NotStorable) as caught:
        encode(value, "request")
    assert caught.value.path.startswith("request")
    assert caught.value.why


@settings(max_examples=300, deadline=None)
@given(values)
def test_any_nested_value_comes_back_equal_and_of_its_types(value: Any) -> None:
    """Whatever lies in whatever."""
    assert same(value, through_store(value))
