//! Paths of members as the archive has them: their components, and how messages show them.

/// The components of `path`, normalized as text: `.` and empty ones vanish, and `..` removes the
/// component before it, if there is one.
pub(crate) fn components_of(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}

/// `path` for messages, shortened if it is very long.
pub(crate) fn shown(path: &[u8]) -> String {
    match path.split_at_checked(200) {
        Some((start, rest)) if !rest.is_empty() => format!("{}...", start.escape_ascii()),
        _ => path.escape_ascii().to_string(),
    }
}

/// The path of the directory that shows the archive at `path`: without `.tar`, `.zip`, `.sqfs`
/// and the like.
pub(crate) fn archive_stem(path: &[u8]) -> Option<&[u8]> {
    let suffixes = [&b".tar"[..], b".zip", b".sqfs", b".squashfs", b".sqsh", b".sfs"];
    let stem = suffixes.iter().find_map(|suffix| path.strip_suffix(*suffix))?;
    // Without its suffix, `...tar` would be `..`.
    let name = stem.rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| !matches!(name, b"" | b"." | b"..")).then_some(stem)
}
