"""Recurrent layers in torch."""
