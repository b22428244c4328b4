"""Guards: what inference needs and cannot prove, checked as dims are bound, before a node runs."""

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
    """Sizes that were taken as equal are not, which is legal: compile again without assuming it."""


class ChoiceFailed(AssumptionFailed):
    """Sizes take another branch than the one a program was made for: compile again for them."""


# A loop's body is inferred until its carried shapes settle, so loops in loops multiply the work.
MAX_IN_BODIES: Final = 500_000


@frozen
class Guard:
    """A condition on two sizes, the sentence to say when it fails, and the node that needs it."""

    kind: str  # a key of KINDS
    left: Size
    right: Size
    what: str
    node: Node | str | None  # a node, or what one that is gone was called

    def holds(self, dims: Mapping[str, int]) -> bool:
        """Whether the condition holds for these dims."""
        return KINDS[self.kind].holds(evaluate(self.left, dims), evaluate(self.right, dims))

    def check(self, dims: Mapping[str, int]) -> None:
        """Raises the error that the guard stands for, if it does not hold."""
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
        """Whether sizes may break it legally: then another program is made for them."""
        return self.kind in ("assumed", "assumed_at_least", "chosen")

    @property
    def needs(self) -> str:
        """The condition as people write it."""
        return KINDS[self.kind].needs.format(self.left, self.right)

    @property
    def symbols(self) -> frozenset[str]:
        """The names whose values decide the guard."""
        return symbols(self.left) | symbols(self.right)


@frozen
class Kind:
    """A kind of condition: when it holds, how people write it, and what is said when it fails."""

    holds: Callable[[int, int], bool]
    needs: str
    fails: str


# The assumed kinds hold for nearly all sizes and need not, chosen ones for those that a program is
# made for: see `Guard.check`.
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
    """What a graph and its bodies assume of sizes that the model's inputs give.

    It is checked before anything runs: a run that breaks an assumption begins anew with another
    program, and no step may have run by then. Quotients are left to the body, which may run only
    where they have a divisor.
    """
    for guard in (g for each in graph.family() for g in each.scope.found):
        if guard.is_assumed and is_polynomial(guard.left) and is_polynomial(guard.right):
            yield guard


