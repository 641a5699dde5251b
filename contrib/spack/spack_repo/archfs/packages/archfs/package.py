# The Spack package of archfs, filled in by scripts/recipes for a release.
# It compiles the codecs in C from the sources inside the crates, so it depends on no library.

from spack_repo.builtin.build_systems.cargo import CargoPackage

from spack.package import *


class Archfs(CargoPackage):
    """Mounts SquashFS, tar and ZIP archives read-only through FUSE, with
    parallel reads, for as long as a job runs."""

    homepage = "@HOMEPAGE@"
    url = "@URL@/archfs-@VERSION@.tar.gz"

    license("MIT OR Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("rust@@RUST@:", type="build")

    requires("platform=linux", msg="archfs mounts through FUSE of Linux")

    @property
    def build_args(self):
        return ["--locked"]

    @property
    def check_args(self):
        # The other tests mount, and need /dev/fuse.
        return ["--locked", "--lib"]

    @run_after("install")
    def install_pages_and_completions(self):
        archfs = Executable(self.prefix.bin.archfs)
        archfs("man", "--dir", self.prefix.share.man.man1)
        for shell, directory, name in [
            ("bash", bash_completion_path(self.prefix), "archfs"),
            ("zsh", zsh_completion_path(self.prefix), "_archfs"),
            ("fish", fish_completion_path(self.prefix), "archfs.fish"),
        ]:
            mkdirp(directory)
            with open(join_path(directory, name), "w") as file:
                archfs("completions", shell, output=file)

    def test_version(self):
        """the installed program prints its version"""
        archfs = which(self.prefix.bin.archfs, required=True)
        assert str(self.spec.version) in archfs("--version", output=str)

    def test_pack(self):
        """the installed program packs and verifies an image"""
        archfs = which(self.prefix.bin.archfs, required=True)
        mkdirp("data")
        with open(join_path("data", "file"), "w") as file:
            file.write("text\n")
        archfs("pack", "--quiet", "data", "data.sqfs")
        archfs("verify", "data.sqfs")
        assert archfs("cat", "data.sqfs", "file", output=str) == "text\n"
