//! Removes from the mode of a member what its POSIX ACL denies.
//!
//! With `-o allow_other` the kernel enforces modes, but it does not know the ACLs of a tar. For a
//! file with an ACL, the group bits of the mode are only the mask, an upper limit. So the mode
//! alone would give too much to the owning group, and to users whom the ACL denies something.
//! Therefore the ACL is hidden, and the mode is reduced until no user gets more than the ACL gives.
//! Users and groups named in the ACL get no more than all others, because a mode cannot name them.
//!
//! GNU tar, star and libarchive store an ACL as text (keyword SCHILY.acl.access) or as the value of
//! the extended attribute (linux/posix_acl_xattr.h). The names in the text do not matter here, so
//! they are not looked up.

/// The pax keyword of an ACL as text. It is kept as an attribute with this name.
pub(crate) const TEXT: &[u8] = b"SCHILY.acl.access";

/// The extended attributes of Linux for ACLs.
const BINARY: &[u8] = b"system.posix_acl_access";
const BINARY_DEFAULT: &[u8] = b"system.posix_acl_default";

/// The only version of the attribute's format.
const VERSION: [u8; 4] = [2, 0, 0, 0];

/// What happens to the ACLs of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acls {
    /// Shown as in the archive. Nothing is enforced.
    #[default]
    Shown,
    /// Hidden, and modes are reduced by what they deny.
    Masked,
}

impl Acls {
    /// Whether to show the attribute `name`.
    pub(super) fn shows(self, name: &[u8]) -> bool {
        name != TEXT && (self == Self::Shown || (name != BINARY && name != BINARY_DEFAULT))
    }

    /// Whether to reduce modes by ACLs.
    pub(super) fn is_masked(self) -> bool {
        self == Self::Masked
    }
}

/// Whether the attribute `name` is an ACL that controls access to a member.
pub(super) fn is_access(name: &[u8]) -> bool {
    name == TEXT || name == BINARY
}

/// The permission bits that the ACL in the attribute `name` leaves.
pub(super) fn mask(name: &[u8], value: &[u8]) -> u16 {
    let rights = if name == TEXT { Rights::of_text(value) } else { Rights::of_attribute(value) };
    // An ACL that cannot be parsed may deny anything.
    rights.map_or(OWNER_ONLY, Rights::mode)
}

/// All bits, except those of the group and of others.
const OWNER_ONLY: u16 = 0o7700;

/// The rights (rwx) that the entries of an ACL give.
#[derive(Clone, Copy, Debug)]
struct Rights {
    owner: u16,
    group: u16,
    others: u16,
    mask: u16,
    /// What all named users have in common, if there are any.
    users: Option<u16>,
    /// What all named groups have in common, if there are any.
    groups: Option<u16>,
}

const ALL: u16 = 7;

/// Whom an entry applies to.
#[derive(Clone, Copy, Debug)]
enum Tag {
    Owner,
    User,
    Group,
    NamedGroup,
    Mask,
    Others,
}

impl Rights {
    const NOT_SAID: Self =
        Self { owner: ALL, group: ALL, others: ALL, mask: ALL, users: None, groups: None };

    /// A mode that gives no user more than the ACL does (acl(5), "access check algorithm").
    ///
    /// A named user is in the owning group or among the others. A member of a named group is among
    /// the others, or also has the rights of the owning group. The mask limits everyone except the
    /// owner and the others.
    fn mode(self) -> u16 {
        let limited = |named: Option<u16>| named.map_or(ALL, |rights| rights & self.mask);
        let group = self.group & self.mask & limited(self.users);
        let others = self.others & limited(self.users) & limited(self.groups);
        0o7000 | self.owner << 6 | group << 3 | others
    }

    fn add(&mut self, tag: Tag, rights: u16) {
        match tag {
            Tag::Owner => self.owner &= rights,
            Tag::User => self.users = Some(self.users.unwrap_or(ALL) & rights),
            Tag::Group => self.group &= rights,
            Tag::NamedGroup => self.groups = Some(self.groups.unwrap_or(ALL) & rights),
            Tag::Mask => self.mask &= rights,
            Tag::Others => self.others &= rights,
        }
    }

