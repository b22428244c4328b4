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
        """Whether the tensor is stored in segments, of which this is one."""

    @property
    def storage(self) -> str:
        """
        Which field holds the data: "none", "raw", "float", "int32", "int64", "double", "uint64" or "string".
        """

    @property
    def offset(self) -> int:
        """
        Where the little-endian elements start in the buffer; -1 when they are encoded otherwise.
        """

    @property
    def length(self) -> int:
        """Bytes from `offset` on; 0 when there is no offset."""

    @property
    def plain(self) -> tuple[int, tuple[int, ...], int, int] | None:
        """
        data_type, dims, offset and length of a tensor with raw_data in the buffer; else None.
        """

    @property
    def values(self) -> numpy.typing.NDArray[Any] | None:
        """
        Typed data as a new 1-d array; None when they are at `offset` or are strings.
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
    def constant(self) -> tuple[str, TensorRecord] | None:
        """
        Output and tensor of a Constant node that has nothing else; None for other nodes.
        """

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
        """Whether the nodes are in topological order, bodies included."""

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
        """Whether the nodes are in topological order, bodies included."""

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

class StringArena:
    """Memory for strings that single kernel calls produce."""

    def __init__(self) -> None: ...

def read_strings(address: int, dims: list[int]) -> numpy.ndarray:
    """The strings of Text records at an address, which a kernel has written."""

def pack_strings(strings: object) -> numpy.ndarray:
    """
    Strings, or bytes in UTF-8, as kernels read them: records, then the bytes they point to. Must not be copied.
    """

def first_non_string(strings: object) -> int | None:
    """
    The index of the first element of an array that is not a string, or None.
    """

def string_index(block: object, count: int) -> numpy.ndarray:
    """
    The hash table by which kernels find one of `count` strings; of equal ones the last.
    """

def string_numbers(block: object, count: int, index: object) -> numpy.ndarray:
    """By string of a block, the index of the one that a lookup finds."""

isas: tuple[str, ...]

isa: str

multiplies_bf16: bool

class KernelInfo:
    """What Python needs to know of a kernel."""

    @property
    def family(self) -> str: ...

    @property
    def accepts(self) -> int:
        """
        Which strides its inputs may have: the number of Accepts in kernels/kernel.h.
        """

    @property
    def resolves(self) -> bool:
        """Whether its output sizes depend on data."""

kernels: dict[str, KernelInfo]

elementwise_ops: tuple[str, ...]

def call(kernel: str, inputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], outputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], ints: Sequence[int], floats: Sequence[float], splits: int = 1, isa: str = '', strings: StringArena | None = None, threads: int = 0) -> str:
    """
    Run one kernel on tensors (address, type, dims, strides), each phase in `splits` ranges one after the other, or if that is 0 on `threads` threads (0: all). Returns the error or ''.
    """

def resolve(kernel: str, inputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], outputs: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], ints: Sequence[int], floats: Sequence[float], isa: str = '') -> list[list[int]]:
    """The dims of the outputs of a kernel whose sizes depend on data."""

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
    """Where the bytes of a segment's value are."""

    SLOT = 0
    """An input: slot `at` of the run."""

    CONSTANT = 1
    """At a fixed address."""

    ARENA = 2
    """Written by a step, dead before the segment ends."""

    EXPORTED = 3
    """Written by a step, in a block that goes to slot `at`."""

    RESHAPED = 4
    """A view of the value `at`, as are all that follow."""

    PERMUTED = 5
    """`numbers` are the axes."""

    SLICED = 6
    """`numbers` are registers of starts, then the steps."""

    EXPANDED = 7

    CONCAT_SLICE = 8
    """Written by a step, directly into the Concat output `at`."""

    UPDATED = 9
    """Written by a step over the input `at`: its next version."""

class ControlKind(enum.Enum):
    """A kind of control flow."""

    BRANCH = 0

    LOOP = 1

    SCAN = 2

