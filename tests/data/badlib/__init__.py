"""The corpus of hostile archives: writers, and cases that break their output.

Only the standard library, so that the bytes depend on no version of mksquashfs or tar.
"""
