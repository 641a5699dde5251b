//! All mutants of a format, by number.

use std::fs;
use std::path::Path;

use super::archive::Archive;
use super::image::Image;
use super::outside::Wrapped;
use super::random::Random;
use super::rules::Format;

/// A mutant.
pub(crate) struct Mutant {
    /// Index of the sound archive it is made of.
    pub(crate) seed: usize,
    pub(crate) bytes: Vec<u8>,
}

/// The sound archives of a format.
pub(crate) struct Population {
    names: Vec<String>,
    stock: Stock,
}

enum Stock {
    Images(Vec<Image>),
    Tars(Vec<Wrapped>),
    Zips(Vec<Archive>),
}

impl Population {
    /// Reads the archives in `directory`.
    pub(crate) fn load(format: Format, directory: &Path) -> Self {
        let seeds = directory.join("seeds");
        let names = fs::read_dir(&seeds).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let read = |name: &String| fs::read(seeds.join(name)).unwrap();
        let stock = match format {
            Format::Squashfs => {
                Stock::Images(names.iter().map(|name| Image::parse(read(name))).collect())
            }
            Format::Zip => {
                Stock::Zips(names.iter().map(|name| Archive::parse(read(name))).collect())
            }
            Format::Tar => Stock::Tars(
                names
                    .iter()
                    .map(|name| {
                        // "07-pax.tar.gz" contains "pax.tar".
                        let (_, ending) = name.rsplit_once('.').expect("an ending");
                        let inner = name.split_once('-').expect("a number").1;
                        let inner = &inner[..inner.find(".tar").expect("a tar") + 4];
                        let tar = fs::read(directory.join("inner").join(inner)).unwrap();
                        Wrapped::new(read(name), tar, ending)
                    })
                    .collect(),
            ),
        };
        Self { names, stock }
    }

    /// Name and bytes of each sound archive.
    pub(crate) fn sound(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.names.iter().enumerate().map(|(nth, name)| match &self.stock {
            Stock::Images(images) => (&**name, &*images[nth].bytes),
            Stock::Tars(tars) => (&**name, &*tars[nth].bytes),
            Stock::Zips(zips) => (&**name, &*zips[nth].bytes),
        })
    }

    pub(crate) fn name(&self, seed: usize) -> &str {
        &self.names[seed]
    }

    /// Mutant `number` of the run with that `seed`.
    pub(crate) fn mutant(&self, seed: u64, number: u64) -> Mutant {
        let mut random = Random::of(seed, number);
        let seed = (number % self.names.len() as u64) as usize;
        let other = random.below(self.names.len());
        let bytes = match &self.stock {
            Stock::Images(images) => images[seed].mutant(&images[other], &mut random),
            Stock::Tars(tars) => tars[seed].mutant(&tars[other], &mut random),
            Stock::Zips(zips) => zips[seed].mutant(&zips[other], &mut random),
        };
        Mutant { seed, bytes }
    }
}
