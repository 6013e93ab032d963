//! The bytes of files, which are forever.

use super::super::entries::Entries;
use super::super::{Metarange, RangeInfo, metarange_file, range_file};
use super::*;
use bytes::Bytes;

fn entries(model: &[(&str, u64)]) -> Entries {
    let mut entries = Entries::default();
    model.iter().for_each(|(path, number)| entries.push_entry(path, &entry(*number)));
    entries
}

fn some_ranges() -> Metarange {
    let range = |first: &str, last: &str, number: u64, is_closed| RangeInfo {
        range: digest_of(&[number as u8]),
        first_path: first.to_owned(),
        last_path: last.to_owned(),
        entries: number,
        bytes: number << 33,
        file_bytes: number << 10,
        is_closed,
    };
    Metarange { ranges: vec![range("a", "b/ä", 5, true), range("c", "c", 1, false)] }
}

#[test]
fn the_bytes_of_a_range_and_a_metarange_are_forever() {
    let range = range_file::encode(entries(&[("a", 1), ("a/b", 2), ("ä", 3), ("🦀", 4)]));
    let metarange = metarange_file::encode(&some_ranges());
    let empty = metarange_file::encode(&Metarange::default());
    // More rows than are written at once, and more than a page has.
    let mut many = Entries::default();
    (0..50_001).for_each(|number| many.push_entry(&format!("path/{number:06}"), &entry(number)));
    let many = range_file::encode(many);
    let digests = [range, metarange, empty, many].map(|bytes| (bytes.len(), digest_of(&bytes).to_string()));
    assert_eq!(
        digests.each_ref().map(|(length, digest)| (*length, digest.as_str())),
        [
            (1647, "f4309c7fa20ca53d2644517af6eb6ba6f8e17d67f3bdd94ecfaee52b3f2823a4"),
            (1055, "db4206cfc36492870e928b38269309400ea0c441d5119e85aee083f9e4614c9d"),
            (195, "d1469a3baed8d1f4faeabc2927d2e3132fc620909a565b82ea095941f5123366"),
            (2_015_059, "510322455156fbefb6e4af89e527455f883507a25bf5e288eb531a9a75084e11"),
        ]
    );
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let model = [("a", 0), ("a/b", 2), ("ä", 3), ("🦀", 4), ("\u{10ffff}", 5)];
    let decoded = range_file::decode(range_file::encode(entries(&model))).unwrap();
    let found: Vec<_> = (0..decoded.len()).map(|row| decoded.view(row)).collect();
    assert_eq!(found.len(), model.len());
    for (found, (path, number)) in found.into_iter().zip(model) {
        assert_eq!((found.path, found.to_entry()), (path, entry(number)));
        assert!(found.says(&entry(number)) && !found.says(&entry(number + 1)));
    }
    let decoded = metarange_file::decode(metarange_file::encode(&some_ranges())).unwrap();
    assert_eq!(decoded, some_ranges());
    let empty = Metarange::default();
    assert_eq!(metarange_file::decode(metarange_file::encode(&empty)).unwrap(), empty);
}

#[test]
fn sizes_that_no_object_has_are_read_as_they_were_written() {
    let mut entries = Entries::default();
    entries.push_entry("a", &ObjectEntry { size: u64::MAX, ..entry(2) });
    entries.push_entry("b", &ObjectEntry { size: 1 << 63, ..entry(3) });
    assert_eq!(entries.object_bytes(), u64::MAX);
    let decoded = range_file::decode(range_file::encode(entries)).unwrap();
    assert_eq!(decoded.sizes, [u64::MAX, 1 << 63]);
}

#[test]
fn a_file_of_many_pages_is_decoded_again() {
    let mut entries = Entries::default();
    (0..50_000).for_each(|number| entries.push_entry(&format!("path/{number:06}"), &entry(number)));
    let bytes = range_file::encode(entries);
    assert!(bytes.len() < 50_000 * 60, "{} bytes are too many", bytes.len());
    let decoded = range_file::decode(bytes).unwrap();
    assert_eq!(decoded.len(), 50_000);
    for row in (0..50_000).step_by(997) {
        assert_eq!(decoded.find(&format!("path/{row:06}")).unwrap().to_entry(), entry(row));
    }
}

#[test]
fn what_is_not_laid_out_as_it_should_be_is_refused() {
    let refusal = |what: Result<Entries, String>| what.err().unwrap();
    let metarange = metarange_file::encode(&some_ranges());
    assert_eq!(refusal(range_file::decode(metarange)), "its columns are not those that this build knows");
    let text = refusal(range_file::decode(Bytes::from("no file")));
    assert!(text.starts_with("it is no Parquet file that can be read"), "{text}");
    let unsorted = range_file::encode(entries(&[("b", 1), ("a", 2)]));
    assert_eq!(refusal(range_file::decode(unsorted)), "its paths are not in order");
    let twice = range_file::encode(entries(&[("a", 1), ("a", 2)]));
    assert_eq!(refusal(range_file::decode(twice)), "its paths are not in order");

    let mut list = some_ranges();
    list.ranges.swap(0, 1);
    let text = metarange_file::decode(metarange_file::encode(&list)).err().unwrap();
    assert_eq!(text, "its ranges are not in order");
    let mut list = some_ranges();
    list.ranges[0].entries = 0;
    let text = metarange_file::decode(metarange_file::encode(&list)).err().unwrap();
    assert_eq!(text, "a range of it is empty");
}
