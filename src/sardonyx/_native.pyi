"""The native part of Sardonyx."""

from collections.abc import Sequence
import enum
from typing import Any

import numpy
import numpy.typing
from typing_extensions import Buffer


version: str = '0.1.0'

class DecodeError(ValueError):
    pass

class TypeRecord:
    """A TypeProto."""

    @property
    def kind(self) -> str:
        """
        "tensor", "sparse", "sequence", "map", "optional", "opaque", or "none" when unset.
        """

    @property
    def elem_type(self) -> int:
        """TensorProto.DataType of a tensor's elements; 0 when absent."""

    @property
    def key_type(self) -> int:
        """TensorProto.DataType of a map's keys; 0 when absent."""

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """Per dim its size, its name or None; None when the rank is unknown."""

    @property
    def denotations(self) -> tuple[str, ...]:
        """What each dim stands for."""

    @property
    def elem(self) -> TypeRecord | None:
        """
        The element type of a sequence or an optional, the value type of a map.
        """

class ValueInfoRecord:
    """A ValueInfoProto."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> TypeRecord | None: ...

class TensorRecord:
    """A TensorProto, its data left in the buffer."""

    @property
    def name(self) -> str: ...

    @property
    def data_type(self) -> int:
        """TensorProto.DataType."""

    @property
    def dims(self) -> tuple[int, ...]:
        """As the file says, unchecked."""

    @property
    def location(self) -> int:
        """1 when external, else 0."""

    @property
    def external_data(self) -> list[tuple[str, str]]: ...

    @property
    def has_segment(self) -> bool:
        """Whether this is one part of a tensor stored in several."""

    @property
    def storage(self) -> str:
        """
        Which field holds the data: "none", "raw", "float", "int32", "int64", "double", "uint64" or "string".
        """

    @property
    def offset(self) -> int:
        """
        Where the little-endian elements start in the buffer; -1 when they do not lie there.
        """

    @property
    def length(self) -> int:
        """Bytes from `offset` on; 0 when the elements do not lie in the buffer."""

    @property
    def plain(self) -> tuple[int, tuple[int, ...], int, int] | None:
        """
        data_type, dims, offset and length of a tensor in one piece of raw data; else None.
        """

    @property
    def values(self) -> numpy.typing.NDArray[Any] | None:
        """
        Typed data as a new array of one dim; None when they lie in place or are strings.
        """

    @property
    def strings(self) -> list[bytes]:
        """string_data."""

class SparseTensorRecord:
    """A SparseTensorProto."""

    @property
    def values(self) -> TensorRecord: ...

    @property
    def indices(self) -> TensorRecord: ...

    @property
    def dims(self) -> tuple[int, ...]:
        """As the file says, unchecked."""

class AttributeRecord:
    """An AttributeProto."""

    @property
    def name(self) -> str: ...

    @property
    def ref_attr_name(self) -> str:
        """The attribute of the enclosing function that gives the value, or ""."""

    @property
    def type(self) -> int:
        """
        AttributeProto.AttributeType, deduced from the value when the file leaves it out.
        """

    @property
    def value(self) -> int | float | bytes | TensorRecord | GraphRecord | SparseTensorRecord | TypeRecord | numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.int64] | list[bytes] | list[TensorRecord] | list[GraphRecord] | list[SparseTensorRecord] | list[TypeRecord] | None:
        """By `type`; None for a reference and where the file gives no value."""

class NodeRecord:
    """A NodeProto."""

    @property
    def op_type(self) -> str: ...

    @property
    def domain(self) -> str: ...

    @property
    def overload(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> list[str]:
        """Value names; "" is an input left out."""

    @property
    def outputs(self) -> list[str]:
        """Value names; "" is an output left out."""

    @property
    def attributes(self) -> list[AttributeRecord]: ...

    @property
    def has_bodies(self) -> bool:
        """Whether an attribute holds a graph."""

    @property
    def metadata(self) -> list[tuple[str, str]]: ...

class GraphRecord:
    """A GraphProto."""

    @property
    def name(self) -> str: ...

    @property
    def doc_string(self) -> str: ...

    @property
    def nodes(self) -> list[NodeRecord]: ...

    @property
    def initializers(self) -> list[TensorRecord]: ...

    @property
    def is_sorted(self) -> bool:
        """Whether each node reads only what nodes before it make."""

    @property
    def sparse_initializers(self) -> list[SparseTensorRecord]: ...

    @property
    def inputs(self) -> list[ValueInfoRecord]: ...

    @property
    def outputs(self) -> list[ValueInfoRecord]: ...

    @property
    def value_infos(self) -> list[ValueInfoRecord]: ...

class FunctionRecord:
    """A FunctionProto."""

    @property
    def domain(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def overload(self) -> str: ...

    @property
    def inputs(self) -> list[str]: ...

    @property
    def outputs(self) -> list[str]: ...

    @property
    def attributes(self) -> list[str]:
        """Names of attributes without a default."""

    @property
    def attribute_protos(self) -> list[AttributeRecord]:
        """Attributes with their defaults."""

    @property
    def nodes(self) -> list[NodeRecord]: ...

    @property
    def is_sorted(self) -> bool:
        """Whether each node reads only what nodes before it make."""

    @property
    def opset_imports(self) -> list[tuple[str, int]]: ...

    @property
    def value_infos(self) -> list[ValueInfoRecord]: ...

class ModelRecord:
    """A ModelProto."""

    @property
    def ir_version(self) -> int: ...

    @property
    def model_version(self) -> int: ...

    @property
    def producer_name(self) -> str: ...

    @property
    def producer_version(self) -> str: ...

    @property
    def domain(self) -> str: ...

    @property
    def doc_string(self) -> str: ...

    @property
    def opset_imports(self) -> list[tuple[str, int]]:
        """Domain and version."""

    @property
    def metadata(self) -> list[tuple[str, str]]: ...

    @property
    def graph(self) -> GraphRecord | None:
        """None when the file has none."""

    @property
    def functions(self) -> list[FunctionRecord]: ...

def decode(buffer: Buffer) -> ModelRecord:
    """
    Read an ONNX ModelProto; the records view the buffer and keep it alive.
    """

def decode_tensor(buffer: Buffer) -> TensorRecord:
    """
    Read an ONNX TensorProto; the record views the buffer and keeps it alive.
    """

class Texts:
    """Room for strings that single calls of rows make."""

    def __init__(self) -> None: ...

def read_texts(address: int, dims: list[int]) -> numpy.ndarray:
    """The strings of records at an address, which a row has written."""

def texts(strings: object) -> numpy.ndarray:
    """
    Strings, or bytes in UTF-8, as kernels read them: records, then the bytes that they are of. They stay where they are.
    """

def odd_text(strings: object) -> int | None:
    """The first element of an array that is no text, or None."""

def text_index(block: object, count: int) -> numpy.ndarray:
    """
    The table by which kernels find one of so many texts; of equal ones the last.
    """

def text_numbers(block: object, count: int, index: object) -> numpy.ndarray:
    """For each text of a block the number of the one that its index finds."""

isas: tuple[str, ...]

isa: str

multiplies_bf16: bool

class KernelInfo:
    """What Python needs to know of a kernel row."""

    @property
    def family(self) -> str: ...

    @property
    def accepts(self) -> int:
        """How its inputs may lie: see Form in program/flat.py."""

    @property
    def resolves(self) -> bool:
        """Whether its output sizes depend on data."""

kernels: dict[str, KernelInfo]

def call(row: str, inputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], outputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], ints: Sequence[int], floats: Sequence[float], splits: int = 1, isa: str = '', texts: Texts | None = None, threads: int = 0) -> str:
    """
    Runs one row on tensors (address, type, dims, strides), in so many parts one after the other, or with 0 on so many threads (0: all); returns what went wrong, or ''.
    """

def resolve(row: str, inputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], outputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], ints: Sequence[int], floats: Sequence[float], isa: str = '') -> list[list[int]]:
    """The dims of the outputs of a row whose sizes depend on data."""

class MalformedProgram(Exception):
    pass

max_rank: int = 10

class SizeKind(enum.Enum):
    """How a register of a size program gets its value."""

    NUMBER = 0

    NAME = 1

    ADD = 2

    MUL = 3

    DIV = 4

    MOD = 5

    MIN = 6

    MAX = 7

    BROADCAST = 8

class GuardKind(enum.Enum):
    """A condition on two registers."""

    EQUAL = 0

    EQUAL_OR_ONE = 1

    BROADCASTS = 2

    DIVIDES = 3

    AT_LEAST = 4

class Storage(enum.Enum):
    """How a value of a segment comes by its bytes."""

    SLOT = 0
    """An input: the slot `at`."""

    CONSTANT = 1
    """At a fixed address."""

    ARENA = 2
    """Made by a step, dead before the segment ends."""

    EXPORTED = 3
    """Made by a step, in a block that goes to slot `at`."""

    RESHAPED = 4
    """A view of the value `at`, as are all that follow."""

    PERMUTED = 5
    """`numbers` are the axes."""

    SLICED = 6
    """`numbers` are registers of starts, then the steps."""

    EXPANDED = 7

    PART = 8
    """Made by a step, in the bytes of the Concat output `at`."""

class ControlKind(enum.Enum):
    """A kind of control flow."""

    BRANCH = 0

    LOOP = 1

    SCAN = 2

class SegmentSpec:
    """A segment under construction."""

    def __init__(self, number: int, key: Sequence[int], effort: int, branches: bool) -> None:
        """
        `key` are the names that decide all sizes; `effort` is that of the search for an order.
        """

    def add_size(self, kind: SizeKind, a: int, b: int, value: int) -> None:
        """The next register."""

    def add_guard(self, kind: GuardKind, left: int, right: int) -> None: ...

    def add_value(self, storage: Storage, dtype: int, at: int, address: int, dims: Sequence[int], numbers: Sequence[int]) -> None:
        """The next value; `dims` are registers."""

    def add_step(self, row: str, inputs: Sequence[int], outputs: Sequence[int], ints: Sequence[int], floats: Sequence[float], shares: Sequence[tuple[int, int]], permutation: Sequence[int], joins: bool) -> None:
        """The next step: a kernel row on values; -1: not given."""

    def add_resolved(self, step: int, output: int, axis: int, name: int) -> None:
        """A name that a step settles from data."""

    def add_alias(self, slot: int, value: int) -> None:
        """A slot that gets the bytes of an exported value in another shape."""

    def add_growth(self, source: int, target: int, axis: int, rows: int, room_from: int, room_to: int) -> None:
        """
        An output that is an input with more rows: `rows` is a register, the rooms are names.
        """

class ControlSpec:
    """An If, Loop or Scan under construction."""

    def __init__(self, kind: ControlKind, number: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Inputs and outputs are slots; -1: none."""

    def add_body(self, program: SequenceSpec, captures: Sequence[int], known_names: Sequence[tuple[int, int]]) -> None:
        """
        A body, which takes its program over: slots outside, (name outside, name inside).
        """

    def add_stacked(self, dtype: int, dims: Sequence[int], axis: int, is_reversed: bool, is_joined: bool, needs_parts: bool) -> None:
        """An output that collects what iterations give."""

    def add_cut(self, axis: int, is_reversed: bool) -> None:
        """An input that is cut into a slice for each iteration."""

