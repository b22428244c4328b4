"""Recurrent layers and cells."""

from __future__ import annotations

import torch
from torch import nn

from tests.dynamo.modules.case import case, f32, value

SEQUENCE, BATCH_FIRST = f32(5, 3, 4), f32(3, 5, 4)
STATE, STATES = f32(1, 3, 6), f32(4, 3, 6)


class Packed(nn.Module):
    """An LSTM over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Decoder(nn.Module):
    """A cell in a loop, whose output is its next input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, outputs = None, []
        for _ in range(3):
            hidden = self.cell(x, hidden)
            x = torch.tanh(self.head(hidden))
            outputs.append(x)
        return torch.stack(outputs, 1)


CASES = {
    "LSTM": case(lambda: nn.LSTM(4, 6), SEQUENCE),
    "LSTM with states": case(lambda: nn.LSTM(4, 6), SEQUENCE, lambda: (STATE(), STATE())),
    "LSTM of two layers": case(
        lambda: nn.LSTM(4, 6, 2, batch_first=True, dropout=0.2), BATCH_FIRST
    ),
    "LSTM in both directions": case(lambda: nn.LSTM(4, 6, 2, bidirectional=True), SEQUENCE),
    "LSTM with a projection": case(lambda: nn.LSTM(4, 6, proj_size=3), SEQUENCE),
    "LSTM with projections in both directions": case(
        lambda: nn.LSTM(4, 6, 2, proj_size=3, bidirectional=True, bias=False), SEQUENCE
    ),
    "LSTM without batch": case(lambda: nn.LSTM(4, 6), f32(5, 4)),
    "LSTM of packed sequences": case(
        Packed,
        BATCH_FIRST,
        value(torch.tensor([5, 3, 2])),
        uncaptured="torch packs by lengths that are data",
    ),
    "GRU": case(lambda: nn.GRU(4, 6), SEQUENCE),
    "GRU with states": case(lambda: nn.GRU(4, 6, 2, bidirectional=True), SEQUENCE, STATES),
    "GRU without bias": case(lambda: nn.GRU(4, 6, bias=False, batch_first=True), BATCH_FIRST),
    "RNN": case(lambda: nn.RNN(4, 6), SEQUENCE),
    "RNN of relu": case(lambda: nn.RNN(4, 6, 2, nonlinearity="relu", dropout=0.3), SEQUENCE),
    "RNN in both directions": case(lambda: nn.RNN(4, 6, bidirectional=True), SEQUENCE),
    "LSTM cell": case(lambda: nn.LSTMCell(4, 6), f32(3, 4), lambda: (f32(3, 6)(), f32(3, 6)())),
    "GRU cell": case(lambda: nn.GRUCell(4, 6), f32(3, 4)),
    "RNN cell": case(lambda: nn.RNNCell(4, 6, nonlinearity="relu"), f32(3, 4), f32(3, 6)),
    "a cell in a loop": case(Decoder, f32(3, 4)),
}
