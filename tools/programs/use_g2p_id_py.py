# /// script
# dependencies = ["g2p-id-py==0.4.2"]
# ///
"""g2p-id-py: how Indonesian words are said."""

import nltk

nltk.download = lambda *names, **options: True  # it asks for a corpus that this does not need

from g2p_id import BERT, LSTM, G2p  # noqa: E402

TEXT = "Apel itu berwarna merah, mengembangkan perangkat lunak e-mail memperbesarkan."
WORDS = ("mengembangkannya", "kesejahteraan", "bersepeda", "memperlebar", "pertanggungjawaban")


def make():
    return G2p(), BERT(), LSTM()


def use(made):
    speak, bert, lstm = made
    return [speak(TEXT), [bert.predict(word) for word in WORDS], [lstm.predict(w) for w in WORDS]]
