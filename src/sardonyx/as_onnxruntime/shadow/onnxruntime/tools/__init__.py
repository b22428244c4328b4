"""Tools over models, implemented by `sardonyx.tools`."""
