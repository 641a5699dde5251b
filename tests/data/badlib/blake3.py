"""BLAKE3 of at most one chunk, 1024 bytes (the BLAKE3 paper, section 2)."""

import struct

IV = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
ORDER = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
COLUMNS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
DIAGONALS = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
CHUNK_START, CHUNK_END, ROOT = 1, 2, 8


def rotated(word, by):
    """`word` of 32 bits, rotated right."""
    return (word >> by | word << 32 - by) & 0xFFFFFFFF


def mix(state, positions, one, two):
    """The quarter round G."""
    a, b, c, d = positions
    for word, first, second in ((one, 16, 12), (two, 8, 7)):
        state[a] = (state[a] + state[b] + word) & 0xFFFFFFFF
        state[d] = rotated(state[d] ^ state[a], first)
        state[c] = (state[c] + state[d]) & 0xFFFFFFFF
        state[b] = rotated(state[b] ^ state[c], second)


def compressed(chaining, block, flags):
    """The next chaining value."""
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    state = [*chaining, *IV[:4], 0, 0, len(block), flags]
    for _ in range(7):
        for nth, positions in enumerate(COLUMNS + DIAGONALS):
            mix(state, positions, words[2 * nth], words[2 * nth + 1])
        words = [words[at] for at in ORDER]
    return [state[at] ^ state[at + 8] for at in range(8)]


def blake3(data):
    """The hash of `data`, 32 bytes."""
    assert len(data) <= 1024
    blocks = [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
    chaining = IV
    for nth, block in enumerate(blocks):
        flags = CHUNK_START if nth == 0 else 0
        if nth == len(blocks) - 1:
            flags |= CHUNK_END | ROOT
        chaining = compressed(chaining, block, flags)
    return struct.pack("<8I", *chaining)