class SegmentSpec:
    """A segment under construction."""

    def __init__(self, number: int, key: Sequence[int], effort: int, parallel_branches: bool, consumes_inputs: bool = False) -> None:
        """
        `key`: the named dims that decide all sizes; `effort`: of the execution order search.
        """

    def add_size(self, kind: SizeKind, a: int, b: int, value: int) -> None:
        """Add the next register."""

    def add_guard(self, kind: GuardKind, left: int, right: int) -> None: ...

    def add_value(self, storage: Storage, dtype: int, at: int, address: int, dims: Sequence[int], numbers: Sequence[int]) -> None:
        """Add the next value; `dims` are registers."""

    def add_step(self, kernel: str, inputs: Sequence[int], outputs: Sequence[int], ints: Sequence[int], floats: Sequence[float], in_place: Sequence[tuple[int, int]], permutation: Sequence[int], is_concat: bool) -> None:
        """Add the next step: a kernel on values (-1: an absent input)."""

    def add_resolved(self, step: int, output: int, axis: int, name: int) -> None:
        """Add a named dim that a step resolves."""

    def add_alias(self, slot: int, value: int) -> None:
        """Add a slot with the bytes of an exported value in another shape."""

    def add_growth(self, source: int, target: int, axis: int, rows: int, capacity_from: int, capacity_to: int, has_spare: bool) -> None:
        """
        Add a cache: an output that is an input with rows appended. `rows` is a register, the capacities are names; with `has_spare` new blocks reserve rows.
        """

    def hold_input(self, value: int) -> None:
        """Declare that the caller keeps an input, although inputs are consumed."""

class ControlSpec:
    """An If, Loop or Scan under construction."""

    def __init__(self, kind: ControlKind, number: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Inputs and outputs are slots; -1: none."""

    def add_body(self, program: ProgramSpec, captures: Sequence[int], known_names: Sequence[tuple[int, int]]) -> None:
        """
        Add a body, which consumes its program; `captures` are outer slots, `known_names` are (name outside, name inside).
        """

    def add_scan_output(self, dtype: int, dims: Sequence[int], axis: int, is_reversed: bool, is_concatenated: bool, needs_iterations: bool) -> None:
        """Add an output that combines the values of all iterations."""

    def add_scan_input(self, axis: int, is_reversed: bool) -> None:
        """Add an input of which each iteration gets a slice."""

class ProgramSpec:
    """Segments and control flow under construction."""

    def __init__(self, n_slots: int, n_names: int) -> None: ...

    def add_input(self, slot: int, rank: int, dtype: int, capacity_axis: int) -> None: ...

    def add_output(self, slot: int) -> None: ...

    def add_name(self, slot: int, axis: int, name: int) -> None:
        """Add a named dim whose size is that of an input's axis."""

    def add_size(self, slot: int, axis: int, size: int) -> None:
        """Add a size that an input's axis must have."""

    def add_constant(self, slot: int, dtype: int, dims: Sequence[int], address: int) -> None: ...

    def add_segment(self, spec: SegmentSpec, frees: Sequence[int]) -> None:
        """Consumes the segment."""

    def add_control(self, spec: ControlSpec, resolved_names: Sequence[tuple[int, int, int]], frees: Sequence[int]) -> None:
        """
        Consumes the control flow; `resolved_names` are the (slot, axis, name) whose sizes are known after it.
        """

class TensorExchange:
    """A class of tensors whose memory runs read and return directly."""

    def __init__(self, type: object) -> None: ...

class Stop:
    """A flag that any thread may raise to end runs."""

    def __init__(self) -> None: ...

    @property
    def raised(self) -> bool: ...

    @raised.setter
    def raised(self, arg: bool, /) -> None: ...

class Caching(enum.Enum):
    """What a block pool does with blocks that are released."""

    NONE = 0
    """It frees them."""

    BLOCKS = 1
    """It keeps them for requests of about their size."""

    PAGES = 2
    """It keeps their pages for requests of any size."""

class BlockPool:
    """Memory for arenas and outputs, cached between runs."""

    def __init__(self, caching: Caching) -> None: ...

    def release_cached(self) -> None:
        """Free all cached blocks now, and those in use when they are released."""

    @property
    def cached_bytes(self) -> int: ...

    @property
    def cached_blocks(self) -> int: ...

    @property
    def live_blocks(self) -> int: ...

def cached_bytes() -> int:
    """Bytes that all block pools of the process cache."""

class Fault(enum.Enum):
    """What ended a run early."""

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
        """The sizes of all named dims."""

    @property
    def bytes(self) -> int:
        """Requested bytes, for faults of memory."""

class RunResult:
    """The result of a run."""

    @property
    def outputs(self) -> list: ...

    @property
    def names(self) -> list[int]:
        """The sizes of all named dims."""

    @property
    def spans(self) -> list:
        """(segment, step, begin, end, run, chain), if the run was profiled."""

    @property
    def names_by_run(self) -> list[list[int]]:
        """The sizes of named dims, by `run`."""

class Runnable:
    """A compiled native program, ready to run."""

    def __init__(self, program: ProgramSpec, *, input_names: list, input_types: list, output_types: list, output_dtypes: Sequence[int], pool: BlockPool, threads: int, spins: bool, spin_us: int, flushes_denormals: bool, stops_spinning: bool, grows_in_place: bool, limit_bytes: int, keep_alive: object | None) -> None:
        """
        Consumes the program. `keep_alive` owns the constants whose addresses it has.
        """

    def run_fast(self, feed: dict) -> list | Outcome | None:
        """
        The outputs of a plain feed; None, before anything runs, if it needs the checked path.
        """

    def run_fast_into(self, feed: dict, arrays: list | None) -> list | Outcome | None:
        """
        The same with arrays for outputs: an array that was written into is returned itself.
        """

    def run_fast_tensors(self, feed: dict, exchange: TensorExchange) -> list | Outcome | None:
        """The same as `run_fast` with tensors as inputs and outputs."""

    def run(self, names: Sequence[int], inputs: list, stop: Stop | None, profiles: bool, arrays: list | None = None) -> RunResult | Outcome:
        """The outputs for validated values, or how the run failed."""

    def memory(self, names: Sequence[int]) -> list[dict]:
        """
        The memory plan of each segment for these sizes: lifetimes and offsets of all values.
        """

    def memory_of(self, number: int, names: Sequence[int]) -> dict | None:
        """
        The same for one segment, in a body or not; None if there is no such segment.
        """

max_threads: int = 256

def usable_cpus() -> int:
    """CPUs that the process may use, by affinity and cgroup."""

def flush_denormals(on: bool) -> bool:
    """
    Set whether this thread treats denormals as zero; returns whether it did before.
    """

def set_affinities(sets: Sequence[Sequence[int]]) -> None:
    """Bind the workers of the thread pool to CPUs."""

def has_capacity(object: object) -> bool:
    """Whether an object is an array with spare capacity that a run returned."""

def address(array: object) -> int:
    """The address of an array's bytes."""

def least_peak(sizes: Sequence[int], tasks: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]], int]], given: Sequence[int], effort: int = 0) -> list[int]:
    """
    The execution order of least peak memory that a search finds, never above that of `given`. A task is (preds, touches, (input, output) pairs in place, scratch bytes).
    """

