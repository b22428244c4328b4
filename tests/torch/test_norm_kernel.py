"""The kernel of normalizations, in Triton's interpreter, against torch."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels run on the CPU with TRITON_INTERPRET=1", allow_module_level=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [((3,), 7), ((2, 3), 64), ((0,), 5), ((1,), 1)])
@pytest.mark.parametrize("is_rms", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_norm(
    dtype: torch.dtype, rows: tuple[int, ...], columns: int, is_rms: bool, adds: bool
) -> None:
    from sardonyx.providers.torch.kernels.norm import normed
    from tests.torch import interpreted  # noqa: F401 - mends the interpreter

    draw = torch.Generator().manual_seed(1)
    x, skip = (torch.randn((*rows, columns), generator=draw).to(dtype) for _ in range(2))
    gain, shift, bias = (torch.randn(columns, generator=draw).to(dtype) for _ in range(3))
    rest = {"skip": skip, "bias": bias} if adds else {}
    y, mean, inverse, total = normed(
        x, gain, None if is_rms else shift, 1e-5, is_rms=is_rms, **rest
    )
    summed = x.float() + skip.float() + bias.float() if adds else x.float()
    centre = torch.zeros((*rows, 1)) if is_rms else summed.mean(-1, keepdim=True)
    spread = torch.rsqrt((summed - centre).square().mean(-1, keepdim=True) + 1e-5)
    wanted = (summed - centre) * spread * gain.float() + (0 if is_rms else shift.float())
    near = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y, wanted.to(dtype), rtol=near, atol=near)
    torch.testing.assert_close(inverse, spread)
    torch.testing.assert_close(mean, centre, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(total, summed.to(dtype), rtol=near, atol=near)
