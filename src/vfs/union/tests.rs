//! Unions of fake trees, which count the requests they get.

use super::*;
use crate::sync::{AtomicU64, Ordering};
use crate::vfs::{Timestamp, View, resolve};

/// A tree of files, and of directories (paths that end with a slash).
struct Fake {
    /// Path, kind and contents. The index in this list plus `first` is the inode number. The root
    /// is first.
    nodes: Vec<(String, FileKind, String)>,
    first: u64,
    requests: AtomicU64,
    released: AtomicU64,
}

impl Fake {
    fn new(paths: &[&str], text: &str) -> Arc<Self> {
        Self::numbered(paths, text, 1)
    }

    fn numbered(paths: &[&str], text: &str, first: u64) -> Arc<Self> {
        let mut nodes = vec![(String::new(), FileKind::Directory, String::new())];
        nodes.extend(paths.iter().map(|path| match path.strip_suffix('/') {
            Some(directory) => (directory.to_owned(), FileKind::Directory, String::new()),
            None => ((*path).to_owned(), FileKind::Regular, text.to_owned()),
        }));
        Arc::new(Self { nodes, first, requests: AtomicU64::new(0), released: AtomicU64::new(0) })
    }

    fn index(&self, ino: Ino) -> Result<usize> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if ino == Ino::ROOT {
            return Ok(0);
        }
        let index = usize::try_from(ino.number().wrapping_sub(self.first)).unwrap_or(usize::MAX);
        let is_known = (1..self.nodes.len()).contains(&index);
        is_known.then_some(index).ok_or_else(|| Error::new(Kind::NotFound, "no such inode"))
    }

    fn ino(&self, index: usize) -> Ino {
        // A directory of that name is the root again, as a damaged archive may have it.
        let is_root = index == 0 || self.nodes[index].0 == "loop";
        if is_root { Ino::ROOT } else { Ino::new(self.first + index as u64).unwrap() }
    }

    fn children(&self, directory: usize) -> Vec<usize> {
        let path = &self.nodes[directory].0;
        let within = |other: &str| match other.rsplit_once('/') {
            Some((parent, _)) => parent == path,
            None => path.is_empty() && !other.is_empty(),
        };
        (0..self.nodes.len()).filter(|&nth| within(&self.nodes[nth].0)).collect()
    }

    fn attr_at(&self, index: usize) -> Attr {
        Attr {
            ino: self.ino(index),
            kind: self.nodes[index].1,
            permissions: 0o700 + self.nodes.len() as u16 % 8,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: self.nodes[index].2.len() as u64,
            allocated: 0,
            device: 0,
            modified: Timestamp { seconds: 7, nanoseconds: 0 },
            block_size: 4096,
        }
    }
}

impl Tree for Fake {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.index(ino).map(|index| self.attr_at(index))
    }

    fn lookup(&self, parent: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let children = self.children(self.index(parent)?);
        let own = |index: usize| self.nodes[index].0.rsplit('/').next().unwrap().as_bytes();
        let found = children.into_iter().find(|&index| own(index) == name.as_bytes());
        Ok(found.map(|index| self.attr_at(index)))
    }

    fn read_dir(
        &self,
        ino: Ino,
        cookie: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let children = self.children(self.index(ino)?);
        for (nth, index) in children.into_iter().enumerate().skip(cookie.0 as usize - 2) {
            let (path, kind, _) = &self.nodes[index];
            let name = Name::parse(path.rsplit('/').next().unwrap().as_bytes()).unwrap();
            let next = Cookie(nth as u64 + 3);
            if visit(DirEntry { ino: self.ino(index), kind: *kind, name, next }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: Ino) -> Result<Vec<u8>> {
        Err(Error::new(Kind::InvalidInput, "not a symbolic link"))
    }

    fn read<'s>(
        &self,
        ino: Ino,
        _: u64,
        _: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let text = self.nodes[self.index(ino)?].2.as_bytes();
        let answer = scratch.answer(text.len());
        answer.copy_from_slice(text);
        Ok(ReadBytes::Scratch(answer))
    }

    fn seek(&self, _: Ino, offset: u64, _: SeekTarget) -> Result<u64> {
        Ok(offset)
    }

    fn has_xattrs(&self) -> bool {
        true
    }

    fn list_xattrs(&self, ino: Ino) -> Result<Vec<u8>> {
        self.index(ino).map(|_| b"user.fake\0".to_vec())
    }

    fn xattr(&self, ino: Ino, _: &[u8]) -> Result<Vec<u8>> {
        self.index(ino).map(|index| self.nodes[index].0.clone().into_bytes())
    }

    fn numbers_end(&self) -> u64 {
        if self.first == 1 { 1 + self.nodes.len() as u64 } else { u64::MAX }
    }

    fn totals(&self) -> Totals {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Totals { bytes: 1000, inodes: self.nodes.len() as u64, block_size: 4096 }
    }

    fn release(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }
}

