"""Progress lines and the final table."""

import time

from soaklib import board as fields
from soaklib import roles


def line(stage, crew, guests, since):
    """One line of progress."""
    board = stage.board
    mounts = ", ".join(f"{mount.dataset.name} {mount.memory[-1][1]:.0f} MB {mount.threads[-1]} threads"
                       for mount in stage.mounts)
    print(f"soak: {time.monotonic() - since:4.0f} s, {board.total(fields.BYTES) / 1e9:.2f} GB compared, "
          f"{turns(board)} turns, {crew.killed()} killed, "
          f"{guests.counts['shared'] + guests.counts['ran']} guests; {mounts}", flush=True)


def at_most(counts):
    known = [count for count in counts if count is not None]
    return max(known) if known else "not known: the kernel shows no FUSE connections here"


def turns(board):
    return sum(board.total(fields.FIRST_ROLE + nth) for nth in range(len(roles.NAMES)))


def table(stage, crew, guests, warm, seconds):
    """The work done, and the resources used."""
    board = stage.board
    rows = [("workers", board.slots), ("seconds", f"{seconds:.0f}")]
    rows += [(f"turns of {name}", board.total(fields.FIRST_ROLE + nth)) for nth, name in enumerate(roles.NAMES)]
    rows += [("bytes compared", board.total(fields.BYTES)), ("workers killed", crew.killed()),
             ("workers stopped and continued", crew.stops), ("guests that shared", guests.counts["shared"]),
             ("guests that ran a command", guests.counts["ran"]), ("guests killed", guests.counts["killed"])]
    for mount in stage.mounts:
        name = mount.dataset.name
        rows += [(f"{name}: {key}", mount.last[key]) for key in [
            "requests.total", "requests.read", "requests.lseek", "served_bytes", "archive_bytes",
            "data_cache.loads", "data_cache.waits", "data_cache.evictions", "cache_releases"]]
        rows += [(f"{name}: holders at most", mount.holders),
                 (f"{name}: threads at first, at most, at the end",
                  f"{mount.first['threads']}, {max(mount.threads)}, {mount.final['threads']}"),
                 (f"{name}: open files at first, at most, at the end",
                  f"{len(mount.first['descriptors'])}, {max(mount.open_files)}, "
                  f"{len(mount.final['descriptors'])}"),
                 (f"{name}: requests in flight at most", at_most(mount.waiting)),
                 (f"{name}: MB resident at first, at the end",
                  f"{mount.first['memory']:.1f}, {mount.final['memory']:.1f}")]
        for third, (least, most) in zip(["first", "last"], mount.thirds(warm)):
            rows.append((f"{name}: MB resident, {third} third, min and max", f"{least:.1f}, {most:.1f}"))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:{width}}  {value}" for name, value in rows), flush=True)
