# /// script
# dependencies = ["rapid-layout==1.2.1"]
# ///
"""rapid-layout: titles, texts and tables of a page."""

import numpy as np
from pictures import page, table
from PIL import Image
from rapid_layout import RapidLayout


def make():
    return RapidLayout(conf_thresh=0.2)


def use(layout):
    sheet = Image.new("RGB", (900, 1200), "white")
    sheet.paste(page("A Title of the Page", size=48), (120, 40))
    sheet.paste(page(*["words of a paragraph that fill the line"] * 8, size=24), (120, 180))
    sheet.paste(table([["name", "price"], ["apple", "12"], ["pear", "9"]]), (150, 640))
    found = layout(np.asarray(sheet)[:, :, ::-1].copy())
    return {"boxes": found.boxes, "names": found.class_names, "scores": found.scores}
