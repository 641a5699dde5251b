"""A notebook kernel: cells can mount; a restart or the end of the kernel unmounts.

Runs only with ARCHFS_TEST_JUPYTER set (scripts/test-package --jupyter), because ipykernel comes from PyPI.
"""

import os
import re
import sys
from pathlib import Path

import archfs
from stage import LIMIT, Stage, mounted

TOP = Path(__file__).resolve().parents[3]


class KernelStage(Stage):
    """A test with a kernel, `manager`, and its client."""

    def setUp(self):
        super().setUp()
        if not os.environ.get("ARCHFS_TEST_JUPYTER"):
            self.skipTest("only with --jupyter")

    def cell(self, code):
        """The output of a cell."""
        shown = []

        def hear(message):
            content = message["content"]
            shown.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        reply = self.client.execute_interactive(code, output_hook=hear, timeout=LIMIT)["content"]
        self.assertEqual(reply["status"], "ok", reply)
        return "".join(shown).strip()

    def interrupt_a_cell(self):
        """Interrupts a cell that sleeps."""
        self.client.execute("import time\nprint('asleep', flush=True)\ntime.sleep(60)")
        while self.client.get_iopub_msg(timeout=LIMIT)["content"].get("text") != "asleep\n":
            pass
        self.manager.interrupt_kernel()
        reply = self.client.get_shell_msg(timeout=LIMIT)["content"]
        self.assertEqual((reply["status"], reply["ename"]), ("error", "KeyboardInterrupt"))


class JupyterTest(KernelStage):
    def setUp(self):
        super().setUp()
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=self.work)
        self.addCleanup(self.manager.shutdown_kernel, now=True)
        self.addCleanup(self.client.stop_channels)

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
        mount_point = self.cell(f"import archfs\nprint(archfs.mount_until_exit({self.image!r}))")
        self.interrupt_a_cell()
        self.assertEqual(self.cell(f"import os\nprint(os.path.ismount({mount_point!r}))"), "True")


class EnvironmentKernelTest(KernelStage):
    """A kernel whose Python is in an archive: the kernel specification of docs/how-to/notebook.md."""

    def setUp(self):
        super().setUp()
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import KernelManager

        environment = os.path.join(self.work, "environment.sqfs")
        if not os.path.exists(environment):
            archfs.pack(sys.prefix, environment, compressor="none")
        specification = os.path.join(self.work, "kernels", "archived")
        os.makedirs(specification, exist_ok=True)
        with open(os.path.join(TOP, "docs", "how-to", "notebook.md"), encoding="utf-8") as page:
            (kernel,) = re.findall(r"```json\n(.*?)```", page.read(), re.DOTALL)
        # Quiet, because the output of a kernel goes to the terminal of the tests.
        kernel = kernel.replace('"archfs", "run"', f'"{archfs.executable()}", "run", "--quiet"')
        with open(os.path.join(specification, "kernel.json"), "w", encoding="utf-8") as file:
            file.write(kernel.replace("/home/me/env.sqfs", environment))
        specifications = KernelSpecManager(kernel_dirs=[os.path.join(self.work, "kernels")])
        self.manager = KernelManager(kernel_name="archived", kernel_spec_manager=specifications)
        self.manager.start_kernel(cwd=self.work)
        self.addCleanup(self.manager.shutdown_kernel, now=True)
        self.client = self.manager.client()
        self.client.start_channels()
        self.addCleanup(self.client.stop_channels)
        self.client.wait_for_ready(timeout=LIMIT)

    def test_runs_from_the_mount_until_it_is_shut_down(self):
        prefix = self.cell("import sys\nprint(sys.prefix)")
        self.assertIn(prefix, mounted(self.work))
        # An interrupt ends the cell and not the mount.
        self.interrupt_a_cell()
        self.assertEqual(self.cell("import json.tool, sys\nprint(sys.prefix)"), prefix)
        self.manager.shutdown_kernel()
        self.assert_gone(prefix)

    def test_a_killed_kernel_leaves_no_mount(self):
        prefix = self.cell("import sys\nprint(sys.prefix)")
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=LIMIT)
        self.assertIn(self.cell("import sys\nprint(sys.prefix)"), mounted(self.work))
        self.manager.shutdown_kernel(now=True)
        self.assert_gone(prefix)
