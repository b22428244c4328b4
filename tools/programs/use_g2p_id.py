# /// script
# dependencies = ["g2p-id==0.0.4"]
# ///
"""g2p-id: how the e of Indonesian words is said."""

from g2p_id import G2P


def make():
    return G2P()


def use(g2p):
    return [g2p(text) for text in ("mengembangkan perangkat", "Sardoneks berdendeng kemerlep")]
