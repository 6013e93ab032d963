//! Stories of explanations: what a strategy would give next and why, and why a submission waits.

#![expect(clippy::unwrap_used, reason = "a story ends where it meets an error")]

#[expect(dead_code, reason = "its other half is for those who compare strategies with a model")]
#[path = "strategies/invented.rs"]
mod invented;

use std::collections::BTreeMap;
use windlass_core::audit;
use windlass_core::batch::reserver::{HandOut, Holder, Reserver, SessionId};
use windlass_core::batch::strategy::Strategy;
use windlass_core::batch::submissions::{ChunkCounts, MetaValue, Traits};
use windlass_core::batch::views::PlanId;
use windlass_core::batch::views::explain::{
    Counted, Explanation, FieldSaturated, PartSeen, PartStanding, SubmissionSeen, Verdict,
};
use windlass_core::entry::Effect;
use windlass_core::ids::{Attempt, ChunkIndex, ChunkName, Epoch, SubmissionId};
use windlass_core::seeded::Seeded;
use windlass_core::time::At;

const ANNA: Holder = Holder::Session(SessionId(1));

fn id(number: u64) -> SubmissionId {
    SubmissionId::from_u64(number).unwrap()
}

/// A leader's memory, and questions to it.
struct Queue {
    reserver: Reserver,
}

impl Queue {
    fn new() -> Queue {
        Queue { reserver: Reserver::new(Epoch(1), [0; 16], 7, std::iter::empty()) }
    }

    /// A submission of so many chunks, with metadata such as `mode=preview company=7`.
    fn submit(&mut self, number: u64, chunks: u64, metadata: &str) {
        self.put(number, chunks, metadata, 0, false);
    }

    fn put(&mut self, number: u64, chunks: u64, metadata: &str, priority: i64, paused: bool) {
        let traits = Traits { priority, metadata: metadata_of(metadata), paused, is_plain: true };
        let counts = ChunkCounts { total: chunks, done: 0, failed: 0 };
        let ranges = vec![std::ops::Range { start: 0, end: chunks }];
        self.reserver.absorb(&Effect::Ready { submission: id(number), round: 0, ranges, counts, traits });
    }

    fn plan(&mut self, strategy: &str) -> PlanId {
        let plan = self.reserver.plan(&strategy.parse().unwrap(), At::from_ms(0)).unwrap();
        while self.reserver.ready_mut().build() {}
        plan
    }

    fn reserve(&mut self, max: usize, strategy: &str) -> Vec<HandOut> {
        let plan = self.plan(strategy);
        self.reserver.reserve(ANNA, max, plan, At::from_ms(0))
    }

    /// Explains, and makes sure that nothing is changed by it, and that the next chunk is the one that is handed out.
    fn explain(&mut self, strategy: &str) -> Explanation {
        let plan = self.plan(strategy);
        let explanation = self.reserver.explain(plan).unwrap();
        assert_eq!(self.reserver.explain(plan).as_ref(), Some(&explanation), "asking changes nothing");
        audit::check_views(&self.reserver);
        explanation
    }

    /// The same, and takes the chunk that it names.
    fn explain_and_take(&mut self, strategy: &str) -> Explanation {
        let explanation = self.explain(strategy);
        let taken = self.reserve(1, strategy);
        let taken = taken.first().map(|it| ChunkName { submission: it.submission, chunk: it.chunks[0].0 });
        assert_eq!(explanation.next, taken, "what is explained is what comes");
        explanation
    }

    fn explain_one(&mut self, strategy: &str, number: u64) -> SubmissionSeen {
        let plan = self.plan(strategy);
        self.reserver.explain_submission(plan, id(number)).unwrap()
    }

    fn says(&mut self, strategy: &str, number: u64) -> (Verdict, String) {
        let seen = self.explain_one(strategy, number);
        (seen.verdict, seen.says)
    }
}

fn metadata_of(text: &str) -> BTreeMap<String, MetaValue> {
    let pair = |pair: &str| {
        let (field, value) = pair.split_once('=').unwrap();
        (field.to_owned(), value.parse().map_or_else(|_| value.into(), MetaValue::Integer))
    };
    text.split_whitespace().map(pair).collect()
}

