"""Reads pickles without running any code that they name.

A pickle is a program: loading it with Python's own reader runs what its author chose. This reader
interprets the same instructions, but without imports and calls. A name in a pickle is just a word:
a short list of known names (tensors, OrderedDict, Size, containers) is built by this reader itself.
Everything else becomes an inert Record: a name with arguments, attributes and items.

Memory is bounded: the file's size is limited, each instruction creates at most what its bytes
contain, and copying is counted. Dictionary keys must be plain values, flat tuples of those, or
records, as hashing and comparing deeply nested keys could exhaust the C stack.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from artesian.checkpoint.zero_to_fp32 import Damaged, shown

PICKLE_BYTES_MAX = 256 << 20
INSTRUCTIONS_MAX = 32_000_000
KEY_PARTS_MAX = 64
COPIED_MAX = 64 << 20  # approximate bytes, over all instructions that copy
ELEMENT_BYTES = 32


@dataclass(frozen=True)
class Name:
    """A module and name to which a pickle refers."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Record:
    """An inert object of a class that is unknown here, or not needed."""

    of: Name
    arguments: tuple[Any, ...] = ()
    attributes: dict[Any, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.attributes.get(name, otherwise)

    def __repr__(self) -> str:
        return f"<record of {shown(str(self.of))}>"


class _Mark:
    pass


MARK = _Mark()
PLAIN = (str, bytes, int, float, bool, type(None), Name, Record)

Known = dict[tuple[str, str], Callable[..., Any]]


def _is_key(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= KEY_PARTS_MAX and all(isinstance(each, PLAIN) for each in value)
    return isinstance(value, PLAIN)


class Machine:
    """Runs one pickle. `known` builds the object for a name; `persistent` the object for an id.

    Both are called with unchecked values, and raise Damaged.
    """

    def __init__(self, known: Known, persistent: Callable[[Any], Any] | None = None) -> None:
        self.known = BASIC | known
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self, data: bytes) -> Any:
        """Returns the object. Raises Damaged."""
        if len(data) > PICKLE_BYTES_MAX:
            raise Damaged(f"its pickle has {len(data)} bytes, allowed {PICKLE_BYTES_MAX}")
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
                if count > INSTRUCTIONS_MAX:
                    raise Damaged("its pickle has too many instructions")
                if opcode.name == "STOP":
                    break
                self._step(opcode.name, argument)
            return self._pop()
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise Damaged(f"its pickle is damaged: {shown(str(error))}") from None

    def _step(self, opcode: str, argument: Any) -> None:
        if opcode in PUSHED:
            self.stack.append(argument)
            return
        if opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode]())
            return
        do = ACTIONS.get(opcode)
        if do is None:
            raise Damaged(f"its pickle has the instruction {opcode}, which is not read here")
        do(self, argument)

    def _pop(self) -> Any:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) <= floor:
            raise Damaged("its pickle takes more than it has")
        return self.stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise Damaged("its pickle takes more than it has")
        begin = self.marks.pop()
        taken = self.stack[begin:]
        del self.stack[begin:]
        return taken

    def _top(self) -> Any:
        self.stack.append(top := self._pop())
        return top

    def count_copy(self, value: Any) -> None:
        size = len(value) if hasattr(value, "__len__") else 1
        self.copied += size if isinstance(value, str) else size * ELEMENT_BYTES
        if self.copied > COPIED_MAX:
            raise Damaged("its pickle copies too much")

    # Instructions on the stack and the memo.

    def mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def pop(self, _: Any) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self._pop()

    def pop_mark(self, _: Any) -> None:
        self._pop_to_mark()

    def put(self, index: Any) -> None:
        self.memo[int(index)] = self._top()

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self._top()

    def get(self, index: Any) -> None:
        self.stack.append(self.memo[int(index)])

    # Instructions that build containers.

    def tuple_of(self, count: int) -> None:
        taken = [self._pop() for _ in range(count)]
        self.stack.append(tuple(reversed(taken)))

    def tuple_to_mark(self, _: Any) -> None:
        self.stack.append(tuple(self._pop_to_mark()))

    def list_to_mark(self, _: Any) -> None:
        self.stack.append(self._pop_to_mark())

    def dict_to_mark(self, _: Any) -> None:
        made: dict[Any, Any] = {}
        self._set(made, self._pop_to_mark())
        self.stack.append(made)

    def set_to_mark(self, _: Any) -> None:
        self.stack.append(frozenset(self.keys(self._pop_to_mark())))

    def append(self, _: Any) -> None:
        value = self._pop()
        self._extend(self._top(), [value])

    def appends(self, _: Any) -> None:
        values = self._pop_to_mark()
        self._extend(self._top(), values)

    def set_item(self, _: Any) -> None:
        value = self._pop()
        key = self._pop()
        self._set(self._top(), [key, value])

    def set_items(self, _: Any) -> None:
        pairs = self._pop_to_mark()
        self._set(self._top(), pairs)

    def add_items(self, _: Any) -> None:
        values = self.keys(self._pop_to_mark())
        target = self._top()
        if isinstance(target, set):
            target.update(values)
        else:
            self._extend(target, values)

    def keys(self, values: list[Any]) -> list[Any]:
        """Returns the values, checked as keys. Raises Damaged if one is not allowed."""
        if all(_is_key(value) for value in values):
            return values
        raise Damaged("its pickle has a key that is no plain value")

    def _extend(self, target: Any, values: list[Any]) -> None:
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Record):
            target.items.extend(values)
        else:
            raise Damaged("its pickle appends to what is no list")

    def _set(self, target: Any, pairs: list[Any]) -> None:
        if len(pairs) % 2:
            raise Damaged("its pickle has a key without a value")
        keys = self.keys(pairs[::2])
        if isinstance(target, dict):
            target.update(zip(keys, pairs[1::2], strict=True))
        elif isinstance(target, Record):
            target.items.extend(zip(keys, pairs[1::2], strict=True))
        else:
            raise Damaged("its pickle sets items of what is no dictionary")

    # Instructions on names, and on the objects that they refer to.

    def name(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(Name(module, name))

    def name_of_stack(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise Damaged("its pickle names something by what is no text")
        self.stack.append(Name(module, name))

    def call(self, _: Any) -> None:
        arguments, callee = self._pop(), self._pop()
        self.stack.append(self.make(callee, arguments))

    def call_with_keywords(self, _: Any) -> None:
        keywords, arguments, callee = self._pop(), self._pop(), self._pop()
        made = self.make(callee, arguments)
        if isinstance(made, Record) and isinstance(keywords, dict):
            self.count_copy(keywords)
            made.attributes.update(keywords)
        self.stack.append(made)

    def call_to_mark(self, _: Any) -> None:
        callee, *arguments = self._pop_to_mark()
        self.stack.append(self.make(callee, tuple(arguments)))

    def instance(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self.make(Name(module, name), tuple(self._pop_to_mark())))

    def make(self, callee: Any, arguments: Any) -> Any:
        if type(arguments) is not tuple:
            raise Damaged("its pickle calls something with what is no tuple")
        if not isinstance(callee, Name):
            return Record(Name("", "nameless"), (callee, *arguments))
        make = self.known.get((callee.module, callee.name))
        return make(self, *arguments) if make else Record(callee, arguments)

    def build(self, _: Any) -> None:
        state = self._pop()
        target = self._top()
        if not isinstance(target, Record):
            return  # attributes of a dictionary or tensor are not needed
        slots = None
        if type(state) is tuple and len(state) == 2 and isinstance(state[1], dict):
            state, slots = state
        for attributes in (state, slots):
            if isinstance(attributes, dict):
                self.count_copy(attributes)
                target.attributes.update(attributes)
            elif attributes is not None:
                target.attributes[""] = attributes

    def persistent_id(self, _: Any) -> None:
        if self.persistent is None:
            raise Damaged("its pickle speaks of data that is not in it")
        self.stack.append(self.persistent(self._pop()))

    def nothing(self, _: Any) -> None:
        pass


PUSHED = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING SHORT_BINSTRING BINBYTES "
    "SHORT_BINBYTES BINBYTES8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT "
    "BINFLOAT".split()
)
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
ACTIONS: dict[str, Callable[[Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), Machine.nothing),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine.get),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), Machine.call),
    "MEMOIZE": Machine.memoize,
    "MARK": Machine.mark,
    "POP": Machine.pop,
    "POP_MARK": Machine.pop_mark,
    "DUP": lambda machine, _: machine.stack.append(machine._top()),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "TUPLE": Machine.tuple_to_mark,
    "LIST": Machine.list_to_mark,
    "DICT": Machine.dict_to_mark,
    "FROZENSET": Machine.set_to_mark,
    "APPEND": Machine.append,
    "APPENDS": Machine.appends,
    "SETITEM": Machine.set_item,
    "SETITEMS": Machine.set_items,
    "ADDITEMS": Machine.add_items,
    "GLOBAL": Machine.name,
    "STACK_GLOBAL": Machine.name_of_stack,
    "NEWOBJ_EX": Machine.call_with_keywords,
    "OBJ": Machine.call_to_mark,
    "INST": Machine.instance,
    "BUILD": Machine.build,
    "BINPERSID": Machine.persistent_id,
}


