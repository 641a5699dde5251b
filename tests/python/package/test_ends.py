"""However a process ends, its mounts end with it."""

import contextlib
import os
import signal
import sys
import threading
import time

from stage import Stage, mounted, wait_until

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL]
SOON = 5.0


class EndTest(Stage):
    def gone_after(self, code, status=0, at="MOUNT_POINT"):
        """Runs `code` after mount_until_exit; the mount must be gone when Python has exited."""
        process = self.script(f"root = archfs.mount_until_exit(IMAGE, at={at})\nprint(root)\n{code}")
        mount_point = self.finished(process, status).splitlines()[0]
        # Python's exit handler unmounts before the process exits.
        self.assertNotIn(mount_point, mounted())
        self.assert_gone(mount_point)

    def test_mounts_end_with_the_script(self):
        self.gone_after("print(len(os.listdir(root)))")
        self.gone_after("print(len(os.listdir(root)))", at=None)

    def test_sys_exit_and_an_exception(self):
        self.gone_after("sys.exit(3)", 3)
        self.gone_after("raise ValueError('mine')", 1)

    def test_a_mount_never_unmounted_and_one_in_a_reference_cycle(self):
        self.gone_after("kept = archfs.mount(TAR)\nkept.itself = kept")

    def test_a_file_and_a_map_that_are_still_open(self):
        self.gone_after(
            "import mmap\n"
            "file = open(root / 'folder/data', 'rb')\n"
            "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
            "os.chdir(root)"
        )

    def test_a_daemon_thread_still_reading(self):
        self.gone_after(
            "import threading\n"
            "started = threading.Event()\n"
            "def read():\n"
            "    while True:\n"
            "        open(root / 'folder/data', 'rb').read()\n"
            "        started.set()\n"
            "threading.Thread(target=read, daemon=True).start()\n"
            "started.wait()"
        )

    def test_exit_handlers_of_others_can_still_read(self):
        code = "import atexit\natexit.register(lambda: print(open(root / 'hello').read()))"
        process = self.script(f"root = archfs.mount_until_exit(IMAGE, at=MOUNT_POINT)\n{code}")
        self.assertEqual(self.finished(process), "hello\n\n")

    def test_os_exit_runs_no_handler(self):
        process = self.script("archfs.mount_until_exit(IMAGE, at=MOUNT_POINT)\nos._exit(0)")
        self.finished(process)
        self.assert_gone_soon(self.mount_point)

    def test_each_signal(self):
        for number in SIGNALS:
            for how in ("root = archfs.mount_until_exit(IMAGE)", "m = archfs.mount(IMAGE)\nroot = m.path"):
                with self.subTest(number.name, how=how):
                    process = self.script(f"{how}\nprint(root, flush=True)\nsys.stdin.read()")
                    mount_point = self.line(process)
                    self.assertIn(mount_point, mounted())
                    process.send_signal(number)
                    process.wait()
                    self.assert_gone_soon(mount_point)

    def test_a_signal_during_mount_or_unmount(self):
        for wait in (0.0, 0.01, 0.03, 0.1, 0.2):
            with self.subTest(wait=wait):
                process = self.script(
                    "print(flush=True)\nwhile True:\n    archfs.mount(IMAGE, at=MOUNT_POINT).unmount()"
                )
                self.line(process)
                time.sleep(wait)
                process.kill()
                process.wait()
                wait_until("the program that it had started has ended", lambda: not self.is_named_by_a_process())
                self.assert_gone_soon(self.mount_point)

    def is_named_by_a_process(self):
        for number in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
                if os.fsencode(self.mount_point) in file.read().split(b"\0"):
                    return True
        return False

    def test_control_c_ends_the_wait_and_leaves_nothing(self):
        process = self.script(
            "try:\n"
            "    while True:\n"
            "        with archfs.mount(IMAGE, at=MOUNT_POINT) as root:\n"
            "            print(flush=True)\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')"
        )
        self.line(process)
        process.send_signal(signal.SIGINT)
        # Python swallows an interrupt that arrives while it collects an object, such as a Popen. Reading all
        # lines keeps the pipe from filling up.
        timer = threading.Timer(10, process.send_signal, [signal.SIGINT])
        timer.start()
        self.addCleanup(timer.cancel)
        self.assertIn("interrupted", self.finished(process))
        self.assert_gone_soon(self.mount_point)

    def test_an_interrupt_during_mount_leaves_nothing_even_before_exit(self):
        code = """
            import signal, threading, time
            from stage import mounted
            def interrupt(after):
                time.sleep(after)
                os.kill(os.getpid(), signal.SIGINT)
            for number in range(60):
                thread = threading.Thread(target=interrupt, args=[number * 0.0004])
                try:
                    try:
                        thread.start()
                        with archfs.mount(IMAGE, at=MOUNT_POINT):
                            pass
                    finally:
                        thread.join()
                except KeyboardInterrupt:
                    pass
                assert MOUNT_POINT not in mounted(), number
        """
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), *sys.path]))
        self.finished(self.script(code, env=env))

    def test_an_interrupt_before_the_pid_of_the_child_is_known(self):
        """A signal during the start of the child is handled as soon as the child has started."""
        code = """
            import _posixsubprocess, subprocess
            name = '_fork_exec' if hasattr(subprocess, '_fork_exec') else None
            holder = subprocess if name else _posixsubprocess
            name = name or 'fork_exec'
            real = getattr(holder, name)
            def interrupted(*arguments):
                real(*arguments)
                setattr(holder, name, real)
                raise KeyboardInterrupt
            setattr(holder, name, interrupted)
            try:
                archfs.mount(IMAGE, at=MOUNT_POINT)
            except KeyboardInterrupt:
                print(os.path.ismount(MOUNT_POINT))
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                print('no child is left')
        """
        self.assertEqual(self.finished(self.script(code)), "False\nno child is left\n")

    def test_a_program_started_by_exec_keeps_the_mount_until_it_ends(self):
        code = "root = archfs.mount_until_exit(IMAGE, at=MOUNT_POINT)\nos.execvp('sh', ['sh', '-c', 'echo; read x'])"
        process = self.script(code)
        self.line(process)
        self.assertIn(self.mount_point, mounted())
        self.tell(process)
        self.finished(process)
        self.assert_gone_soon(self.mount_point)

    def test_no_handler_of_a_signal_is_set(self):
        code = (
            "import signal\n"
            "before = [signal.getsignal(number) for number in signal.valid_signals()]\n"
            "archfs.mount_until_exit(IMAGE)\n"
            "print(before == [signal.getsignal(number) for number in signal.valid_signals()])"
        )
        self.assertEqual(self.finished(self.script(code)), "True\n")

    def test_a_process_that_ignores_sigchld(self):
        code = (
            "import signal\n"
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "with archfs.mount(IMAGE, at=MOUNT_POINT) as root:\n"
            "    print(open(root / 'hello').read(), end='')\n"
            "try:\n"
            "    archfs.mount('/nowhere.sqfs')\n"
            "except archfs.MissingFile as error:\n"
            "    print(error)\n"
            "for call in (archfs.info, lambda name: archfs.pack(name, 'never.sqfs')):\n"
            "    try:\n"
            "        call('/nowhere.sqfs')\n"
            "    except archfs.MissingFile as error:\n"
            "        print(error.status)\n"
            "print(archfs.info(IMAGE)['files'])"
        )
        self.assertEqual(self.finished(self.script(code)), "hello\n/nowhere.sqfs: no such file\n1\n1\n2\n")

    def assert_gone_soon(self, mount_point):
        before = time.monotonic()
        self.assert_gone(mount_point)
        self.assertLess(time.monotonic() - before, SOON)