def order_peak(sizes: Sequence[int], tasks: Sequence[tuple[Sequence[int], Sequence[int], Sequence[tuple[int, int]], int]], order: Sequence[int]) -> int:
    """The most bytes alive in any step of an order."""

def export_dlpack(address: int, dims: Sequence[int], code: int, bits: int, owner: object, is_versioned: bool, is_read_only: bool) -> object:
    """A DLPack capsule of a tensor over memory that `owner` keeps alive."""

def inspect_dlpack(capsule: object) -> tuple[int, list[int], list[int] | None, int, int, int, int, bool] | None:
    """
    Address, dims, strides (None: row-major), type code, bits, device type, device number and whether it is read-only, of the tensor in a DLPack capsule; None for other objects and consumed capsules. Raises ValueError for an inconsistent tensor.
    """

def consume_dlpack(capsule: object) -> object:
    """
    Take ownership of the tensor of a capsule: it lives as long as the returned object.
    """

def is_mapped(address: int, size_bytes: int) -> bool:
    """Whether all pages of an address range are mapped in this process."""

def next_random_stream() -> tuple[int, int]:
    """Draw the stream of a random node without a seed: its key and number."""

def random_stream() -> tuple[int, int]:
    """Return the stream that is drawn next."""

def set_random_stream(key: int, run: int) -> None:
    """Set the stream that is drawn next."""

def bernoulli(generator: object, p: float, out: object) -> None:
    """
    Fill an array of booleans as `bernoulli_(p)` of torch does where it draws element by element; `generator` is a torch.Generator on the CPU.
    """

class MemoryDigest:
    """A digest of spans of memory that others write to."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        """Spans are (address, bytes); the caller keeps the memory alive."""

    def compute(self, threads: int) -> int:
        """Return a digest of all bytes, the same for any number of threads."""

    @property
    def watched_bytes(self) -> int:
        """How many bytes are watched for writes instead of being read."""
