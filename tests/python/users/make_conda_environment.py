"""Makes a directory that conda-pack takes for a conda environment: an interpreter, its library, and a program with the
directory's path in its first line.

Usage: make_conda_environment.py DIRECTORY
"""

import json
import os
import pathlib
import shutil
import sys
import sysconfig


def main():
    prefix = pathlib.Path(sys.argv[1]).resolve()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    programs, library, meta = prefix / "bin", prefix / "lib" / f"python{version}", prefix / "conda-meta"
    programs.mkdir(parents=True)
    shutil.copy(os.path.realpath(sys._base_executable), programs / f"python{version}")
    (programs / "python").symlink_to(f"python{version}")
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix}
    left_out = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "config-*")
    shutil.copytree(sysconfig.get_path("stdlib", vars=base), library, ignore=left_out)
    (library / "site-packages").mkdir()
    tool = programs / "tool"
    tool.write_text(f"#!{prefix}/bin/python\nimport sys\nprint(sys.prefix)\n")
    tool.chmod(0o755)
    meta.mkdir()
    (meta / "history").touch()
    # What conda records of an installed package. The program is one of the files whose prefix conda replaces.
    files = ["bin/python", f"bin/python{version}", "bin/tool"]
    paths = [{"_path": file, "path_type": "hardlink"} for file in files]
    paths[-1] |= {"prefix_placeholder": str(prefix), "file_mode": "text"}
    package = {"name": "python", "version": f"{version}.0", "build": "0", "build_number": 0, "channel": "made",
               "url": "made", "fn": "made", "files": files, "link": {"source": "/none", "type": 1},
               "paths_data": {"paths_version": 1, "paths": paths}}
    (meta / f"python-{version}.0-0.json").write_text(json.dumps(package))


if __name__ == "__main__":
    main()
