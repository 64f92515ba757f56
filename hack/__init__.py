"""Tools for building and trying kubemend; nothing in the product imports them."""