/// Block, where the next chunk comes from, and what it says; the blocks inside further in.
fn told(part: &PartSeen) -> Vec<String> {
    let standing = match part.standing {
        PartStanding::Gives => "gives",
        PartStanding::Empty => "empty",
        PartStanding::NotAsked => "not asked",
        PartStanding::Repeats => "repeats",
    };
    let own = format!("{} [{standing}] {}", part.text, part.says);
    let inner = part.inner.iter().flat_map(told).map(|line| format!("  {line}"));
    std::iter::once(own).chain(inner).collect()
}

#[test]
fn plain_orders_say_which_submission_is_first_and_among_how_many() {
    for (strategy, next, why, says) in [
        ("OldestFirst", 1, "1 is the oldest of 3 ready submissions", "the oldest of 3 submissions"),
        ("NewestFirst", 3, "3 is the newest of 3 ready submissions", "the newest of 3 submissions"),
        (
            "CustomPriority",
            2,
            "2 has the highest priority of 3 ready submissions",
            "the highest priority of 3 submissions",
        ),
    ] {
        let mut queue = Queue::new();
        (1..=3).for_each(|number| queue.put(number, 5, "", i64::from(number == 2), false));
        let explanation = queue.explain_and_take(strategy);
        assert_eq!(explanation.next, Some(ChunkName { submission: id(next), chunk: ChunkIndex(0) }));
        assert_eq!((explanation.why.as_str(), explanation.is_by_chance), (why, false));
        assert_eq!(told(&explanation.part), [format!("{strategy} [gives] {says}")]);
        assert_eq!(explanation.part.submissions, Some(3));
    }
}

#[test]
fn chance_is_explained_by_what_it_draws_from_with_the_draw_that_would_come() {
    let mut queue = Queue::new();
    queue.submit(1, 30, "mode=a");
    queue.submit(2, 10, "mode=a");
    queue.submit(3, 60, "mode=b");
    for left in (1..=20).rev() {
        let explanation = queue.explain_and_take("Random");
        assert!(explanation.is_by_chance);
        let chunks = 80 + left;
        assert_eq!(explanation.part.chunks, Some(chunks));
        let says = format!("Random [gives] by chance: each of {chunks} chunks of 3 submissions is as likely");
        assert_eq!(told(&explanation.part), [says]);
        let draw = explanation.next.unwrap().submission;
        let why = format!(
            "chance decides, each of {chunks} chunks of 3 ready submissions being as likely; {draw} is one draw"
        );
        assert_eq!(explanation.why, why);
    }
}

#[test]
fn an_empty_queue_says_where_its_chunks_are() {
    let mut queue = Queue::new();
    let explanation = queue.explain_and_take("OrElse(SelectOnly(mode=a, Random), OldestFirst)");
    assert_eq!((explanation.next, explanation.why.as_str()), (None, "the queue is empty"));

    queue.submit(1, 3, "");
    queue.put(2, 4, "", 0, true);
    assert_eq!(queue.reserve(3, "OldestFirst")[0].chunks.len(), 3);
    let attempt = Attempt { epoch: Epoch(1), nth: 0 };
    let counts = ChunkCounts { total: 3, done: 0, failed: 0 };
    let (submission, retry_at) = (id(1), Some(At::from_ms(100)));
    queue.reserver.absorb(&Effect::Failed { submission, chunk: ChunkIndex(0), attempt, retry_at, counts });
    let why = "nothing is ready: 4 chunks are paused, 2 chunks are in work, 1 chunk is waiting for a retry";
    assert_eq!(queue.explain("Random").why, why);
}