class Scope:
    """One graph under inference: collects its nodes' guards, hands out new dims, infers bodies."""

    __slots__ = (
        "_guess", "_n_fresh", "_spent", "assumes", "carried", "choices", "entry", "found",
        "loose", "node", "parted", "sizes",
    )  # fmt: skip

    def __init__(
        self,
        parent: Scope | None = None,
        assumes: bool = True,
        sizes: Mapping[str, int | None] | None = None,
        guess: bool = True,
    ) -> None:
        """With `assumes`, open sizes that must broadcast are taken as equal, under a guard.

        With `sizes`, of all names that the model's inputs give, conditions on them are decided
        where ranks rest on them, under a guard: as these sizes say, or `guess` where one is None.
        """
        self.assumes: bool = assumes if parent is None else parent.assumes
        self.sizes: Mapping[str, int | None] | None = sizes if parent is None else parent.sizes
        self._guess: bool = guess if parent is None else parent._guess
        self.choices: dict[Size, bool] = {} if parent is None else parent.choices
        # Nodes whose branches differ in rank, as nobody decided between them.
        self.parted: dict[Node, None] = {} if parent is None else parent.parted
        # What the values that loops carry were found to be, by body.
        self.carried: dict[Graph, list[AnyFact]] = {} if parent is None else parent.carried
        # Outputs of control flow, by node and position, that are now a scalar, now a vector; None:
        # they are not taken for vectors.
        self.loose: dict[tuple[Node, int], None] | None = None if parent is None else parent.loose
        self.entry: set[str] = set() if parent is None else set(parent.entry)  # names inputs give
        self.found: list[Guard] = []
        self.node: Node | None = None  # the node being inferred
        self._n_fresh: list[int] = [0] if parent is None else parent._n_fresh
        self._spent: list[int] = [0] if parent is None else parent._spent

    @property
    def n_outputs(self) -> int:
        """How many outputs the node under inference names."""
        return 1 if self.node is None else len(self.node.outputs)

    def fresh(self, hint: str = "d") -> Dim:
        """A new dimension whose value is known only once the node has run."""
        self._n_fresh[0] += 1
        return Dim({(Atom("name", f"{hint}#{self._n_fresh[0] - 1}"),): 1})

    @property
    def has_fresh(self) -> bool:
        """Whether any dimension is known only once a node has run."""
        return self._n_fresh[0] > 0

    def body(self, graph: Graph, inputs: Sequence[AnyFact]) -> list[AnyFact]:
        """The facts of a body's outputs, given those of its inputs."""
        from sardonyx.graph.infer import infer_body  # inference and guards need each other

        self._spent[0] += len(graph.nodes)
        if self._spent[0] > MAX_IN_BODIES:
            raise ShapeError(
                f"bodies nest too deep: their shapes are not settled after {MAX_IN_BODIES} nodes"
            )
        return infer_body(self, graph, inputs)

    def equal(self, a: Size, b: Size, what: str) -> Size:
        """Needs a == b; returns the more precise of the two."""
        if a is b or a == b:
            return a
        if same(a, b) is False:
            raise ShapeError(f"{what}: {a} and {b}")
        self.found.append(Guard("equal", a, b, what, self.node))
        return a if isinstance(a, int) else b

    def equal_or_one(self, a: Size, b: Size, what: str) -> None:
        """Needs a == b or a == 1."""
        if a == 1 or a == b:
            return
        if same(a, b) is False and same(a, 1) is False:
            raise ShapeError(f"{what}: {a} is neither 1 nor {b}")
        self.found.append(Guard("equal_or_one", a, b, what, self.node))

    def divides(self, a: Size, b: Size, what: str) -> None:
        """Needs b to be a multiple of a."""
        if a == 0 or (isinstance(a, int) and isinstance(b, int) and b % a):
            raise ShapeError(f"{what}: {a} does not divide {b}")
        if modulo(b, a) == 0:
            return
        self.found.append(Guard("divides", a, b, what, self.node))

    def at_least(self, a: Size, b: Size, what: str) -> None:
        """Needs a >= b."""
        gap = a - b
        if least(gap) >= 0:
            return
        if least(gap * -1) > 0:
            raise ShapeError(f"{what}: {a} is less than {b}")
        self.found.append(Guard("at_least", a, b, what, self.node))

    def assume_at_least(self, a: Size, b: Size) -> bool:
        """Takes a >= b for granted, under a guard, if that may be; else the op must do without."""
        if least(a - b) >= 0:
            return True
        if not self._may_assume(a, b):
            return False
        self.found.append(Guard("assumed_at_least", a, b, "a size is small", self.node))
        return True

    def choose(self, truth: Size) -> bool | None:
        """Whether a condition on sizes holds in runs of this program; None if that stays open."""
        if isinstance(truth, int):
            return bool(truth)
        if self.sizes is None or not symbols(truth) <= self.sizes.keys():
            return None
        taken = self.chosen(truth)
        if taken is None:
            known = {n: s for n in symbols(truth) if (s := self.sizes[n]) is not None}
            answer = substitute(truth, known)
            taken = bool(answer) if isinstance(answer, int) else self._guess
            self.choices[truth] = taken
        what = "an If takes its other branch for these sizes"
        self.found.append(Guard("chosen", truth, int(taken), what, self.node))
        return taken

    def loosens(self, position: int) -> bool:
        """Notes a number whose rank depends on data; whether it may be taken for a vector of one.

        `passes/rank_unification.py` makes it one, unless an output reveals the rank.
        """
        if self.loose is None or self.node is None:
            return False
        self.loose[self.node, position] = None
        return True

    def chosen(self, truth: Size) -> bool | None:
        """What was chosen for a condition or its opposite, if anything was."""
        opposite = self.choices.get(1 - truth)
        return self.choices.get(truth) if opposite is None else not opposite

    def _may_assume(self, a: Size, b: Size) -> bool:
        """Whether a condition on these sizes can be checked before anything runs."""
        return self.assumes and symbols(a) | symbols(b) <= self.entry

    def broadcast(self, a: Size, b: Size, what: str = "shapes do not broadcast") -> Size:
        """The size of a and b broadcast against each other."""
        if a is b or a == b:
            return a
        if a == 1:
            return b
        if b == 1:
            return a
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(f"{what}: {a} and {b}")
        if isinstance(a, int):
            self.equal_or_one(b, a, what)
            return a
        if isinstance(b, int):
            self.equal_or_one(a, b, what)
            return b
        if self._may_assume(a, b):
            self.found.append(Guard("assumed", a, b, what, self.node))
            return min(a, b, key=lambda size: (len(size.terms), len(str(size))))
        self.found.append(Guard("broadcasts", a, b, what, self.node))
        return broadcast(a, b)
