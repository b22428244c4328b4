"""Guards: conditions on sizes that inference cannot prove, checked when dims are bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.graph.dim import (
    Atom,
    Dim,
    Size,
    broadcast,
    evaluate,
    is_polynomial,
    least,
    modulo,
    same,
    substitute,
    symbols,
)

if TYPE_CHECKING:
    from sardonyx.graph.fact import AnyFact
    from sardonyx.graph.graph import Graph, Node


class AssumptionFailed(Exception):
    """An assumption about sizes does not hold, which is legal: compile again without it."""


class ChoiceFailed(AssumptionFailed):
    """Sizes select another branch than the one that was compiled: compile again for them."""


# Nodes of bodies that one inference may visit. A loop's body is inferred until its carried shapes
# reach a fixed point, so nested loops multiply the work.
MAX_IN_BODIES: Final = 500_000


@frozen
class Guard:
    """A condition on two sizes, its error message, and the node that needs it."""

    kind: str  # a key of KINDS
    left: Size
    right: Size
    what: str
    node: Node | str | None  # a node, or the name of a removed one

    def holds(self, dims: Mapping[str, int]) -> bool:
        """Return whether the condition holds for these dims."""
        return KINDS[self.kind].holds(evaluate(self.left, dims), evaluate(self.right, dims))

    def check(self, dims: Mapping[str, int]) -> None:
        """Raise the error of the guard if it does not hold."""
        if self.holds(dims):
            return
        left, right = evaluate(self.left, dims), evaluate(self.right, dims)
        if self.kind == "chosen":
            raise ChoiceFailed(self.what)
        if self.kind == "assumed_at_least" or (self.kind == "assumed" and 1 in (left, right)):
            raise AssumptionFailed(f"{self.left} and {self.right} differ in size")
        bound = ", ".join(f"{n}={dims[n]}" for n in sorted(self.symbols) if n in dims)
        raise InvalidArgument(
            f"{self.what}: {KINDS[self.kind].fails.format(left, right)}",
            node=self.node or "the graph",
            sizes=f"{self.left} and {self.right}" + (f" with {bound}" if bound else ""),
        )

    @property
    def is_assumed(self) -> bool:
        """Whether sizes may violate it legally: another program is compiled for them."""
        return self.kind in ("assumed", "assumed_at_least", "chosen")

    @property
    def needs(self) -> str:
        """The condition as text."""
        return KINDS[self.kind].needs.format(self.left, self.right)

    @property
    def symbols(self) -> frozenset[str]:
        """The names in the condition."""
        return symbols(self.left) | symbols(self.right)


@frozen
class Kind:
    """A kind of condition: its predicate, its text, and the text of a failure."""

    holds: Callable[[int, int], bool]
    needs: str
    fails: str


# "assumed" kinds hold for nearly all sizes, "chosen" for those that a program is compiled for:
# see `Guard.check`.
KINDS: Final = {
    "equal": Kind(lambda a, b: a == b, "{} = {}", "{} and {}"),
    "assumed": Kind(lambda a, b: a == b, "{} and {} broadcast", "{} and {}"),
    "chosen": Kind(lambda a, b: a == b, "{} is {}", "{} and not {}"),
    "equal_or_one": Kind(lambda a, b: a in (1, b), "{} is 1 or {}", "{} is neither 1 nor {}"),
    "broadcasts": Kind(lambda a, b: a == b or a == 1 or b == 1, "{} and {} broadcast", "{} and {}"),
    "divides": Kind(lambda a, b: a != 0 and b % a == 0, "{} divides {}", "{} does not divide {}"),
    "at_least": Kind(lambda a, b: a >= b, "{} >= {}", "{} is less than {}"),
    "assumed_at_least": Kind(lambda a, b: a >= b, "{} >= {}", "{} is less than {}"),
}


def assumptions(graph: Graph) -> Iterator[Guard]:
    """Yield the assumptions of a graph and its bodies about the sizes of the model's inputs.

    They are checked before a run starts: a run that violates one is restarted with another program,
    so no step may have side effects by then. Conditions with divisions are checked by the body that
    needs them, which may run only where the divisor is not 0.
    """
    for guard in (g for each in graph.family() for g in each.scope.guards):
        if guard.is_assumed and is_polynomial(guard.left) and is_polynomial(guard.right):
            yield guard


class Scope:
    """The state of one graph's inference: its guards, new dims, and inference of bodies."""

    __slots__ = (
        "_guess", "_n_new_dims", "_spent", "ambiguous_ranks", "assumes", "carried", "choices",
        "entry", "guards", "node", "sizes", "undecided_ifs",
    )  # fmt: skip

    def __init__(
        self,
        parent: Scope | None = None,
        assumes: bool = True,
        sizes: Mapping[str, int | None] | None = None,
        guess: bool = True,
    ) -> None:
        """With `assumes`, symbolic sizes that must broadcast are assumed equal, under a guard.

        With `sizes` (of all names in the model's inputs), conditions on them that determine ranks
        are decided, under a guard: for these sizes, or as `guess` where a size is None.
        """
        self.assumes: bool = assumes if parent is None else parent.assumes
        self.sizes: Mapping[str, int | None] | None = sizes if parent is None else parent.sizes
        self._guess: bool = guess if parent is None else parent._guess
        self.choices: dict[Size, bool] = {} if parent is None else parent.choices
        # If nodes with branches of different ranks whose condition stayed undecided.
        self.undecided_ifs: dict[Node, None] = {} if parent is None else parent.undecided_ifs
        # Facts of the values that loops carry, by body.
        self.carried: dict[Graph, list[AnyFact]] = {} if parent is None else parent.carried
        # Outputs of control flow, by node and position, that are scalars or vectors of one element
        # depending on data; None: they are not treated as vectors.
        self.ambiguous_ranks: dict[tuple[Node, int], None] | None = (
            None if parent is None else parent.ambiguous_ranks
        )
        self.entry: set[str] = set() if parent is None else set(parent.entry)  # names in the inputs
        self.guards: list[Guard] = []
        self.node: Node | None = None  # the node being inferred
        self._n_new_dims: list[int] = [0] if parent is None else parent._n_new_dims
        self._spent: list[int] = [0] if parent is None else parent._spent

    @property
    def n_outputs(self) -> int:
        """The number of outputs of the node under inference."""
        return 1 if self.node is None else len(self.node.outputs)

    def new_dim(self, hint: str = "d") -> Dim:
        """Return a new dimension whose value is known once the node has run."""
        self._n_new_dims[0] += 1
        return Dim({(Atom("name", f"{hint}#{self._n_new_dims[0] - 1}"),): 1})

    @property
    def has_new_dims(self) -> bool:
        """Whether any dimension is known only once a node has run."""
        return self._n_new_dims[0] > 0

    def body(self, graph: Graph, inputs: Sequence[AnyFact]) -> list[AnyFact]:
        """Return the facts of a body's outputs from those of its inputs."""
        from sardonyx.graph.infer import infer_body  # inference and guards need each other

        self._spent[0] += len(graph.nodes)
        if self._spent[0] > MAX_IN_BODIES:
            raise ShapeError(
                f"bodies nest too deep: their shapes are not settled after {MAX_IN_BODIES} nodes"
            )
        return infer_body(self, graph, inputs)

    def equal(self, a: Size, b: Size, what: str) -> Size:
        """Require a == b; return the more precise of the two."""
        if a is b or a == b:
            return a
        if same(a, b) is False:
            raise ShapeError(f"{what}: {a} and {b}")
        self.guards.append(Guard("equal", a, b, what, self.node))
        return a if isinstance(a, int) else b

    def equal_or_one(self, a: Size, b: Size, what: str) -> None:
        """Require a == b or a == 1."""
        if a == 1 or a == b:
            return
        if same(a, b) is False and same(a, 1) is False:
            raise ShapeError(f"{what}: {a} is neither 1 nor {b}")
        self.guards.append(Guard("equal_or_one", a, b, what, self.node))

    def divides(self, a: Size, b: Size, what: str) -> None:
        """Require b to be a multiple of a."""
        if a == 0 or (isinstance(a, int) and isinstance(b, int) and b % a):
            raise ShapeError(f"{what}: {a} does not divide {b}")
        if modulo(b, a) == 0:
            return
        self.guards.append(Guard("divides", a, b, what, self.node))

    def at_least(self, a: Size, b: Size, what: str) -> None:
        """Require a >= b."""
        gap = a - b
        if least(gap) >= 0:
            return
        if least(gap * -1) > 0:
            raise ShapeError(f"{what}: {a} is less than {b}")
        self.guards.append(Guard("at_least", a, b, what, self.node))

    def assume_at_least(self, a: Size, b: Size) -> bool:
        """Assume a >= b under a guard; return False if it can neither be proven nor assumed."""
        if least(a - b) >= 0:
            return True
        if not self._may_assume(a, b):
            return False
        self.guards.append(Guard("assumed_at_least", a, b, "a size is small", self.node))
        return True

    def choose(self, condition: Size) -> bool | None:
        """Decide a condition on sizes for this program, under a guard; None if undecided."""
        if isinstance(condition, int):
            return bool(condition)
        if self.sizes is None or not symbols(condition) <= self.sizes.keys():
            return None
        choice = self.chosen(condition)
        if choice is None:
            sizes = {n: s for n in symbols(condition) if (s := self.sizes[n]) is not None}
            answer = substitute(condition, sizes)
            choice = bool(answer) if isinstance(answer, int) else self._guess
            self.choices[condition] = choice
        what = "an If takes its other branch for these sizes"
        self.guards.append(Guard("chosen", condition, int(choice), what, self.node))
        return choice

    def assume_vector(self, position: int) -> bool:
        """Record an output whose rank, 0 or 1, depends on data; return whether to infer a vector.

        `passes/rank_unification.py` makes it a vector, unless an output of the model exposes it.
        """
        if self.ambiguous_ranks is None or self.node is None:
            return False
        self.ambiguous_ranks[self.node, position] = None
        return True

    def chosen(self, condition: Size) -> bool | None:
        """Return the earlier choice for a condition or its negation, if any."""
        opposite = self.choices.get(1 - condition)
        return self.choices.get(condition) if opposite is None else not opposite

    def _may_assume(self, a: Size, b: Size) -> bool:
        """Return whether a condition on these sizes can be checked before a run starts."""
        return self.assumes and symbols(a) | symbols(b) <= self.entry

    def broadcast(self, a: Size, b: Size, what: str = "shapes do not broadcast") -> Size:
        """Return the broadcast of two sizes, under a guard where it cannot be proven."""
        if a is b or a == b:
            return a
        if a == 1 or b == 1:
            return b if a == 1 else a
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(f"{what}: {a} and {b}")
        if isinstance(a, int):
            self.equal_or_one(b, a, what)
            return a
        if isinstance(b, int):
            self.equal_or_one(a, b, what)
            return b
        if self._may_assume(a, b):
            self.guards.append(Guard("assumed", a, b, what, self.node))
            return min(a, b, key=lambda size: (len(size.terms), len(str(size))))
        self.guards.append(Guard("broadcasts", a, b, what, self.node))
        return broadcast(a, b)