    /// Parses text as acl_to_text(3) writes it: `user::rwx,user:lisa:r-x,mask::r-x`. A number may
    /// follow each entry. `None` if it cannot be parsed.
    fn of_text(text: &[u8]) -> Option<Self> {
        let mut found = Self::NOT_SAID;
        for entry in text.split(|byte| b",\n".contains(byte)) {
            let entry = entry.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
            if entry.is_empty() {
                continue;
            }
            let fields: Vec<_> = entry.split(|&byte| byte == b':').collect();
            let (tag, rights) = match *fields.as_slice() {
                [b"user" | b"u", b"", rights, ..] => (Tag::Owner, rights),
                [b"user" | b"u", _, rights, ..] => (Tag::User, rights),
                [b"group" | b"g", b"", rights, ..] => (Tag::Group, rights),
                [b"group" | b"g", _, rights, ..] => (Tag::NamedGroup, rights),
                [b"mask" | b"m", b"", rights, ..] | [b"mask" | b"m", rights] => (Tag::Mask, rights),
                [b"other" | b"o", b"", rights, ..] | [b"other" | b"o", rights] => {
                    (Tag::Others, rights)
                }
                _ => return None,
            };
            found.add(tag, letters(rights)?);
        }
        Some(found)
    }

    /// Parses the attribute: a version, then entries with a tag, rights and a number.
    fn of_attribute(value: &[u8]) -> Option<Self> {
        let mut found = Self::NOT_SAID;
        let (entries, rest) = value.strip_prefix(&VERSION)?.as_chunks::<8>();
        for &[tag, high, rights, _, ..] in entries {
            let tag = match (high, tag) {
                (0, 0x01) => Tag::Owner,
                (0, 0x02) => Tag::User,
                (0, 0x04) => Tag::Group,
                (0, 0x08) => Tag::NamedGroup,
                (0, 0x10) => Tag::Mask,
                (0, 0x20) => Tag::Others,
                _ => return None,
            };
            found.add(tag, u16::from(rights));
        }
        rest.is_empty().then_some(found)
    }
}

/// Parses rights as letters, such as `r-x`.
fn letters(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0, |rights, letter| {
        Some(
            rights
                | match letter {
                    b'r' => 4,
                    b'w' => 2,
                    b'x' => 1,
                    b'-' => 0,
                    _ => return None,
                },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(mode: u16, xattrs: &[(&[u8], &[u8])]) -> u16 {
        let acls = xattrs.iter().filter(|(name, _)| is_access(name));
        acls.fold(mode, |left, (name, value)| left & mask(name, value))
    }

    /// Encodes an attribute with these entries: tag, rights, number.
    fn attribute(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_vec();
        for (tag, rights, id) in entries {
            value.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn an_acl_leaves_no_user_more_than_it_gives() {
        for (mode, text, left) in [
            // The group bits of the mode are the mask, which here is what lisa may do.
            (0o660, "user::rw-,user:lisa:rw-,group::---,mask::rw-,other::---", 0o600),
            (0o664, "user::rw-\nuser:lisa:rw-:502\ngroup::r--\nmask::rw-\nother::r--", 0o644),
            // What is denied to a user is also denied to the classes that the user may be in.
            (0o755, "u::rwx,u:7:---,g::r-x,m::r-x,o::r-x", 0o700),
            (0o755, "user::rwx,user:7:r--,group::r-x,mask::r-x,other::r-x", 0o744),
            // Members of a named group are others.
            (0o755, "user::rwx,group::r-x,group:users:---,mask:r-x,other:r-x", 0o750),
            (0o757, "user::rwx,group::r-x,group:users:rwx,mask::r-x,other::rwx", 0o755),
            (0o747, "user::rwx,group::r-x,user:users:r-x,mask::r--,other::rwx", 0o744),
            (0o757, "user::rwx,group::r-x,mask::r-x,other::rwx", 0o757),
            (0o4755, "user::rwx,group::r-x,other::r-x # a comment", 0o4755),
            (0o755, "", 0o755),
            (0o777, "user::r-x,group::rwx,other::rwx", 0o577),
            // An invalid ACL may deny anything.
            (0o755, "user::rwx,group::r-x,other::r-q", 0o700),
            (0o755, "everyone@:rwx::allow", 0o700),
        ] {
            let found = masked(mode, &[(b"user.a", b"b"), (TEXT, text.as_bytes())]);
            assert_eq!(found, left, "{text}: {found:o}");
        }
        let value = attribute(&[(1, 6, 0), (2, 6, 7), (4, 0, 0), (0x10, 6, 0), (0x20, 0, 0)]);
        assert_eq!(masked(0o660, &[(BINARY, &value)]), 0o600);
        assert_eq!(masked(0o666, &[(BINARY, &value[..9])]), 0o600);
        assert_eq!(masked(0o666, &[(BINARY, &attribute(&[(3, 7, 0)]))]), 0o600);
        assert_eq!(masked(0o666, &[(BINARY, b"")]), 0o600);
    }

    #[test]
    fn acls_are_hidden_where_they_are_taken_from_modes() {
        for (name, shown, masked) in [
            (TEXT, false, false),
            (BINARY, true, false),
            (BINARY_DEFAULT, true, false),
            (b"user.posix_acl_access", true, true),
        ] {
            assert_eq!((Acls::Shown.shows(name), Acls::Masked.shows(name)), (shown, masked));
        }
    }
}
