"""Acting and collecting by machine code that is made of policies."""
