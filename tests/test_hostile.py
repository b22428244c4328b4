"""Hostile models: whatever bytes are given, there is a session or an error of ours, in bounded time and memory."""

from __future__ import annotations

import math
import resource
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.graph.fact import Fact, MapFact, OptionalFact, SequenceFact
from tests.mutate import array, change_bytes, change_model
from tests.seeds import WEIGHT_BYTES, WEIGHTS, seeds
