"""Processes that mount the same archives at one place, as the ranks of a node do."""

import os
import signal

import archfs
from stage import Stage, mounted, run

RANK = """
    root = archfs.mount_until_exit(IMAGE, at=PLACE)
    print(open(root / 'hello').read(), end='', flush=True)
    sys.stdin.readline()
"""


class SharingTest(Stage):
    def test_ranks_share_one_mount_and_the_last_one_out_unmounts(self):
        ranks = [self.script(RANK) for _ in range(4)]
        for rank in ranks:
            self.assertEqual(self.line(rank), "hello")
        daemons = [line for line in run("list").splitlines() if self.place in line]
        self.assertEqual(len(daemons), 1)
        self.tell(ranks[0])
        self.finished(ranks[0])
        self.assert_readable(self.place)
        for rank, number in ((ranks[1], signal.SIGKILL), (ranks[2], signal.SIGTERM)):
            rank.send_signal(number)
            rank.wait()
            self.assert_readable(self.place)
        self.tell(ranks[3])
        self.finished(ranks[3])
        self.assertNotIn(self.place, mounted())
        self.assertFalse(os.path.exists(self.place))

    def test_a_block_ends_only_its_own_hold(self):
        rank = self.script(RANK)
        self.line(rank)
        with archfs.mount(self.image, at=self.place):
            pass
        self.assert_readable(self.place)
        with archfs.mount(self.image, at=self.place) as root:
            self.tell(rank)
            self.finished(rank)
            self.assert_readable(root)
        self.assertNotIn(self.place, mounted())

    def test_ranks_that_come_and_go_always_have_their_files(self):
        """No rank that leaves takes the mount from one that has just come."""
        code = """
            for _ in range(15):
                with archfs.mount(IMAGE, at=PLACE) as root:
                    file = open(root / 'hello')
                    assert file.read() == 'hello\\n'
                    assert open(root / 'hello').read() == 'hello\\n'
        """
        for rank in [self.script(code) for _ in range(4)]:
            self.finished(rank)
        self.assert_gone(self.place)

    def test_a_batch_job_has_no_other_rules(self):
        """There `archfs mount` alone would hold for the job's script, and `archfs unmount` give that back."""
        job = dict(os.environ, SLURM_JOB_ID="17", SLURM_TASK_PID=str(os.getpid()))
        rank = self.script(RANK, env=job)
        self.line(rank)
        other = self.script(RANK, env=job)
        self.line(other)
        self.tell(rank)
        self.finished(rank)
        self.assert_readable(self.place)
        self.tell(other)
        self.finished(other)
        self.assertNotIn(self.place, mounted())

    def test_a_daemon_that_is_asked_to_end_serves_on(self):
        """As it is at scancel, while a script still writes its checkpoint."""
        rank = self.script(RANK)
        self.line(rank)
        (row,) = [line for line in run("list", "--json").splitlines() if self.place in line]
        os.kill(int(row.split('"daemon":')[1].split(",")[0]), signal.SIGTERM)
        self.assert_readable(self.place)
        self.tell(rank)
        self.finished(rank)
        self.assertNotIn(self.place, mounted())
