"""Forked children of a process with a mount can read it and do not end it."""

from stage import Stage, mounted

BLOCK = """
    import multiprocessing, time
    with archfs.mount(IMAGE, at=MOUNT_POINT) as root:
        {}
        assert os.path.ismount(MOUNT_POINT), 'a child has unmounted it'
        assert open(root / 'hello').read() == 'hello\\n'
    assert not os.path.exists(MOUNT_POINT)
"""


class ForkTest(Stage):
    def in_a_block(self, code):
        lines = code.strip("\n").splitlines()
        indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        inner = "\n        ".join(line[indent:] for line in lines)
        output = self.finished(self.script(BLOCK.format(inner)))
        self.assertNotIn(self.mount_point, mounted())
        return output

    def test_a_child_that_leaves_by_the_block(self):
        self.in_a_block("""
            child = os.fork()
            if child == 0:
                assert open(root / 'hello').read() == 'hello\\n'
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """)

    def test_a_child_that_exits_silently_and_one_that_fails(self):
        self.in_a_block("""
            for end in (lambda: os._exit(3), lambda: [][0], lambda: os.kill(os.getpid(), 9)):
                child = os.fork()
                if child == 0:
                    sys.stderr = None
                    end()
                assert os.waitpid(child, 0)[1] != 0
        """)

    def test_a_child_that_unmounts_and_collects(self):
        self.in_a_block("""
            import gc
            mount = archfs.mount(IMAGE, at=MOUNT_POINT)
            child = os.fork()
            if child == 0:
                mount.unmount()
                del mount
                gc.collect()
                os._exit(0)
            os.waitpid(child, 0)
            mount.unmount()
        """)

    def test_workers_of_multiprocessing(self):
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method):
                program = f"{self.work}/workers.py"
                with open(program, "w", encoding="utf-8") as file:
                    file.write(WORKERS.format(method=method, image=self.image, mount_point=self.mount_point))
                self.finished(self.start(program))
                self.assertNotIn(self.mount_point, mounted())

    def test_a_child_with_a_mount_of_its_own(self):
        self.in_a_block("""
            child = os.fork()
            if child == 0:
                with archfs.mount(IMAGE, at=MOUNT_POINT) as same:
                    assert open(same / 'hello').read() == 'hello\\n'
                with archfs.mount(TAR) as own:
                    assert open(own / 'hello').read() == 'hello\\n'
                assert not own.exists() and os.path.ismount(MOUNT_POINT)
                sys.exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        """)

    def test_a_child_that_mounts_keeps_the_mount_when_its_parent_ends(self):
        process = self.script("""
            root = archfs.mount_until_exit(IMAGE)
            ours, theirs = os.pipe()
            if os.fork() == 0:
                assert archfs.mount_until_exit(IMAGE) == root
                print(root, flush=True)
                os.write(theirs, b'asked')
                sys.stdin.readline()
                print(open(root / 'hello').read(), flush=True)
                sys.stdin.readline()
                os._exit(0)
            os.read(ours, 5)
        """)
        mount_point = self.line(process)
        process.wait()
        self.assertIn(mount_point, mounted())
        self.tell(process)
        self.assertEqual(self.line(process), "hello")
        self.tell(process)
        self.assert_gone(mount_point)

    def test_a_fork_while_another_thread_mounts(self):
        """No thread in the child would release a lock. Its copies of descriptors must not block the parent."""
        output = self.finished(self.script("""
            import threading, time
            done = threading.Event()
            def mounts():
                while not done.is_set():
                    archfs.mount(IMAGE).unmount()
            threads = [threading.Thread(target=mounts) for _ in range(2)]
            for thread in threads: thread.start()
            children = []
            for number in range(20):
                child = os.fork()
                if child == 0:
                    with archfs.mount(TAR, at=f'{MOUNT_POINT}-{number}') as root:
                        ok = open(root / 'hello').read() == 'hello\\n'
                    os._exit(0 if ok else 1)
                children.append(child)
                time.sleep(0.01)
            print([os.waitpid(child, 0)[1] for child in children])
            done.set()
            for thread in threads: thread.join()
        """))
        self.assertEqual(output, f"{[0] * 20}\n")

    def test_a_fork_while_another_thread_makes_a_temporary_file(self):
        """Then the lock of Python's tempfile stays locked in the child forever."""
        output = self.finished(self.script("""
            import tempfile
            tempfile.tempdir = None
            tempfile._name_sequence = None
            with tempfile._once_lock:
                child = os.fork()
                if child == 0:
                    import signal
                    signal.alarm(20)
                    with archfs.mount(IMAGE, at=MOUNT_POINT) as root:
                        ok = open(root / 'hello').read() == 'hello\\n'
                    archfs.pack('source', 'some.sqfs', files_from=['hello'])
                    os._exit(0 if ok else 1)
                print(os.waitpid(child, 0)[1])
        """))
        self.assertEqual(output, "0\n")


WORKERS = '''
import multiprocessing, os, sys
import archfs

def look(root):
    return open(os.path.join(root, "hello")).read(), os.getpid()

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with archfs.mount({image!r}, at={mount_point!r}) as root:
        for _ in range(2):
            with context.Pool(2) as pool:
                found = pool.map(look, [root] * 8)
            assert {{text for text, _ in found}} == {{"hello\\n"}}, found
            assert os.getpid() not in {{pid for _, pid in found}}
            child = context.Process(target=look, args=[root])
            child.start()
            child.join()
            assert child.exitcode == 0 and os.path.ismount(root)
    assert not root.exists()
'''
