"""The central controller: it turns one member's failure into one coordinated restart of its whole gang."""