#[test]
fn a_fallback_is_explained_by_what_the_first_side_lacks() {
    let strategy = "OrElse(SelectOnly(mode=preview, Random), Fair(company))";
    let mut queue = Queue::new();
    queue.submit(1, 5, "mode=normal company=7");
    queue.submit(2, 5, "mode=normal company=8");
    let explanation = queue.explain_and_take(strategy);
    let why = "1 is the only ready submission of company=7, whose turn it is; what comes before it in the \
               strategy gives nothing";
    assert_eq!(explanation.why, why);
    assert_eq!(
        told(&explanation.part),
        [
            "OrElse [gives] the first gives nothing, so the fallback is asked, and gives",
            "  SelectOnly(mode=preview) [empty] none of 2 ready submissions has mode=preview",
            "    Random [empty] no ready submission gets here",
            "  Fair(company) [gives] it is the turn of company=7",
            "    OldestFirst [gives] the only submission of company=7",
        ]
    );

    queue.submit(3, 2, "mode=preview company=7");
    let explanation = queue.explain_and_take(strategy);
    assert_eq!(
        told(&explanation.part),
        [
            "OrElse [gives] the first gives, so the fallback is not asked",
            "  SelectOnly(mode=preview) [gives] 1 ready submission has mode=preview, with 2 ready chunks; 2 others are left out",
            "    Random [gives] by chance: each of 2 chunks of 1 submission is as likely",
            "  Fair(company) [not asked] not asked, since what comes before it gives",
            "    OldestFirst [not asked] not asked, since what comes before it gives",
        ]
    );
}

#[test]
fn a_hard_limit_names_the_values_at_it_the_worst_first_and_how_many_more_there_are() {
    let mut queue = Queue::new();
    for company in 1..=12 {
        // Company 12 has twelve submissions, company 1 has one.
        for nth in 0..company {
            queue.submit(1_000 * company + nth, 9, &format!("company={company}"));
        }
    }
    let strategy = "MaxSimultaneous(company, 1, OldestFirst)";
    for _ in 0..11 {
        queue.explain_and_take(strategy);
    }
    let explanation = queue.explain(strategy);
    assert_eq!(explanation.next, Some(ChunkName { submission: id(12_000), chunk: ChunkIndex(0) }));
    assert_eq!(explanation.why, "12000 is the oldest of 12 ready submissions; 66 more wait behind a limit");
    let limit = explanation.part.limit.clone().unwrap();
    assert_eq!((limit.max, limit.submissions, limit.more, limit.is_cut), (1, 66, 1, false));
    let worst: Vec<_> =
        limit.saturated.iter().map(|it| (it.value.to_string(), it.out, it.submissions)).collect();
    let expected: Vec<_> = (2..=11).rev().map(|company| (company.to_string(), 1, company)).collect();
    assert_eq!(worst, expected);
    assert_eq!(
        told(&explanation.part),
        [
            "MaxSimultaneous(company, 1) [gives] 11 values of company have their 1 chunk in work; 66 ready \
             submissions wait behind them",
            "  OldestFirst [gives] the oldest of 12 submissions",
        ]
    );

    queue.explain_and_take(strategy);
    let explanation = queue.explain_and_take(strategy);
    assert_eq!(
        (explanation.next, explanation.why.as_str()),
        (None, "all 78 ready submissions wait behind a limit")
    );
    let inner = "  OldestFirst [empty] 78 ready submissions that get here wait behind a limit";
    assert_eq!(told(&explanation.part)[1], inner);
}

#[test]
fn a_limit_in_percent_is_shown_as_what_it_comes_to() {
    let mut queue = Queue::new();
    queue.reserver.ready_mut().set_room(8, false);
    queue.submit(1, 9, "company=1");
    let strategy = "MaxSimultaneous(company, 25%)";
    assert_eq!(queue.reserve(9, strategy)[0].chunks.len(), 2);
    let part = queue.explain(strategy).part;
    let says = "1 value of company has its 2 chunks (25% of 8 consumers) in work; 1 ready submission waits behind it";
    assert_eq!(part.says, says);

    queue.reserver.ready_mut().set_room(8, true);
    let explanation = queue.explain(strategy);
    assert!(explanation.part.says.starts_with("work of an earlier leadership may still be under way"));
    assert_eq!(explanation.why, "the only ready submission waits for consumers of an earlier leadership");
    let seen = queue.explain_one(strategy, 1);
    assert!(seen.says.starts_with("work of an earlier leadership may still be under way"), "{}", seen.says);
    let FieldSaturated { saturated, is_holding, .. } = &seen.ways[0].limits[0];
    assert_eq!((*is_holding, saturated.out, saturated.max), (true, 2, 2));
}

