"""The product next to other projects' controllers that own training pods, each the real one.

``make platforms`` builds the controllers; without one its tests are skipped.
"""
