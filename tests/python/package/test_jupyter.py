"""A notebook kernel: cells can mount; a restart or the end of the kernel unmounts.

Runs only with ARCHFS_TEST_JUPYTER set (scripts/test-package --jupyter), because ipykernel comes from PyPI.
"""

import os

from stage import LIMIT, Stage, mounted


class JupyterTest(Stage):
    def setUp(self):
        super().setUp()
        if not os.environ.get("ARCHFS_TEST_JUPYTER"):
            self.skipTest("only with --jupyter")
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=self.work)
        self.addCleanup(self.manager.shutdown_kernel, now=True)
        self.addCleanup(self.client.stop_channels)

    def cell(self, code):
        """The output of a cell."""
        shown = []

        def hear(message):
            content = message["content"]
            shown.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        reply = self.client.execute_interactive(code, output_hook=hear, timeout=LIMIT)["content"]
        self.assertEqual(reply["status"], "ok", reply)
        return "".join(shown).strip()

    def test_cells_mount_and_unmount(self):
        self.cell(f"import archfs\nmount = archfs.mount({self.image!r}, at={self.mount_point!r})")
        self.assertIn("archfs.Mount of 'data.sqfs'", self.cell("print(mount)"))
        self.assert_readable(self.mount_point)
        # The same cell again: the object that the name referred to is dropped.
        self.cell(f"mount = archfs.mount({self.image!r}, at={self.mount_point!r})")
        self.assert_readable(self.mount_point)
        self.cell("mount.unmount()")
        self.assertNotIn(self.mount_point, mounted())
        said = self.cell("try:\n    archfs.mount('nowhere.sqfs')\nexcept archfs.Error as error:\n    print(error)")
        self.assertTrue(said.endswith("nowhere.sqfs: no such file"), said)

    def test_a_restart_and_the_end_unmount(self):
        code = f"import archfs\nprint(archfs.mount_until_exit({self.image!r}))"
        mount_point = self.cell(code)
        self.assertEqual(self.cell(code), mount_point)
        self.assertIn(mount_point, mounted())
        self.manager.restart_kernel()
        self.client.wait_for_ready(timeout=LIMIT)
        self.assert_gone(mount_point)
        mount_point = self.cell(code)
        self.manager.shutdown_kernel(now=True)
        self.assert_gone(mount_point)

    def test_an_interrupted_cell_leaves_the_kernel_with_its_mount(self):
        mount_point = self.cell(f"import archfs, time\nprint(archfs.mount_until_exit({self.image!r}))")
        self.client.execute("print('asleep', flush=True)\ntime.sleep(60)")
        while self.client.get_iopub_msg(timeout=LIMIT)["content"].get("text") != "asleep\n":
            pass
        self.manager.interrupt_kernel()
        reply = self.client.get_shell_msg(timeout=LIMIT)["content"]
        self.assertEqual((reply["status"], reply["ename"]), ("error", "KeyboardInterrupt"))
        self.assertEqual(self.cell(f"import os\nprint(os.path.ismount({mount_point!r}))"), "True")
