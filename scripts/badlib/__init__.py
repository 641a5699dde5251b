"""The corpus of hostile archives: writers, and what is broken with each.

Only the standard library, so that the bytes depend on no version of mksquashfs or tar.
"""
