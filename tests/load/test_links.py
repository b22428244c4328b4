"""Models behind symlinks: where external data may be, and where packs are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from sardonyx import errors
from tests.pack.packs import packed, uses_pack
from tests.weights.models import ROWS, external, lookup, settle

FEEDS = {"i": np.array([0, 2])}


def folders(root: Path, *names: str) -> list[Path]:
    made = [root / name for name in names]
    for folder in made:
        folder.mkdir(parents=True)
    return made


def write(path: Path, location: str = "w.data") -> Path:
    path.write_bytes(lookup(external("t", ROWS, location)).SerializeToString())
    return path


def linked_folder(root: Path) -> Path:
    (real,) = folders(root, "real")
    write(real / "m.onnx")
    (real / "w.data").write_bytes(ROWS.tobytes())
    (root / "link").symlink_to(real)
    return root / "link" / "m.onnx"


def both_linked(root: Path) -> Path:
    """As the cache of Hugging Face has them."""
    blobs, snapshot = folders(root, "blobs", "snapshots/abc/onnx")
    write(blobs / "11")
    (blobs / "22").write_bytes(ROWS.tobytes())
    (snapshot / "m.onnx").symlink_to("../../../blobs/11")
    (snapshot / "w.data").symlink_to("../../../blobs/22")
    return snapshot / "m.onnx"


def link_to_a_link(root: Path) -> Path:
    path = both_linked(root)
    (there,) = folders(root, "there")
    (there / "m.onnx").symlink_to(path)
    (there / "w.data").symlink_to(path.parent / "w.data")
    return there / "m.onnx"


def link_with_data_beside_it(root: Path) -> Path:
    there, here = folders(root, "there", "here")
    (here / "m.onnx").symlink_to(write(there / "m.onnx"))
    (here / "w.data").write_bytes(ROWS.tobytes())
    return here / "m.onnx"


def below_the_target(root: Path) -> Path:
    """The file that a name resolves to counts, not the links on the way."""
    there, here, _ = folders(root, "there", "here", "there/below")
    (there / "below" / "w.data").write_bytes(ROWS.tobytes())
    (here / "m.onnx").symlink_to(write(there / "m.onnx", "../there/below/w.data"))
    return here / "m.onnx"


def data_linked_below(root: Path) -> Path:
    below, _ = folders(root, "here/below", "here/real")
    (root / "here" / "real" / "w.data").write_bytes(ROWS.tobytes())
    (below / "w.data").symlink_to("../real/w.data")
    return write(root / "here" / "m.onnx", "below/w.data")


FOLLOWED = (
    linked_folder,
    both_linked,
    link_to_a_link,
    link_with_data_beside_it,
    below_the_target,
    data_linked_below,
)


@pytest.mark.parametrize("layout", FOLLOWED)
def test_symlinks_are_followed(layout: Callable[[Path], Path], tmp_path: Path) -> None:
    path = layout(tmp_path)
    want = sardonyx.InferenceSession(path).run(None, FEEDS)[0]
    np.testing.assert_array_equal(want, ROWS[FEEDS["i"]])
    settle()
    packed(str(path))
    assert Path(f"{path}.pack").is_file()  # beside the path that was given
    session = sardonyx.InferenceSession(path)
    assert uses_pack(session)
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], want)


def data_elsewhere(root: Path) -> Path:
    here, _ = folders(root, "here", "elsewhere")
    (root / "elsewhere" / "w.data").write_bytes(ROWS.tobytes())
    (here / "w.data").symlink_to(root / "elsewhere" / "w.data")
    return write(here / "m.onnx")


def folder_of_data_elsewhere(root: Path) -> Path:
    here, there = folders(root, "here", "elsewhere")
    (there / "w.data").write_bytes(ROWS.tobytes())
    (here / "below").symlink_to(there)
    return write(here / "m.onnx", "below/w.data")


def both_linked_apart(root: Path) -> Path:
    """The model is a link, but the data is in a folder of neither the link nor its target."""
    here, models, data = folders(root, "here", "models", "data")
    (data / "w.data").write_bytes(ROWS.tobytes())
    (here / "m.onnx").symlink_to(write(models / "m.onnx"))
    (here / "w.data").symlink_to(data / "w.data")
    return here / "m.onnx"


def name_begins_alike(root: Path) -> Path:
    here, there = folders(root, "here", "here-too")
    (there / "w.data").write_bytes(ROWS.tobytes())
    return write(here / "m.onnx", "../here-too/w.data")


@pytest.mark.parametrize(
    "layout", [data_elsewhere, folder_of_data_elsewhere, both_linked_apart, name_begins_alike]
)
def test_symlinks_out_of_the_folder_are_refused(
    layout: Callable[[Path], Path], tmp_path: Path
) -> None:
    with pytest.raises(errors.InvalidGraph, match="leads out of the model's folder"):
        sardonyx.InferenceSession(layout(tmp_path))


def test_names_are_looked_up_beside_the_link(tmp_path: Path) -> None:
    """Data beside the target alone are not found, as onnxruntime does not find them."""
    there, here = folders(tmp_path, "there", "here")
    (there / "w.data").write_bytes(ROWS.tobytes())
    (here / "m.onnx").symlink_to(write(there / "m.onnx"))
    with pytest.raises(errors.NoSuchFile, match=r"there is no file .*here/w.data"):
        sardonyx.InferenceSession(here / "m.onnx")


def test_the_pack_of_a_link_lies_beside_the_link(tmp_path: Path) -> None:
    path = both_linked(tmp_path)
    settle()
    target = path.resolve()
    packed(str(path), f"{target}.pack")
    assert not uses_pack(sardonyx.InferenceSession(path))
    Path(f"{path}.pack").symlink_to(f"{target}.pack")  # a pack may be a link, to anywhere
    assert uses_pack(sardonyx.InferenceSession(path))


def test_a_link_to_other_weights_has_no_use_for_the_pack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new revision in a cache: the names stay, and lead to other files."""
    path = both_linked(tmp_path)
    settle()
    packed(str(path))
    other = ROWS.copy()
    other[2, 1] += 1
    (tmp_path / "blobs" / "33").write_bytes(other.tobytes())
    (path.parent / "w.data").unlink()
    (path.parent / "w.data").symlink_to("../../../blobs/33")
    session = sardonyx.InferenceSession(path)
    assert not uses_pack(session)
    assert "has other weights" in caplog.text
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], other[FEEDS["i"]])
