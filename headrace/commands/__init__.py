"""The verbs of the `headrace` command, a module each, with main(arguments). Only the one that is used is imported."""