class SequenceSpec:
    """Segments and control flow under construction."""

    def __init__(self, n_slots: int, n_names: int) -> None: ...

    def add_input(self, slot: int, rank: int, dtype: int, room_axis: int) -> None: ...

    def add_output(self, slot: int) -> None: ...

    def add_name(self, slot: int, axis: int, name: int) -> None:
        """A name that the shape of an input gives."""

    def add_size(self, slot: int, axis: int, size: int) -> None:
        """A size that the shape of an input must have."""

    def add_constant(self, slot: int, dtype: int, dims: Sequence[int], address: int) -> None: ...

    def add_segment(self, spec: SegmentSpec, frees: Sequence[int]) -> None:
        """Takes the segment over."""

    def add_control(self, spec: ControlSpec, gives: Sequence[tuple[int, int, int]], frees: Sequence[int]) -> None:
        """
        Takes the control flow over; `gives` are (slot, axis, name) that are known after it.
        """

class Stop:
    """A flag that any thread may raise to end runs."""

    def __init__(self) -> None: ...

    @property
    def raised(self) -> bool: ...

    @raised.setter
    def raised(self, arg: bool, /) -> None: ...

class Pool:
    """Memory for arenas and outputs, kept between runs if it is to."""

    def __init__(self, keeps: bool) -> None: ...

    def drop_kept(self) -> None:
        """
        Gives what is kept back to the system, and what is in use when it is let go.
        """

    @property
    def kept_bytes(self) -> int: ...

    @property
    def kept_blocks(self) -> int: ...

    @property
    def live_blocks(self) -> int: ...