#[test]
fn a_soft_limit_says_whether_it_was_passed() {
    let mut queue = Queue::new();
    queue.submit(1, 9, "company=1");
    queue.submit(2, 1, "company=2");
    let strategy = "PreferDistinct(company, 1, OldestFirst)";
    let says = |explanation: Explanation| explanation.part.says;
    assert_eq!(says(queue.explain_and_take(strategy)), "no value of company has 1 chunk in work yet");
    assert_eq!(
        says(queue.explain_and_take(strategy)),
        "1 value of company has 1 chunk in work, so 1 ready submission of it waits for the others"
    );
    assert_eq!(
        says(queue.explain_and_take(strategy)),
        "all that is ready has 1 chunk of its company in work already, so it is taken all the same"
    );
    queue.reserve(9, strategy);
    assert_eq!(
        says(queue.explain_and_take(strategy)),
        "nothing is ready inside, with 1 chunk of its company in work or not"
    );
}

#[test]
fn turns_are_shown_in_their_order_with_weights_and_how_far_each_is_ahead() {
    let mut queue = Queue::new();
    for company in 1..=7 {
        queue.submit(company, 50, &format!("company={company}"));
        queue.submit(100 + company, 50, &format!("company={company}"));
    }
    let strategy = "Fair(company, weights(1=4))";
    let turns = |explanation: &Explanation| {
        let turns = explanation.part.turns.clone().unwrap();
        assert_eq!((turns.field.as_str(), turns.values), ("company", 7));
        let shown = turns.next.into_iter();
        shown
            .map(|it| (it.value.unwrap().to_string(), it.weight, it.ahead_thousandths, it.submissions))
            .collect::<Vec<_>>()
    };
    let first = queue.explain_and_take(strategy);
    let expected: Vec<_> =
        (1..=5).map(|it: u32| (it.to_string(), if it == 1 { 4 } else { 1 }, 0, Some(2))).collect();
    assert_eq!(turns(&first), expected);
    assert_eq!(first.part.says, "it is the turn of company=1");

    // Company 1 has had one of its four turns; the others have had none.
    let second = queue.explain_and_take(strategy);
    assert_eq!(turns(&second)[0], ("2".to_owned(), 1, 0, Some(2)));
    (3..=7).for_each(|_| drop(queue.explain_and_take(strategy)));
    let after = queue.explain_and_take(strategy);
    assert_eq!(turns(&after)[..2], [("1".to_owned(), 4, 250, Some(2)), ("2".to_owned(), 1, 1_000, Some(2))]);
}

#[test]
fn turns_inside_turns_and_alternatives_inside_them_are_explained_for_whoever_has_the_turn() {
    let mut queue = Queue::new();
    queue.submit(1, 9, "company=1 user=10 mode=normal");
    queue.submit(2, 9, "company=1 user=11 mode=normal");
    queue.submit(3, 9, "company=2 user=20 mode=preview");
    let strategy = "Fair(company, Fair(user, OrElse(SelectOnly(mode=preview), OldestFirst)))";
    let explanation = queue.explain_and_take(strategy);
    let why = "1 is the oldest of the ready submissions of company=1 and user=10, whose turn it is";
    assert_eq!(explanation.why, why);
    assert_eq!(
        told(&explanation.part),
        [
            "Fair(company) [gives] it is the turn of company=1",
            "  Fair(user) [gives] it is the turn of user=10",
            "    OrElse [gives] the first gives nothing, so the fallback is asked, and gives",
            "      SelectOnly(mode=preview) [empty] only submissions with mode=preview",
            "        Random [empty] nothing that is not behind a limit gets here",
            "      OldestFirst [gives] the oldest of those of user=10",
        ]
    );
    let users = explanation.part.inner[0].turns.clone().unwrap().next;
    assert_eq!(
        users.iter().map(|it| it.value.clone().unwrap().to_string()).collect::<Vec<_>>(),
        ["10", "11"]
    );
    let explanation = queue.explain_and_take(strategy);
    assert_eq!(explanation.part.says, "it is the turn of company=2");
    let chance = "        Random [gives] by chance: each ready chunk of user=20 is as likely";
    assert_eq!(told(&explanation.part)[4], chance);
}

#[test]
fn a_side_that_is_the_same_as_one_before_it_says_so() {
    let mut queue = Queue::new();
    let part = queue.explain("OrElse(OldestFirst, OldestFirst)").part;
    assert_eq!(told(&part)[2], "  OldestFirst [repeats] the same as what comes before it");
}