def _ordered_dict(machine: Machine, pairs: Any = ()) -> dict[Any, Any]:
    if isinstance(pairs, dict):
        pairs = list(pairs.items())
    machine.count_copy(pairs)
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise Damaged("its pickle makes a dictionary of what are no pairs")
    machine.keys([pair[0] for pair in pairs])
    return dict(pairs)


def _default_dict(machine: Machine, _: Any = None, pairs: Any = ()) -> dict[Any, Any]:
    return _ordered_dict(machine, pairs)


def _set(machine: Machine, values: Any = ()) -> set[Any]:
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise Damaged("its pickle makes a set of what is no list")
    machine.count_copy(values)
    return set(machine.keys(list(values)))


def _encoded(machine: Machine, text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise Damaged("its pickle has bytes that are not latin1")
    machine.count_copy(text)
    return text.encode("latin1")


def _bytes(machine: Machine, *arguments: Any) -> Any:
    return b"" if not arguments else Record(Name("builtins", "bytes"), arguments)


def _size(machine: Machine, extents: Any = ()) -> tuple[Any, ...]:
    if not isinstance(extents, (list, tuple)):
        raise Damaged("its pickle has a size that is no list")
    machine.count_copy(extents)
    return tuple(extents)


def _new(machine: Machine, callee: Any, *arguments: Any) -> Any:
    machine.count_copy(arguments)
    return machine.make(callee, arguments)


def _reconstructed(machine: Machine, callee: Any, *arguments: Any) -> Any:
    if not isinstance(callee, Name):
        raise Damaged("its pickle makes an object of what is no class")
    machine.count_copy(arguments)
    return Record(callee, arguments)


BASIC: Known = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "defaultdict"): _default_dict,
    ("builtins", "set"): _set,
    ("__builtin__", "set"): _set,
    ("builtins", "frozenset"): _set,
    ("__builtin__", "frozenset"): _set,
    ("_codecs", "encode"): _encoded,
    ("builtins", "bytes"): _bytes,
    ("__builtin__", "bytes"): _bytes,
    ("torch", "Size"): _size,
    ("copyreg", "__newobj__"): _new,
    ("copy_reg", "_reconstructor"): _reconstructed,
    ("copyreg", "_reconstructor"): _reconstructed,
}
