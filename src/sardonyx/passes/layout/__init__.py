"""NHWC (channels-last) layout: `propagate` chooses the layout of values, `rules` rewrites ops."""
