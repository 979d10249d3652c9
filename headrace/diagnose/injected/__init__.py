"""Code that runs inside the measured script's processes. It uses the standard library alone, from Python 3.9 on.

It is loaded from its path as a separate package, because the script's interpreter may not have Headrace installed.
"""
