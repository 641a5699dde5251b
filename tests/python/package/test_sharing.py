"""Processes that mount the same archives, such as the ranks of a node, share a mount."""

import os
import signal

import archfs
from stage import Stage, mounted, run

RANK = """
    root = archfs.mount_until_exit(IMAGE, at=MOUNT_POINT)
    print(open(root / 'hello').read(), end='', flush=True)
    sys.stdin.readline()
"""


class SharingTest(Stage):
    def test_ranks_share_one_mount_and_the_last_one_unmounts(self):
        ranks = [self.script(RANK) for _ in range(4)]
        for rank in ranks:
            self.assertEqual(self.line(rank), "hello")
        daemons = [line for line in run("list").splitlines() if self.mount_point in line]
        self.assertEqual(len(daemons), 1)
        self.tell(ranks[0])
        self.finished(ranks[0])
        self.assert_readable(self.mount_point)
        for rank, number in ((ranks[1], signal.SIGKILL), (ranks[2], signal.SIGTERM)):
            rank.send_signal(number)
            rank.wait()
            self.assert_readable(self.mount_point)
        self.tell(ranks[3])
        self.finished(ranks[3])
        self.assertNotIn(self.mount_point, mounted())
        self.assertFalse(os.path.exists(self.mount_point))

    def test_ranks_without_a_mount_point_share_one_mount(self):
        rank = """
            root = archfs.mount_until_exit('data.sqfs')
            assert open(root / 'hello').read() == 'hello\\n'
            print(root, flush=True)
            sys.stdin.readline()
        """
        ranks = [self.script(rank) for _ in range(4)]
        mount_points = [self.line(rank) for rank in ranks]
        self.assertEqual(len(set(mount_points)), 1, mount_points)
        mount_point = mount_points[0]
        self.assertEqual(len([line for line in run("list").splitlines() if mount_point in line]), 1)
        for rank in ranks[:3]:
            self.tell(rank)
            self.finished(rank)
            self.assert_readable(mount_point)
        self.tell(ranks[3])
        self.finished(ranks[3])
        self.assertNotIn(mount_point, mounted())
        self.assertFalse(os.path.exists(mount_point))

    def test_other_jobs_options_and_archives_have_mounts_of_their_own(self):
        code = """
            print(archfs.mount_until_exit(IMAGE, **eval(os.environ.get('OPTIONS', '{}'))), flush=True)
            sys.stdin.readline()
        """
        other = os.path.join(self.work, "other.sqfs")
        archfs.pack(self.source, other)
        variants = [{}, {"SLURM_JOB_ID": "17"}, {"SLURM_JOB_ID": "18"}, {"OPTIONS": "{'cache': '8M'}"}]
        ranks = [self.script(code, env={**os.environ, **variant}) for variant in variants]
        ranks.append(self.script(code.replace("IMAGE", repr(other))))
        mount_points = [self.line(rank) for rank in ranks]
        self.assertEqual(len(set(mount_points)), len(ranks), mount_points)
        for rank in ranks:
            self.tell(rank)
            self.finished(rank)

    def test_a_name_taken_by_another_user_blocks_no_mount(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        with archfs.mount(self.image) as root:
            mount_point = str(root)
        os.mkdir(mount_point)
        try:
            os.chown(mount_point, 12345, 12345)
            with archfs.mount(self.image) as root:
                self.assertNotEqual(str(root), mount_point)
                self.assert_readable(root)
            self.assertEqual(os.listdir(mount_point), [])
        finally:
            os.rmdir(mount_point)

    def test_a_block_releases_only_its_own_lease(self):
        rank = self.script(RANK)
        self.line(rank)
        with archfs.mount(self.image, at=self.mount_point):
            pass
        self.assert_readable(self.mount_point)
        with archfs.mount(self.image, at=self.mount_point) as root:
            self.tell(rank)
            self.finished(rank)
            self.assert_readable(root)
        self.assertNotIn(self.mount_point, mounted())

    def test_ranks_that_start_and_end_always_have_their_files(self):
        """A rank that ends does not unmount the files of one that has just started."""
        code = """
            for _ in range(15):
                with archfs.mount(IMAGE, at=MOUNT_POINT) as root:
                    file = open(root / 'hello')
                    assert file.read() == 'hello\\n'
                    assert open(root / 'hello').read() == 'hello\\n'
        """
        for rank in [self.script(code) for _ in range(4)]:
            self.finished(rank)
        self.assert_gone(self.mount_point)

    def test_a_batch_job_has_no_other_rules(self):
        """In a batch job, `archfs mount` would hold for the job script, and `archfs unmount` would release that."""
        job = dict(os.environ, SLURM_JOB_ID="17", SLURM_TASK_PID=str(os.getpid()))
        rank = self.script(RANK, env=job)
        self.line(rank)
        other = self.script(RANK, env=job)
        self.line(other)
        self.tell(rank)
        self.finished(rank)
        self.assert_readable(self.mount_point)
        self.tell(other)
        self.finished(other)
        self.assertNotIn(self.mount_point, mounted())

    def test_a_daemon_asked_to_exit_keeps_serving(self):
        """As on scancel, while a script still writes its checkpoint."""
        rank = self.script(RANK)
        self.line(rank)
        (row,) = [line for line in run("list", "--json").splitlines() if self.mount_point in line]
        os.kill(int(row.split('"daemon":')[1].split(",")[0]), signal.SIGTERM)
        self.assert_readable(self.mount_point)
        self.tell(rank)
        self.finished(rank)
        self.assertNotIn(self.mount_point, mounted())
