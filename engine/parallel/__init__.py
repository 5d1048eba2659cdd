"""One model on several ranks: a process each, which all compute every step."""