# Mounts an image immediately, and a tar once the file GO exists.
SLOW = """
            import threading, time
            GO, STARTED, program = 'go', 'started', 'program'
            for name in (GO, STARTED):
                if os.path.exists(name):
                    os.unlink(name)
            with open(program, 'w') as file:
                file.write('#!/bin/sh\\n'
                    'case "$*" in mount*.tar*) echo >started; until [ -e go ]; do sleep 0.01; done;; esac\\n'
                    f'exec "{archfs.executable()}" "$@"\\n')
            os.chmod(program, 0o755)
            os.environ['ARCHFS_EXECUTABLE'] = os.path.abspath(program)
            def wait():
                while not os.path.exists(STARTED):
                    time.sleep(0.001)
"""


class UntilExitTest(Stage):
    def test_a_second_call_returns_the_same_directory(self):
        code = """
            one = archfs.mount_until_exit(IMAGE)
            assert archfs.mount_until_exit(IMAGE) == one
            assert archfs.mount_until_exit('data.sqfs') == one, 'by another name'
            assert archfs.mount_until_exit(IMAGE, subdir='folder') != one
            assert archfs.mount_until_exit(IMAGE, at=MOUNT_POINT) == archfs.mount_until_exit(IMAGE, at=MOUNT_POINT)
            archfs.pack('source', 'changing.sqfs')
            before = archfs.mount_until_exit('changing.sqfs')
            mount_point = archfs.mount_until_exit('changing.sqfs', at='other')
            archfs.pack('source/folder', 'changing.sqfs', force=True)
            assert os.listdir(archfs.mount_until_exit('changing.sqfs')) == ['data'], 'it has changed'
            assert not before.exists(), 'old mounts pile up'
            assert archfs.mount_until_exit('changing.sqfs', at='other') == mount_point
            assert os.listdir(mount_point) == ['data']
            os.system(f'"{archfs.executable()}" unmount --lazy {one}')
            assert sorted(os.listdir(archfs.mount_until_exit(IMAGE))) == ['folder', 'hello'], 'remounted'
        """
        self.finished(self.script(code))

    def test_a_killed_daemon_is_replaced(self):
        code = """
            import json, time
            for at in (None, MOUNT_POINT):
                root = archfs.mount_until_exit(IMAGE, at=at)
                listed = os.popen(f'"{archfs.executable()}" list --json').read().splitlines()
                [daemon] = [one['daemon'] for one in map(json.loads, listed) if one['mountpoint'] == str(root)]
                os.kill(daemon, 9)
                while os.path.exists(f'/proc/{daemon}/fd/0'):
                    time.sleep(0.001)
                assert archfs.mount_until_exit(IMAGE, at=at) == root
                assert sorted(os.listdir(root)) == ['folder', 'hello'], at
        """
        self.finished(self.script(code))

    def test_a_deleted_archive_ends_no_mount(self):
        code = """
            for at in (None, MOUNT_POINT):
                archfs.pack('source', 'gone.sqfs')
                root = archfs.mount_until_exit('gone.sqfs', at=at)
                os.unlink('gone.sqfs')
                try:
                    archfs.mount_until_exit('gone.sqfs', at=at)
                except archfs.MissingFile as error:
                    assert error.filename == os.path.abspath('gone.sqfs'), error.filename
                else:
                    raise AssertionError(at)
                assert sorted(os.listdir(root)) == ['folder', 'hello'], at
        """
        self.finished(self.script(code))

    def test_a_relative_mount_point_after_chdir(self):
        code = """
            for name in ('first', 'second'):
                os.mkdir(name)
                os.chdir(name)
                root = archfs.mount_until_exit(IMAGE, at='data', stats_json='numbers')
                assert str(root) == os.path.abspath('data'), root
                assert os.listdir(root)
                os.chdir('..')
        """
        self.finished(self.script(code))
        self.assertTrue(os.path.exists(os.path.join(self.work, "second", "numbers")))

    def test_another_mount_does_not_wait(self):
        code = SLOW + """
            ask = threading.Thread(target=archfs.mount_until_exit, args=[TAR])
            ask.start()
            wait()
            assert os.listdir(archfs.mount_until_exit(IMAGE)) and ask.is_alive()
            open(GO, 'w').close()
            ask.join()
        """
        self.finished(self.script(code))

    def test_a_mount_in_a_daemon_thread_does_not_delay_exit(self):
        code = SLOW + """
            threading.Thread(target=archfs.mount_until_exit, args=[TAR], daemon=True).start()
            wait()
        """
        process = self.script(code)
        self.finished(process)
        with open(os.path.join(self.work, "go"), "w", encoding="utf-8"):
            pass

    def test_concurrent_threads_share_one_mount(self):
        code = """
            import threading
            found = []
            def ask():
                found.append(archfs.mount_until_exit(IMAGE))
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert len(found) == 8 and len(set(found)) == 1, found
        """
        self.finished(self.script(code))
