"""Attention: dot products, with modifiers of the user, linear recurrences, rotary positions."""

from __future__ import annotations

from typing import Final

from sardonyx.ops.attention.dot import attention
from sardonyx.ops.attention.flex import flex
from sardonyx.ops.attention.linear import linear
from sardonyx.ops.attention.rotary import rotary

OPS: Final = (attention, rotary, linear, flex)
