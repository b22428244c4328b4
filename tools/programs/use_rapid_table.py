# /// script
# dependencies = ["rapid-table==0.3.0", "rapidocr==3.10.0"]
# ///
"""rapid-table: a picture of a table as HTML."""

import numpy as np
from pictures import table
from rapid_table import RapidTable
from rapidocr import RapidOCR

ROWS = [["name", "price", "count"], ["apple", "12.50", "3"], ["pear", "9.25", "17"]]


def make():
    return RapidTable(), RapidOCR()


def use(made):
    tables, reader = made
    picture = np.asarray(table(ROWS))[:, :, ::-1].copy()
    read = reader(picture)
    lines = [list(line) for line in zip(read.boxes.tolist(), read.txts, read.scores, strict=True)]
    html, cells, places, _ = tables(picture, lines, return_logic_points=True)
    return {"html": html, "cells": cells, "places": places}
