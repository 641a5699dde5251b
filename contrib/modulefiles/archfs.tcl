#%Module1.0
# The environment module of archfs, for Environment Modules and Lmod. Install it as archfs/VERSION in a directory
# of MODULEPATH; its own name is the version. Below the prefix are bin/archfs and share, as in docs/administrators.md.

set version [file tail [module-info name]]
set prefix  /opt/archfs/$version

proc ModulesHelp {} {
    puts stderr "archfs mounts SquashFS, tar and ZIP archives read-only, for as long as a job runs."
    puts stderr "Start with: archfs --help, man archfs, archfs doctor"
}
module-whatis "archfs $version: mount SquashFS, tar and ZIP archives for as long as a job runs"

conflict archfs

prepend-path PATH $prefix/bin

# man finds the pages through PATH, unless MANPATH is set.
if {[info exists env(MANPATH)]} {
    prepend-path MANPATH $prefix/share/man
}

# bash and fish look for completions in XDG_DATA_DIRS. If it was not set, it also gets its defaults, and loses them
# again when the module is unloaded. zsh reads FPATH only when it starts, so its users copy the file.
if {![info exists env(XDG_DATA_DIRS)] || [info exists env(ARCHFS_SET_XDG_DATA_DIRS)]} {
    setenv ARCHFS_SET_XDG_DATA_DIRS 1
    append-path XDG_DATA_DIRS /usr/local/share
    append-path XDG_DATA_DIRS /usr/share
}
prepend-path XDG_DATA_DIRS $prefix/share

# Defaults of all commands, if those of archfs do not suit your nodes; docs/CLI.md lists the variables.
# setenv ARCHFS_CACHE 4G
