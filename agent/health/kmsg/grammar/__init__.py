"""Grammars of kernel messages, one module each. They parse kernel text into facts, or return None for no match.

A grammar matches from the first character: a message that merely quotes another one is not a finding.
"""