#[test]
fn a_submission_that_no_part_takes_is_told_what_each_wants() {
    let mut queue = Queue::new();
    queue.submit(1, 5, "mode=normal");
    let strategy = "OrElse(SelectOnly(mode=preview, Random), SelectOnly(size=7, OldestFirst))";
    let seen = queue.explain_one(strategy, 1);
    assert_eq!(seen.verdict, Verdict::NotMatched);
    assert_eq!(
        seen.says,
        "SelectOnly wants mode=preview, and it has mode=normal; SelectOnly wants size=7, and it has no size"
    );
    let ways: Vec<&str> = seen.ways.iter().map(|way| way.text.as_str()).collect();
    assert_eq!(ways, ["SelectOnly(mode=preview, Random)", "SelectOnly(size=7, OldestFirst)"]);
}

#[test]
fn a_submission_without_a_ready_chunk_or_paused_says_so_with_its_counts() {
    let mut queue = Queue::new();
    queue.submit(1, 3, "");
    queue.reserve(3, "OldestFirst");
    let nothing = "none of its chunks is ready: 3 chunks are in work";
    assert_eq!(queue.says("Random", 1), (Verdict::NothingReady, nothing.to_owned()));

    let attempt = Attempt { epoch: Epoch(1), nth: 0 };
    let counts = ChunkCounts { total: 3, done: 0, failed: 0 };
    let (submission, retry_at) = (id(1), Some(At::from_ms(100)));
    queue.reserver.absorb(&Effect::Failed { submission, chunk: ChunkIndex(0), attempt, retry_at, counts });
    let seen = queue.explain_one("Random", 1);
    let says =
        "none of its chunks is ready: 2 chunks are in work, and 1 chunk waits for its retry after a failure";
    assert_eq!((seen.says.as_str(), seen.out, seen.delayed, seen.retry_at), (says, 2, 1, retry_at));

    queue.put(2, 4, "", 0, true);
    let paused = "it is paused, so nothing of it goes out; 4 chunks would be ready if it were resumed";
    assert_eq!(queue.says("Random", 2), (Verdict::Paused, paused.to_owned()));
    let plan = queue.plan("Random");
    assert_eq!(queue.reserver.explain_submission(plan, id(9)), None);
}

#[test]
fn a_submission_behind_a_limit_is_told_the_value_and_its_room() {
    let mut queue = Queue::new();
    queue.submit(1, 5, "company=7");
    queue.submit(2, 5, "company=7");
    let strategy = "MaxSimultaneous(company, 2, OldestFirst)";
    queue.reserve(9, strategy);
    let says = "company=7 has 2 of at most 2 chunks in work, and so 1 other submission is held back";
    assert_eq!(queue.says(strategy, 2), (Verdict::Limited, says.to_owned()));
    let limit = queue.explain_one(strategy, 2).ways[0].limits[0].clone();
    assert_eq!((limit.field.as_str(), limit.saturated.out, limit.saturated.max), ("company", 2, 2));
}

#[test]
fn the_submissions_ahead_are_those_that_are_handed_out_before_it() {
    for strategy in [
        "OldestFirst",
        "NewestFirst",
        "CustomPriority",
        "MaxSimultaneous(company, 9, OldestFirst)",
        "MaxSimultaneous(company, 9, MaxSimultaneous(mode, 20, NewestFirst))",
        "SelectOnly(mode=0, MaxSimultaneous(company, 9, CustomPriority))",
    ] {
        let mut queue = Queue::new();
        for number in 1..=30 {
            let metadata = format!("company={} mode={}", number % 7, number % 2);
            queue.put(number, 1, &metadata, i64::try_from(number * 11 % 5).unwrap(), false);
        }
        let number = 14;
        let rank = queue.explain_one(strategy, number).ways[0].rank.clone().unwrap();
        assert_eq!(rank.chance, None);
        let mut before = 0;
        while queue.reserve(1, strategy)[0].submission != id(number) {
            before += 1;
        }
        assert_eq!(rank.ahead, Counted { count: before, is_cut: false }, "{strategy}");
    }
}

