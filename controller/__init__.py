"""The central controller: turn one member's failure into one coordinated restart of its whole gang."""
