"""Grammars of kernel messages, one module each. They take the kernel's words and give facts, or None for no match.

A grammar matches from the first character: a message that merely quotes another one is no finding.
"""
