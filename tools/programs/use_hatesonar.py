# /// script
# dependencies = ["hatesonar==0.1.0", "google-re2"]
# ///
"""hatesonar: whether a text insults."""

from hatesonar import Sonar

TEXTS = ("I love this sunny day", "you are a stupid idiot", "go back, you trash", "nice work", "")


def make():
    return Sonar()


def use(sonar):
    return [sonar.ping(text=text) for text in TEXTS]
