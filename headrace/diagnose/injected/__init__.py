"""What runs inside the measured script's processes: the standard library alone, Python 3.9 or later.

It is loaded by its path, as a package of its own, since the script's interpreter need not have Headrace.
"""