class Fault(enum.Enum):
    """Why a run ended before its end."""

    NONE = 0

    GUARD = 1

    SIZE = 2

    STEP = 3

    MEMORY = 4

    STOPPED = 5

    NAME = 6

    LIMIT = 7

class Outcome:
    """How a run failed, at which guard or step of which segment."""

    @property
    def fault(self) -> Fault: ...

    @property
    def segment(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def names(self) -> list[int]:
        """The sizes of all names."""

    @property
    def bytes(self) -> int:
        """That were wanted, for faults of memory."""

class RunResult:
    """What a run gave."""

    @property
    def outputs(self) -> list: ...

    @property
    def names(self) -> list[int]:
        """The sizes of all names."""

    @property
    def spans(self) -> list:
        """(segment, step, begin, end, run, lane), of profiles."""

    @property
    def names_by_run(self) -> list[list[int]]:
        """Of profiles."""

class Runnable:
    """A compiled sequence of segments, ready to run."""

    def __init__(self, sequence: SequenceSpec, *, input_names: list, input_types: list, output_types: list, output_dtypes: Sequence[int], pool: Pool, threads: int, spins: bool, spin_us: int, flushes: bool, calms: bool, grows_in_place: bool, limit_bytes: int, keeps: object | None) -> None:
        """
        Takes the sequence over. `keeps` owns the constants that it has addresses of.
        """

    def quick(self, feed: dict) -> list | Outcome | None:
        """
        The outputs of a plain feed; None, before anything runs, if it needs the checked path.
        """

    def quick_into(self, feed: dict, arrays: list | None) -> list | Outcome | None:
        """
        The same with arrays for outputs: those that an output lies in come back.
        """

    def run(self, names: Sequence[int], inputs: list, stop: Stop | None, profiles: bool, arrays: list | None = None) -> RunResult | Outcome:
        """The outputs of values that were checked, or how the run failed."""

    def memory(self, names: Sequence[int]) -> list[dict]:
        """
        What a run with these sizes takes, by segment: when each value is alive, and where.
        """

    def memory_of(self, number: int, names: Sequence[int]) -> dict | None:
        """
        The same of one segment, in a body or not; None if there is no such segment.
        """

def has_room(object: object) -> bool:
    """Whether an object is an array that was handed out with room to grow."""

def address(array: object) -> int:
    """Where the bytes of an array lie."""

most_threads: int = 256

def usable_cpus() -> int:
    """CPUs that the process may use, by affinity and cgroup."""

def flush_denormals(on: bool) -> bool:
    """
    Whether this thread takes denormal numbers for zero from now on; the answer is whether it did before.
    """

def set_affinities(sets: Sequence[Sequence[int]]) -> None:
    """Binds the pool's workers to CPUs."""

def kept_bytes() -> int:
    """Bytes that all pools keep for arenas and outputs to come."""

def least_peak(sizes: Sequence[int], tasks: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]], int]], given: Sequence[int], effort: int = 0) -> list[int]:
    """
    The order with the least peak that a search finds, never above that of the order given. A task is (preds, touches, pairs that may share, scratch bytes).
    """

def peak_of(sizes: Sequence[int], tasks: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]], int]], order: Sequence[int]) -> int:
    """The most bytes that are alive in a step of an order."""

def export_tensor(address: int, dims: Sequence[int], code: int, bits: int, owner: object, is_versioned: bool, is_read_only: bool) -> object:
    """A DLPack capsule of a tensor over memory that `owner` keeps."""

def look_at_tensor(capsule: object) -> tuple[int, list[int], list[int] | None, int, int, int, int, bool] | None:
    """
    Address, dims, strides (None: row-major), type code, bits, kind and number of the device, and whether it is read-only, of the tensor in a DLPack capsule; None for what is no such capsule, or was used before. A tensor that cannot be is a ValueError.
    """

def take_tensor(capsule: object) -> object:
    """
    Takes over the tensor of a capsule: it lives as long as what comes back.
    """

def is_mapped(address: int, size_bytes: int) -> bool:
    """Whether all of these addresses are memory of this process."""
