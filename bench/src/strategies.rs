//! The strategies that are measured, and the submissions they choose from.
//!
//! A submission is made from a number: the same number gives the same metadata in every queue, so that a submission that
//! ends is followed by one just like it and a queue stays as it is, however long it is measured.

use windlass_client::{MetaValue, Metadata, SubmitRequest};

/// The strategy that gives chunks of the crowded value only.
pub(crate) const CROWDED: &str = "SelectOnly(company=c0, OldestFirst)";

const COMPANIES: u64 = 1_000;
const USERS_PER_COMPANY: u64 = 100;
const HOSTS: u64 = 10;

/// Each block by itself, as a user would write it.
pub(crate) const PLAIN: [&str; 11] = [
    "Random",
    "OldestFirst",
    "NewestFirst",
    "CustomPriority",
    "CustomPriority(aging=10m)",
    "SelectOnly(mode=preview, Random)",
    "PreferDistinct(company, 1, Random)",
    "MaxSimultaneous(company, 1, Random)",
    "OrElse(SelectOnly(mode=preview, OldestFirst), OldestFirst)",
    "Fair(company)",
    "Fair(company, weights(c1=3, c2=5, c3=1000))",
];

/// Blocks inside blocks.
pub(crate) const NESTED: [&str; 5] = [
    "OrElse(SelectOnly(mode=preview, Random), MaxSimultaneous(company, 10, Fair(company)))",
    "PreferDistinct(company, 1, MaxSimultaneous(user, 2, OldestFirst))",
    "Fair(company, PreferDistinct(user, 1, Random))",
    "MaxSimultaneous(host, 50, Fair(company, MaxSimultaneous(user, 1, Random)))",
    "SelectOnly(mode=normal, PreferDistinct(company, 25%, CustomPriority))",
];

/// Those that must pass over a crowded value that is at its limit all the time.
pub(crate) const AT_THE_LIMIT: [&str; 7] = [
    "MaxSimultaneous(company, 1, Random)",
    "PreferDistinct(company, 1, Random)",
    NESTED[0],
    NESTED[1],
    NESTED[2],
    NESTED[3],
    NESTED[4],
];

/// Those that take from a crowded value until it is at its limit, again and again.
pub(crate) const AROUND_THE_LIMIT: [&str; 3] = [
    "MaxSimultaneous(company, 2, Random)",
    "PreferDistinct(company, 2, OldestFirst)",
    "MaxSimultaneous(host, 50, Fair(company, MaxSimultaneous(user, 2, Random)))",
];

/// Those that `make bench` measures; `make bench-strategies` measures all.
pub(crate) const USUAL: [&str; 6] = [
    "Random",
    "MaxSimultaneous(company, 1, Random)",
    "Fair(company)",
    NESTED[1],
    NESTED[3],
    AROUND_THE_LIMIT[0],
];

/// Who the submissions belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// 1,000 companies of 100 users each, all alike.
    Spread,
    /// 99 % to one user of one company, the rest to the others.
    OneValue,
}

/// What is said of one submission.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    crowd: Crowd,
    number: u64,
}

impl Kind {
    pub(crate) const fn new(crowd: Crowd, number: u64) -> Kind {
        Kind { crowd, number }
    }

    /// A number below `bound`, the same each time; `salt` tells the uses apart.
    fn draw(self, salt: u64, bound: u64) -> u64 {
        windlass_core::seeded::Seeded::new(self.number << 8 | salt).below(bound)
    }

    /// Whether it belongs to the one value that most have.
    pub(crate) fn is_crowded(self) -> bool {
        self.crowd == Crowd::OneValue && !self.number.is_multiple_of(100)
    }

    fn user(self) -> u64 {
        match self.crowd {
            Crowd::Spread => self.draw(1, COMPANIES * USERS_PER_COMPANY),
            Crowd::OneValue if self.is_crowded() => 0,
            Crowd::OneValue => USERS_PER_COMPANY + self.draw(1, (COMPANIES - 1) * USERS_PER_COMPANY),
        }
    }

    pub(crate) fn metadata(self) -> Metadata {
        let user = self.user();
        // In a crowd there is none, so that what is second choice is looked at.
        let is_preview = self.crowd == Crowd::Spread && self.draw(2, 4) == 0;
        let text = |text: String| MetaValue::Text(text);
        [
            ("company", text(format!("c{}", user / USERS_PER_COMPANY))),
            ("user", text(format!("u{user}"))),
            ("mode", text(if is_preview { "preview" } else { "normal" }.into())),
            ("host", text(format!("h{}", self.draw(3, HOSTS)))),
        ]
        .map(|(field, value)| (field.to_owned(), value))
        .into()
    }

    pub(crate) fn priority(self) -> i64 {
        self.draw(4, 100) as i64
    }

    /// Three of four have one chunk, the others two to five.
    pub(crate) fn chunks(self) -> u64 {
        if self.draw(5, 4) > 0 { 1 } else { 2 + self.draw(6, 4) }
    }
}

/// Chunks of each submission that is measured through a server: the small queue does not run dry while it is measured.
const CHUNKS: u64 = 100_000;

/// A submission to be measured through a server. Those of the crowd have fields of their own, so that one queue serves both.
pub(crate) fn request(number: u64) -> SubmitRequest {
    let (spread, crowded) = (Kind::new(Crowd::Spread, number), Kind::new(Crowd::OneValue, number));
    let mut metadata = spread.metadata();
    for (field, value) in crowded.metadata() {
        if let Some((_, own)) = CROWD_FIELDS.iter().find(|(of, _)| *of == field) {
            metadata.insert((*own).to_owned(), value);
        }
    }
    SubmitRequest { chunks: Some(CHUNKS), metadata, priority: spread.priority(), ..SubmitRequest::default() }
}

const CROWD_FIELDS: [(&str, &str); 2] = [("company", "crowd"), ("user", "member")];

/// A strategy, said of the crowd's fields. Nothing in the crowd is a preview.
pub(crate) fn of_crowd(strategy: &str) -> String {
    let preview = strategy.replace("mode=preview", "mode=absent");
    CROWD_FIELDS.iter().fold(preview, |text, (field, own)| text.replace(field, own))
}
