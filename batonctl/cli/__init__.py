"""The command line: names, flags and help. What a command does is imported when it runs."""
