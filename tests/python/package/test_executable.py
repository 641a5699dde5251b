"""Where the package finds the program, and `python -m archfs`."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import archfs


class ExecutableTest(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="archfs-package-")
        self.addCleanup(shutil.rmtree, self.work)
        self.program = archfs.executable()

    def install(self, package, program):
        """Puts the package and the program where an installer would."""
        shutil.copytree(os.path.dirname(archfs.__file__), os.path.join(self.work, package, "archfs"))
        if program:
            path = os.path.join(self.work, program)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(self.program, path)

    def found(self, package, path="/usr/bin:/bin"):
        code = "import archfs; print(archfs.executable())"
        directory = os.path.join(self.work, package)
        env = {"PYTHONPATH": directory, "PATH": path, "HOME": self.work}
        # The system Python, which has no archfs installed.
        command = [os.path.realpath(sys.executable), "-c", code]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def test_pip_install_target(self):
        self.install("target", "target/bin/archfs")
        self.assertEqual(self.found("target").stdout.strip(), f"{self.work}/target/bin/archfs")

    def test_pip_install_prefix(self):
        self.install("lib/python3.11/site-packages", "bin/archfs")
        self.assertEqual(self.found("lib/python3.11/site-packages").stdout.strip(), f"{self.work}/bin/archfs")

    def test_pip_install_user(self):
        user = ".local/lib/python{}.{}/site-packages".format(*sys.version_info)
        self.install(user, ".local/bin/archfs")
        self.assertEqual(self.found(user).stdout.strip(), f"{self.work}/.local/bin/archfs")

    def test_path_is_the_last_resort(self):
        self.install("alone", "elsewhere/archfs")
        found = self.found("alone", f"{self.work}/elsewhere:/usr/bin:/bin")
        self.assertEqual(found.stdout.strip(), f"{self.work}/elsewhere/archfs")

    def test_nowhere(self):
        self.install("alone", None)
        said = self.found("alone").stderr
        self.assertIn("ExecutableNotFound", said)
        self.assertIn("hint: install the package again, or set ARCHFS_EXECUTABLE", said)

    def test_the_module_is_the_program(self):
        ran = subprocess.run([sys.executable, "-m", "archfs", "--version"], capture_output=True, text=True, check=True)
        self.assertRegex(ran.stdout, "^archfs [0-9.]+\n$")
        wrong = subprocess.run([sys.executable, "-m", "archfs", "mount"], capture_output=True, check=False)
        self.assertEqual(wrong.returncode, 2)
        missing = dict(os.environ, ARCHFS_EXECUTABLE="/nowhere")
        ran = subprocess.run([sys.executable, "-m", "archfs"], env=missing, capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stderr[:24]), (1, "archfs: error: /nowhere:"))
        other = os.path.join(self.work, "other")
        with open(other, "wb") as file:
            file.write(b"\x7fELF of another machine")
        os.chmod(other, 0o755)
        other_machine = dict(os.environ, ARCHFS_EXECUTABLE=other)
        command = [sys.executable, "-m", "archfs"]
        ran = subprocess.run(command, env=other_machine, capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stderr), (1, f"archfs: error: {other}: Exec format error\n"))
