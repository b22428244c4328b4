"""Settings that all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sardonyx import ops
from sardonyx.base.name_index import is_stale
from sardonyx.errors import InternalError
from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load import upgrade
from sardonyx.passes import pipeline
from tests import missing, remote
from tools import make_index

# As in an installed package: start-up imports no more than a model needs.
if is_stale(ops.FOLDER) or is_stale(upgrade.FOLDER):
    make_index.write(make_index.SOURCE / "sardonyx")

# As on a machine without these modules, by their names with commas between them.
for _name in filter(None, os.environ.get("SARDONYX_WITHOUT", "").split(",")):
    sys.modules[_name] = None  # type: ignore[assignment]  # which makes an import fail

# Before any test module is imported: they look at the ISAs then.
if "SARDONYX_RUNNER" in os.environ:
    remote.use(os.environ["SARDONYX_RUNNER"])

# Tests compile what they test: graphs of another run may have been lowered by replaced functions.
os.environ.setdefault("SARDONYX_GRAPH_CACHE", "0")

# The same examples on every run: a failure seen once can be seen again. No deadline: machines under
# load are slow, not wrong.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    made: pytest.Module = missing.Module.from_parent(parent, path=module_path)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skips a test that fails for want of an optional package."""
    try:
        yield
    except Exception as error:
        why = missing.reason(error)
        if why is None:
            raise
        pytest.skip(why)


@pytest.fixture(autouse=True, scope="session")
def no_cache_of_the_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The verification cache of packs is in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("account")))
        yield


@pytest.fixture(autouse=True, scope="session")
def verified_passes() -> Iterator[None]:
    """In every test, the graph keeps its invariants after every pass."""
    run_pass = pipeline.run_pass

    def checked(each: pipeline.Pass, graph: Graph, *args: Any) -> Mapping[str, int]:
        fired = run_pass(each, graph, *args)
        try:
            verify(graph)
        except InternalError as error:
            raise InternalError(error.what, **error.where, passed=each.name) from error
        return fired

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "run_pass", checked)
        yield