#[test]
fn the_next_submission_is_told_that_it_is_next_and_the_others_how_many_are_ahead() {
    let mut queue = Queue::new();
    (1..=3).for_each(|number| queue.submit(number, 5, ""));
    assert_eq!(queue.says("OldestFirst", 1), (Verdict::Next, "it is next".to_owned()));
    let two = "2 submissions are ahead of it";
    assert_eq!(queue.says("OldestFirst", 3), (Verdict::Waits, two.to_owned()));
    let chance = "chance decides, with 5 of 15 chunks its own";
    assert_eq!(queue.says("Random", 3), (Verdict::Next, chance.to_owned()));
}

#[test]
fn more_ahead_than_are_counted_are_said_to_be_more() {
    let mut queue = Queue::new();
    (1..=100_002).for_each(|number| queue.submit(number, 1, ""));
    let says = "more than 100,000 submissions are ahead of it";
    assert_eq!(queue.says("OldestFirst", 100_002), (Verdict::Waits, says.to_owned()));
    assert_eq!(queue.says("OldestFirst", 100_001).1, "100,000 submissions are ahead of it");
}

#[test]
fn a_submission_waits_for_the_turn_of_its_value_and_then_for_those_within() {
    let mut queue = Queue::new();
    for company in 1..=4 {
        (0..3).for_each(|nth| queue.submit(10 * company + nth, 5, &format!("company={company}")));
    }
    let strategy = "Fair(company)";
    let says =
        "2 values of company have a turn before company=3, and 1 submission is ahead of it within that turn";
    assert_eq!(queue.says(strategy, 31), (Verdict::Waits, says.to_owned()));
    let first = "it is the turn of company=1, and it is next";
    assert_eq!(queue.says(strategy, 10), (Verdict::Next, first.to_owned()));
    let by_chance =
        "it is the turn of company=1, and chance decides, with 5 of 15 chunks its own within that turn";
    assert_eq!(queue.says("Fair(company, Random)", 12), (Verdict::Next, by_chance.to_owned()));
}

#[test]
fn a_submission_of_a_fallback_is_told_that_something_else_gives_first() {
    let mut queue = Queue::new();
    queue.submit(1, 5, "mode=preview");
    queue.submit(2, 5, "mode=normal");
    let seen = queue.explain_one("OrElse(SelectOnly(mode=preview, Random), OldestFirst)", 2);
    let says = "what comes before this in the strategy gives, so this is not asked; when it is, 1 submission is ahead \
                of it";
    assert_eq!((seen.verdict, seen.says.as_str()), (Verdict::NotAsked, says));
    assert_eq!(seen.ways[0].verdict, Verdict::NotMatched);
}

#[test]
fn the_overview_counts_values_and_entitles_those_with_work_by_weight() {
    let mut queue = Queue::new();
    queue.submit(1, 10, "company=1 mode=a");
    queue.submit(2, 20, "company=2 mode=a");
    queue.submit(3, 30, "mode=a");
    let strategy = "MaxSimultaneous(company, 2, Fair(company, weights(1=3), OldestFirst))";
    assert_eq!(queue.reserve(9, strategy).iter().map(|it| it.chunks.len()).sum::<usize>(), 9);
    let ready = queue.reserver.ready();
    let fields: Vec<_> =
        ready.fields_known().into_iter().map(|it| (it.name, it.values, it.is_in_use)).collect();
    assert_eq!(fields, [("company".to_owned(), 2, true), ("mode".to_owned(), 1, false)]);

    let seen = ready.field_seen("company", 1);
    assert!(seen.is_fair && !seen.is_cut);
    assert_eq!((seen.values.len(), seen.more), (1, 2), "the others are left out, and said to be there");
    assert_eq!(seen.handed_out, 9, "of all values and of those without the field");
    let seen = ready.field_seen("company", 9).values;
    let shares: Vec<_> = seen.iter().map(|it| (it.value.clone(), it.weight, it.share_millionths)).collect();
    let company = |number: i64| Some(MetaValue::Integer(number));
    assert_eq!(
        shares,
        [(None, 1, Some(200_000)), (company(2), 1, Some(200_000)), (company(1), 3, Some(600_000))]
    );
    let counts: Vec<_> =
        seen.iter().map(|it| (it.counts.ready_chunks, it.counts.out, it.counts.handed_out)).collect();
    assert_eq!(counts, [(25, 5, 5), (18, 2, 2), (8, 2, 2)]);
    assert!(ready.field_seen("nope", 9).values.is_empty());

    let reached = ready.limits_reached(9);
    let limits = reached.limits.iter().map(|it| (it.value.to_string(), it.out, it.max, it.is_hard));
    assert_eq!(limits.collect::<Vec<_>>(), [("1".to_owned(), 2, 2, true), ("2".to_owned(), 2, 2, true)]);
    let strategies = ready.strategies_in_use();
    assert_eq!(strategies.len(), 1);
    assert_eq!(strategies[0].strategy, strategy.parse::<Strategy>().unwrap());
}

