-- The environment module of archfs, for Lmod. Install it as archfs/VERSION.lua in a directory of MODULEPATH; its
-- own name is the version. Below the prefix are bin/archfs and share, as in docs/administrators.md.

local version = myModuleVersion()
local prefix = "/opt/archfs/" .. version

help([[archfs mounts SquashFS, tar and ZIP archives read-only, for as long as a job runs.
Start with: archfs --help, man archfs, archfs doctor]])
whatis("Name: archfs")
whatis("Version: " .. version)
whatis("Description: mount SquashFS, tar and ZIP archives for as long as a job runs")

conflict("archfs")

prepend_path("PATH", pathJoin(prefix, "bin"))

-- man finds the pages through PATH, unless MANPATH is set.
if os.getenv("MANPATH") then
    prepend_path("MANPATH", pathJoin(prefix, "share/man"))
end

-- bash and fish look for completions in XDG_DATA_DIRS. If it was not set, it also gets its defaults, and loses them
-- again when the module is unloaded. zsh reads FPATH only when it starts, so its users copy the file.
if not os.getenv("XDG_DATA_DIRS") or os.getenv("ARCHFS_SET_XDG_DATA_DIRS") then
    setenv("ARCHFS_SET_XDG_DATA_DIRS", "1")
    append_path("XDG_DATA_DIRS", "/usr/local/share")
    append_path("XDG_DATA_DIRS", "/usr/share")
end
prepend_path("XDG_DATA_DIRS", pathJoin(prefix, "share"))

-- Defaults of all commands, if those of archfs do not suit your nodes; docs/CLI.md lists the variables.
-- setenv("ARCHFS_CACHE", "4G")