fn layer(path: &str, tree: &Arc<Fake>) -> Layer {
    Layer { path: path.into(), name: "a".into(), tree: Arc::<Fake>::clone(tree) }
}

/// Every path, directories with a slash, files with their contents. Each path is listed once.
fn all(union: &Union) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![(Ino::ROOT, String::new())];
    while let Some((directory, before)) = waiting.pop() {
        let mut names = Vec::new();
        union
            .read_dir(directory, Cookie::START, &mut |entry| {
                names.push((entry.ino, entry.kind, entry.name.as_bytes().to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
        for (ino, kind, name) in names {
            let path = format!("{before}{}", String::from_utf8(name.clone()).unwrap());
            let attr = union.lookup(directory, Name::parse(&name).unwrap()).unwrap().unwrap();
            assert_eq!((attr.ino, attr.kind), (ino, kind), "{path}");
            assert_eq!(union.attr(ino).unwrap(), attr, "{path}");
            if kind == FileKind::Directory {
                found.push(format!("{path}/"));
                waiting.push((ino, format!("{path}/")));
            } else {
                let mut scratch = Scratch::default();
                let bytes = union.read(ino, 0, 100, &mut scratch).unwrap();
                let text = std::str::from_utf8(bytes.as_slice()).unwrap();
                found.push(format!("{path}={text}"));
            }
        }
    }
    found.sort();
    found
}

fn number(union: &Union, path: &str) -> Ino {
    resolve(union, path.as_bytes()).unwrap().ino
}

fn count_hidden(union: &Union) -> u64 {
    union.hidden().iter().map(|hidden| hidden.count).sum()
}

#[test]
fn names_the_archives_and_a_path_of_hidden_files() {
    let first = Fake::new(&["d/", "d/a", "d/b", "f"], "1");
    let second = Fake::new(&["d/", "d/b", "f"], "2");
    let named = |name: &str, tree| Layer { name: name.into(), ..layer("", tree) };
    let union = Union::new(&[named("1.sqfs", &first), named("2.sqfs", &second)]).unwrap();
    let (later, earlier) = ("2.sqfs".to_owned(), "1.sqfs".to_owned());
    assert_eq!(union.hidden(), [Hidden { later, earlier, count: 2, path: b"f".to_vec() }]);
}

#[test]
fn directories_merge_and_the_later_file_wins() {
    let first = Fake::new(&["d/", "d/a", "d/b", "only/", "only/x", "f"], "1");
    let second = Fake::new(&["d/", "d/b", "d/c", "f"], "2");
    let union = Union::new(&[layer("", &first), layer("", &second)]).unwrap();
    assert_eq!(all(&union), ["d/", "d/a=1", "d/b=2", "d/c=2", "f=2", "only/", "only/x=1"]);
    assert_eq!(count_hidden(&union), 2);
    // The later tree decides the permissions of the directory.
    assert_eq!(resolve(&union, b"d").unwrap().permissions, 0o705);
}

#[test]
fn files_and_directories_hide_each_other_and_the_later_wins() {
    let directory = Fake::new(&["x/", "x/in"], "folder");
    let file = Fake::new(&["x"], "file");
    let other = Fake::new(&["x/", "x/other"], "other");
    for (layers, expected, hidden) in [
        ([&directory, &file].as_slice(), &["x=file"][..], 1),
        (&[&file, &directory], &["x/", "x/in=folder"], 1),
        (&[&directory, &other], &["x/", "x/in=folder", "x/other=other"], 0),
        // What the file hides does not reappear.
        (&[&directory, &file, &other], &["x/", "x/other=other"], 2),
        (&[&file, &directory, &other], &["x/", "x/in=folder", "x/other=other"], 1),
    ] {
        let layers: Vec<_> = layers.iter().map(|tree| layer("", tree)).collect();
        let union = Union::new(&layers).unwrap();
        assert_eq!(all(&union), expected);
        assert_eq!(count_hidden(&union), hidden, "{expected:?}");
    }
}

#[test]
fn a_layer_is_shown_at_its_path_even_if_no_tree_has_that_directory() {
    let base = Fake::new(&["f"], "base");
    let inner = Fake::new(&["g"], "inner");
    let union = Union::new(&[layer("", &base), layer("some/where/deep", &inner)]).unwrap();
    let expected =
        ["f=base", "some/", "some/where/", "some/where/deep/", "some/where/deep/g=inner"];
    assert_eq!(all(&union), expected);
    let created = resolve(&union, b"some/where").unwrap();
    assert_eq!((created.kind, created.permissions), (FileKind::Directory, 0o755));
    assert_eq!(union.list_xattrs(created.ino).unwrap(), b"");
    assert_eq!(union.xattr(created.ino, b"user.x").unwrap_err().kind(), Kind::NoAttribute);
    assert_eq!(union.list_xattrs(number(&union, "some/where/deep")).unwrap(), b"user.fake\0");
}

#[test]
fn a_layer_merges_into_the_directory_of_another_layer() {
    let base = Fake::new(&["a/", "a/b/", "a/b/f", "a/g"], "base");
    let inner = Fake::new(&["f", "h"], "inner");
    let innermost = Fake::new(&["h"], "innermost");
    let layers = [
        layer("", &base),
        layer("/a/b/", &inner),
        layer("a/b", &innermost),
        layer("a", &innermost),
    ];
    let union = Union::new(&layers).unwrap();
    let expected = ["a/", "a/b/", "a/b/f=inner", "a/b/h=innermost", "a/g=base", "a/h=innermost"];
    assert_eq!(all(&union), expected);
    assert_eq!(count_hidden(&union), 2);
}

#[test]
fn a_lookup_asks_one_tree_once_even_with_a_thousand_trees() {
    for count in [1, 2, 1000_usize] {
        let trees: Vec<_> = (0..count)
            .map(|nth| {
                let own = format!("shared/{nth}");
                let alone = format!("alone{nth}/");
                let below = format!("alone{nth}/f");
                Fake::new(&["shared/", &own, "same", &alone, &below], "x")
            })
            .collect();
        let mut layers: Vec<_> = trees.iter().map(|tree| layer("", tree)).collect();
        layers.push(layer("way/to/it", &Fake::new(&["f"], "x")));
        let union = Union::new(&layers).unwrap();
        let requests =
            || trees.iter().map(|tree| tree.requests.load(Ordering::Relaxed)).sum::<u64>();
        let cost = |parent: Ino, name: &str| {
            let before = requests();
            let name = Name::parse(name.as_bytes()).unwrap();
            let found = union.lookup(parent, name).unwrap();
            (requests() - before, found.map(|attr| attr.ino))
        };
        let last = count - 1;
        let (cost_of_shared, shared) = cost(Ino::ROOT, "shared");
        let (cost_of_alone, alone) = cost(Ino::ROOT, &format!("alone{last}"));
        let costs = [
            cost_of_shared,
            cost_of_alone,
            cost(shared.unwrap(), "0").0,
            cost(shared.unwrap(), &last.to_string()).0,
            cost(alone.unwrap(), "f").0,
            cost(alone.unwrap(), "missing").0,
            cost(Ino::ROOT, "same").0,
        ];
        assert!(costs.iter().all(|&cost| cost == 1), "{count} trees: {costs:?}");
        // A name that a merged directory lacks costs no request to a tree.
        assert_eq!(cost(Ino::ROOT, "missing"), (0, None), "{count} trees");
        let unmerged = u64::from(count == 1);
        assert_eq!(cost(shared.unwrap(), "missing"), (unmerged, None), "{count} trees");
        assert_eq!(cost(Ino::ROOT, "way").0, 0, "{count} trees");
        let before = requests();
        union.totals();
        union.attr(shared.unwrap()).unwrap();
        assert_eq!(requests() - before, 1, "{count} trees");
    }
}

#[test]
fn releases_each_tree_once_also_behind_a_view() {
    let trees: Vec<_> = (0..3).map(|_| Fake::new(&["f"], "x")).collect();
    let mut layers: Vec<_> = trees.iter().map(|tree| layer("", tree)).collect();
    let hidden = vec![trees[0].ino(1)];
    layers[0].tree = View::without(Arc::clone(&layers[0].tree), hidden);
    let union = Union::new(&layers).unwrap();
    for times in 1..3 {
        union.release();
        let released = trees.iter().map(|tree| tree.released.load(Ordering::Relaxed));
        assert_eq!(released.collect::<Vec<_>>(), [times; 3]);
    }
}

#[test]
fn accepts_trees_up_to_the_limit() {
    let tree = Fake::new(&["f"], "x");
    let mut layers: Vec<_> = (0..TREES_MAX).map(|_| layer("", &tree)).collect();
    let union = Union::new(&layers).unwrap();
    assert_eq!(all(&union), ["f=x"]);
    assert_eq!(count_hidden(&union), TREES_MAX as u64 - 1);
    // The number belongs to the last tree, whose range is after those of all others.
    let end = tree.numbers_end();
    let first = Ino::ROOT.number() + end * (TREES_MAX as u64 - 1);
    assert!((first..first + end).contains(&number(&union, "f").number()));
    layers.push(layer("", &tree));
    let error = Union::new(&layers).err().unwrap();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("65536 archives"), "{error}");
}

#[test]
fn accepts_inode_numbers_of_48_bits_and_rejects_larger_ones() {
    let largest = (1 << INNER_BITS) - 1;
    let other = Fake::new(&["g"], "other");
    // The first node after the root has the next number.
    let fits = Fake::numbered(&["f"], "fits", largest - 1);
    assert_eq!(
        all(&Union::new(&[layer("", &fits), layer("", &other)]).unwrap()),
        ["f=fits", "g=other"]
    );
    let large = Fake::numbered(&["f"], "large", largest);
    let error = Union::new(&[layer("", &large), layer("", &other)]).err().unwrap();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    // A number that is only seen later, in a directory that only its tree has.
    let later = Fake::numbered(&["d/", "d/f"], "later", largest - 1);
    let union = Union::new(&[layer("", &other), layer("", &later)]).unwrap();
    let directory = number(&union, "d");
    let name = Name::parse(b"f").unwrap();
    assert_eq!(union.lookup(directory, name).unwrap_err().kind(), Kind::Unsupported);
    let listing = union.read_dir(directory, Cookie::START, &mut |_| ControlFlow::Continue(()));
    assert_eq!(listing.unwrap_err().kind(), Kind::Unsupported);
}

#[test]
fn numbers_are_as_small_as_the_trees_allow_and_each_is_one_inode() {
    let trees = ["a", "b", "c"].map(|name| {
        let paths = [format!("shared/{name}"), format!("{name}/"), format!("{name}/f")];
        let paths: Vec<_> =
            ["shared/"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        Fake::new(&paths, name)
    });
    let large = Fake::numbered(&["shared/", "shared/large", "large"], "large", 1 << 40);
    let union = Union::new(&[
        layer("", &trees[0]),
        layer("", &trees[1]),
        layer("", &large),
        layer("way", &trees[2]),
    ]);
    let union = union.unwrap();
    let paths =
        ["shared", "shared/a", "a", "a/f", "shared/b", "b/f", "way", "way/c/f", "way/shared"];
    let mut numbers: Vec<_> = paths.iter().map(|path| number(&union, path).number()).collect();
    assert!(numbers.iter().all(|&number| number < 40 && number < union.numbers_end()));
    numbers.extend(["large", "shared/large"].map(|path| number(&union, path).number()));
    assert!(numbers[paths.len()..].iter().all(|&number| number >> INNER_BITS == 3));
    let before = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), before);
    // Each is found and read by its number.
    assert_eq!(all(&union).len(), 14);
}

#[test]
fn an_unknown_inode_is_not_found() {
    let tree = Fake::new(&["d/", "f"], "x");
    let union = Union::new(&[layer("", &tree), layer("", &tree)]).unwrap();
    let merged = number(&union, "d").number();
    let unknown = [
        // After the merged directories; a tree's root without its number; no such tree or inode.
        merged + 1,
        (1 << INNER_BITS) - 1,
        1 << INNER_BITS,
        3 << INNER_BITS | 1,
        u64::MAX,
        2 << INNER_BITS | 77,
    ];
    for number in unknown {
        let ino = Ino::new(number).unwrap();
        let kind = |error: Error| error.kind();
        let mut scratch = Scratch::default();
        assert_eq!(union.attr(ino).map_err(kind), Err(Kind::NotFound), "{number:#x}");
        assert_eq!(union.list_xattrs(ino).map_err(kind), Err(Kind::NotFound), "{number:#x}");
        let read = union.read(ino, 0, 1, &mut scratch).map(|_| ()).map_err(kind);
        assert_eq!(read, Err(Kind::NotFound), "{number:#x}");
        let name = Name::parse(b"f").unwrap();
        assert_eq!(union.lookup(ino, name).map_err(kind), Err(Kind::NotFound), "{number:#x}");
    }
}

#[test]
fn a_cookie_continues_the_listing_and_one_past_the_end_is_rejected() {
    let names: Vec<_> = (0..100).map(|nth| format!("{nth:03}")).collect();
    let halves: Vec<_> = [0, 1]
        .map(|half| names.iter().skip(half).step_by(2).map(String::as_str).collect::<Vec<_>>())
        .iter()
        .map(|half| Fake::new(half, "x"))
        .collect();
    let union = Union::new(&[layer("", &halves[0]), layer("", &halves[1])]).unwrap();
    let list = |from: Cookie, most: usize| {
        let mut found = Vec::new();
        let listed = union.read_dir(Ino::ROOT, from, &mut |entry| {
            found.push((String::from_utf8(entry.name.as_bytes().to_vec()).unwrap(), entry.next));
            if found.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        listed.map(|()| found)
    };
    let whole = list(Cookie::START, usize::MAX).unwrap();
    assert!(whole.iter().map(|(name, _)| name).eq(&names));
    for (nth, (_, next)) in whole.iter().enumerate() {
        assert_eq!(list(*next, 3).unwrap(), whole[nth + 1..whole.len().min(nth + 4)]);
    }
    let end = whole[99].1;
    assert_eq!(list(end, 1).unwrap(), []);
    for past in [end.0 + 1, u64::MAX, 0, 1] {
        let refused = list(Cookie(past), 1).map_err(|error| error.kind());
        assert_eq!(refused, Err(Kind::InvalidInput), "{past}");
    }
}

#[test]
fn a_directory_inside_itself_fails_the_merge() {
    let layers = |paths: [&str; 2]| {
        paths.map(|path| Layer {
            path: Vec::new(),
            name: path.into(),
            tree: Fake::new(&[path, "file"], "x"),
        })
    };
    let refused = Union::new(&layers(["loop/", "loop/"])).err().unwrap();
    assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
    // If only one tree has it, nothing is merged, and the listing is that tree's.
    assert!(Union::new(&layers(["loop/", "other/"])).is_ok());
}
