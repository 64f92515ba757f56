"""Tools for building and testing kubemend; the product imports none of them."""