#[test]
fn who_only_looks_at_a_strategy_does_not_use_it_and_makes_room_for_those_who_do() {
    let mut queue = Queue::new();
    queue.submit(1, 10, "company=1");
    queue.reserve(2, "OldestFirst");
    let asked = "MaxSimultaneous(company, 1, Fair(company, weights(1=3)))".parse::<Strategy>().unwrap();
    let look =
        |queue: &mut Queue, strategy: &Strategy| queue.reserver.plan_for_a_look(strategy, At::from_ms(0));
    let plan = look(&mut queue, &asked).unwrap();
    assert_eq!(queue.reserver.explain(plan).unwrap().next, None);
    let ready = queue.reserver.ready();
    assert_eq!(ready.strategies_in_use().len(), 1, "only OldestFirst is in use");
    assert_eq!(ready.limits_reached(9).limits, [], "nobody is held back by a limit that nobody works with");
    let seen = ready.field_seen("company", 9);
    assert_eq!((seen.is_fair, seen.values[0].weight), (false, 1));
    assert!(ready.fields_known().iter().all(|it| !it.is_in_use));

    // Looks fill the rest of what there may be; those who work get it all the same.
    let limit = |max| Strategy::Random.max_simultaneous("company", max);
    let refused = (1..).find(|max| look(&mut queue, &limit(*max)).is_err()).unwrap();
    assert!(refused > 60, "{refused}");
    queue.plan(&limit(refused).to_string());
    queue.plan(&asked.to_string());
    assert_eq!(queue.reserver.ready().strategies_in_use().len(), 3);
    audit::check_views(&queue.reserver);
}

/// Whatever the strategy and the queue, what is explained is what comes, nothing is changed by asking, and every submission
/// gets an answer that fits.
#[test]
fn explanations_of_invented_strategies_agree_with_what_is_handed_out() {
    for seed in 0..400 {
        let mut chance = Seeded::new(seed);
        let mut queue = Queue::new();
        queue.reserver.ready_mut().set_room(3, false);
        for number in 1..=chance.below(25) + 1 {
            let (traits, chunks) = (invented::traits(&mut chance), 1 + chance.below(4));
            let counts = ChunkCounts { total: chunks, done: 0, failed: 0 };
            let ready = Effect::Ready {
                submission: id(number),
                round: 0,
                ranges: vec![std::ops::Range { start: 0, end: chunks }],
                counts,
                traits,
            };
            queue.reserver.absorb(&ready);
        }
        let strategies: Vec<String> = (0..3).map(|_| invented::strategy(&mut chance).to_string()).collect();
        for step in 0..30 {
            let strategy = &strategies[invented::below(&mut chance, strategies.len())];
            let asked_about = 1 + chance.below(26);
            let plan = queue.plan(strategy);
            let one = queue.reserver.explain_submission(plan, id(asked_about));
            let explanation = queue.explain_and_take(strategy);
            let context = format!("seed {seed}, step {step}, {strategy}: {explanation:?}");
            let gives = explanation.part.standing == PartStanding::Gives;
            assert_eq!(gives, explanation.next.is_some(), "{context}");
            let Some(one) = one else { continue };
            let is_next = explanation.next.is_some_and(|next| next.submission == id(asked_about));
            match one.verdict {
                Verdict::Next if explanation.is_by_chance => {}
                Verdict::Next => assert!(is_next, "{context}: {one:?}"),
                Verdict::Waits
                | Verdict::NotAsked
                | Verdict::Limited
                | Verdict::NotMatched
                | Verdict::Paused
                | Verdict::NothingReady => assert!(!is_next, "{context}: {one:?}"),
            }
        }
    }
}
