//! Stories of the book: what a consumer says, when, and what it forgets.

use super::*;
use windlass_core::batch::submissions::Metadata;
use windlass_core::ids::{Attempt, ChunkIndex, Epoch};

fn book(concurrency: usize, held_max: usize) -> Book {
    Book::new(concurrency, held_max, "\"Random\"".into())
}

fn id(number: u64) -> SubmissionId {
    SubmissionId::from_u64(number).unwrap()
}

fn chunk(index: u64) -> WorkChunk {
    let attempt = Attempt { epoch: Epoch(1), nth: 0 };
    WorkChunk::new(ChunkIndex(index), AttemptToken { attempt, proof: index })
}

fn work_of(submission: u64, chunks: std::ops::Range<u64>) -> WorkOf {
    WorkOf {
        submission: id(submission),
        prefix: None,
        payload: None,
        opaque: None,
        metadata: Metadata::new(),
        chunks: chunks.map(chunk).collect(),
        task: None,
        branch: None,
    }
}

/// A book that holds chunks 0 to 3 of submission 7, of which 0 and 1 run.
fn busy() -> Book {
    let mut book = book(2, 4);
    book.reserve().unwrap();
    book.work(1, false, vec![work_of(7, 0..4)]);
    assert!(book.begin().is_some() && book.begin().is_some() && book.begin().is_none());
    book
}

fn key(index: u64) -> Key {
    (ChunkName { submission: id(7), chunk: ChunkIndex(index) }, chunk(index).token())
}

fn asked(frame: Option<ClientFrame>) -> u32 {
    match frame {
        Some(ClientFrame::Reserve { max, .. }) => max,
        other => panic!("{other:?} is no reserve"),
    }
}

#[test]
fn it_asks_for_what_there_is_room_for_and_never_for_more() {
    let mut book = book(2, 8);
    assert_eq!(asked(book.reserve()), 8);
    assert_eq!(book.reserve(), None);

    book.work(1, true, vec![work_of(7, 0..5)]);
    assert_eq!(book.reserve(), None, "three of the first reserve are still to come");
    book.work(1, false, vec![work_of(8, 0..1)]);
    assert_eq!(asked(book.reserve()), 2);
}

#[test]
fn one_free_place_is_not_worth_a_frame_until_nothing_is_left_to_begin() {
    let mut book = book(1, 8);
    book.reserve().unwrap();
    book.work(1, false, vec![work_of(7, 0..8)]);
    for index in 0..8 {
        assert!(book.begin().is_some());
        book.end(key(index), Ok(Output::Nothing.into()));
        let reserve = book.reserve();
        assert_eq!(reserve.is_some(), index % 2 == 1, "after chunk {index}");
    }
}

#[test]
fn reports_go_out_in_one_frame_for_each_submission_and_fate_without_waiting_for_answers() {
    let mut book = busy();
    book.end(key(0), Ok(Output::Nothing.into()));
    book.end(key(1), Err(Failure::new("broken")));
    let done = vec![DoneChunk { chunk: chunk(0), output: Output::Nothing, entries: None }];
    let failed = vec![FailedChunk { chunk: chunk(1), reason: "broken".into() }];
    assert_eq!(
        book.reports(),
        [
            ClientFrame::Complete { request: 2, submission: id(7), done },
            ClientFrame::Fail { request: 3, submission: id(7), failed },
        ]
    );
    assert_eq!(book.reports(), []);

    assert!(book.begin().is_some());
    book.end(key(2), Err(Failure::give_back("not here")));
    let chunks = vec![chunk(2)];
    assert_eq!(book.reports(), [ClientFrame::Release { request: 4, submission: id(7), chunks }]);

    book.settled(3, &[Verdict::Accepted]);
    book.settled(2, &[Verdict::AlreadyDone]);
    book.settled(4, &[Verdict::Accepted]);
    assert_eq!(book.tally(), Tally { completed: 0, failed: 1, released: 1, late: 1 });
    assert_eq!((book.running_len(), book.queued_len()), (0, 1));
}

#[test]
fn tasks_that_are_done_share_one_frame_unless_their_work_gave_something() {
    let task = |number| {
        let token = AttemptToken { attempt: Attempt::of_task(Epoch(1), 0), proof: number };
        let name = ChunkName { submission: id(number), chunk: ChunkIndex(0) };
        (WorkOf { chunks: vec![WorkChunk::new(name.chunk, token)], ..work_of(number, 0..0) }, (name, token))
    };
    let (works, keys): (Vec<WorkOf>, Vec<Key>) = (1..=5).map(task).unzip();
    let reported = |nth: usize| WorkTask::new(works[nth].submission, works[nth].chunks[0]);
    let mut book = book(5, 5);
    book.reserve().unwrap();
    book.work(1, false, works.clone());
    while book.begin().is_some() {}
    for nth in [0, 1, 4] {
        book.end(keys[nth], Ok(Output::Nothing.into()));
    }
    book.end(keys[2], Ok(Output::Stored.into()));
    book.end(keys[3], Err(Failure::new("broken")));
    let done = vec![DoneChunk { chunk: works[2].chunks[0], output: Output::Stored, entries: None }];
    let failed = vec![FailedChunk { chunk: works[3].chunks[0], reason: "broken".into() }];
    let tasks = vec![reported(0), reported(1), reported(4)];
    let frames = book.reports();
    assert_eq!(
        frames,
        [
            ClientFrame::Complete { request: 2, submission: id(3), done },
            ClientFrame::Fail { request: 3, submission: id(4), failed },
            ClientFrame::CompleteTasks { request: 4, tasks },
        ]
    );

    let claimed: Vec<_> = book.reconnect().iter().map(|frame| (request_of(frame), keys_of(frame))).collect();
    assert_eq!(claimed, (5..).zip(keys.iter().map(|key| vec![*key])).collect::<Vec<_>>());
    for (request, _) in claimed {
        book.settled(request, &[Verdict::Accepted]);
    }
    assert_eq!(book.reports(), frames, "what was not answered is said again");
    book.settled(4, &[Verdict::Accepted, Verdict::AlreadyDone, Verdict::Accepted]);
    assert_eq!(book.tally(), Tally { completed: 2, failed: 0, released: 0, late: 1 });
    book.settled(2, &[Verdict::Accepted]);
    book.settled(3, &[Verdict::Accepted]);
    assert!(book.is_clear());
}

#[test]
fn large_outputs_are_spread_over_several_frames() {
    let mut book = book(100, 200);
    book.reserve().unwrap();
    book.work(1, false, vec![work_of(7, 0..100)]);
    while book.begin().is_some() {}
    for index in 0..100 {
        book.end(key(index), Ok(Output::Inline(vec![0; 64 * 1_024].into()).into()));
    }
    let frames = book.reports();
    assert_eq!(frames.len(), 7, "16 outputs of 64 KiB fill a frame");
    let bytes = frames.iter().map(|frame| windlass_api::frames::encode(frame).len()).max().unwrap();
    assert!(bytes <= windlass_api::frames::FRAME_BYTES_MAX);
}

#[test]
fn after_a_reconnect_everything_held_is_claimed_and_everything_unanswered_is_said_again() {
    let mut book = busy();
    book.end(key(0), Ok(Output::Nothing.into()));
    let said = book.reports();
    book.end(key(1), Ok(Output::Nothing.into()));
    assert!(book.begin().is_some());

    let chunks = [3, 2, 1, 0].map(chunk).to_vec();
    assert_eq!(book.reconnect(), [ClientFrame::Reassert { request: 3, submission: id(7), chunks }]);
    assert_eq!((book.reports(), book.reserve()), (vec![], None), "claims come first");

    // 3 was queued and is lost, 2 runs and is lost, 1 is finished, 0 was done before the cut.
    use Verdict::{Accepted, AlreadyDone, ReservationLost};
    book.settled(3, &[ReservationLost, ReservationLost, Accepted, AlreadyDone]);
    assert_eq!((book.queued_len(), book.running_len()), (0, 1));
    let reports = book.reports();
    assert_eq!((&reports[..1], reports.len()), (&said[..], 2));
    book.settled(2, &[AlreadyDone]);
    assert_eq!(book.reports(), []);
    assert_eq!(asked(book.reserve()), 3);
}

#[test]
fn a_claim_that_the_server_cannot_take_yet_is_made_again() {
    let mut book = busy();
    let claim = book.reconnect();
    assert_eq!(book.refused(2, true), Refused::Later);
    assert_eq!(book.resume(), claim);
    book.settled(2, &[Verdict::Accepted; 4]);
    assert_eq!((book.queued_len(), book.running_len()), (2, 2));
}

#[test]
fn a_reserve_that_was_cut_off_is_asked_anew_and_its_late_answer_is_not_expected() {
    let mut book = book(2, 4);
    assert_eq!(asked(book.reserve()), 4);
    assert_eq!(book.reconnect(), []);
    assert_eq!(asked(book.reserve()), 4);
}

#[test]
fn a_stop_gives_back_what_is_not_begun_also_what_comes_late() {
    let mut book = busy();
    book.stop();
    assert_eq!(book.reserve(), None);
    let chunks = vec![chunk(2), chunk(3)];
    assert_eq!(book.reports(), [ClientFrame::Release { request: 2, submission: id(7), chunks }]);

    book.work(9, false, vec![work_of(8, 0..1)]);
    let chunks = vec![chunk(0)];
    assert_eq!(book.reports(), [ClientFrame::Release { request: 3, submission: id(8), chunks }]);
    assert!(!book.is_clear());

    book.end(key(0), Ok(Output::Nothing.into()));
    book.end(key(1), Ok(Output::Nothing.into()));
    assert_eq!(book.reports().len(), 1);
    for (request, chunks) in [(2, 2), (3, 1), (4, 2)] {
        book.settled(request, &vec![Verdict::Accepted; chunks]);
    }
    assert!(book.is_clear());
    assert_eq!(book.tally(), Tally { completed: 2, released: 3, ..Tally::default() });
}

#[test]
fn a_refused_reserve_pauses_or_ends_the_work_and_a_refused_report_is_said_again_or_dropped() {
    let mut book = busy();
    book.end(key(0), Ok(Output::Nothing.into()));
    book.end(key(1), Ok(Output::Nothing.into()));
    let report = book.reports().remove(0);
    assert_eq!(book.refused(2, true), Refused::Later);
    assert!(!book.is_clear());
    assert_eq!(book.resume(), [report]);
    assert_eq!(book.refused(2, false), Refused::Report);
    assert_eq!(book.tally().late, 2);

    let reserve = book.reserve().unwrap();
    assert_eq!(book.refused(request_of(&reserve), true), Refused::Later);
    assert_eq!(book.reserve(), None);
    assert_eq!(book.resume(), []);
    let reserve = book.reserve().unwrap();
    assert_eq!(book.refused(request_of(&reserve), false), Refused::Reserve);
}

#[test]
fn the_same_chunk_handed_out_twice_is_two_attempts() {
    let mut book = busy();
    let again = WorkChunk { nth: 1, proof: 99, ..chunk(0) };
    book.work(8, false, vec![WorkOf { chunks: vec![again], ..work_of(7, 0..0) }]);
    book.end(key(1), Ok(Output::Nothing.into()));
    for _ in 0..3 {
        if let Some(held) = book.begin() {
            book.end(held.key(), Ok(Output::Nothing.into()));
        }
    }
    assert_eq!(book.running_len(), 1);
    book.end(key(0), Ok(Output::Nothing.into()));
    let ClientFrame::Complete { done, .. } = &book.reports()[0] else { panic!("a report is due") };
    assert_eq!(done.len(), 5);
}

#[test]
fn what_is_held_follows_the_pace_and_what_is_too_much_goes_back_unless_it_runs() {
    let mut book = book(2, 4);
    assert_eq!(asked(book.reserve()), 4);
    book.hold(100, 1_000);
    assert_eq!(asked(book.reserve()), 96, "quick work: four are asked for already");
    book.work(1, false, vec![work_of(7, 0..4)]);
    book.work(2, false, vec![work_of(7, 4..50)]);
    assert!(book.begin().is_some() && book.begin().is_some());

    book.hold(4, 5);
    assert_eq!((book.running_len(), book.queued_len()), (2, 3), "two run, and three of the oldest are kept");
    let chunks: Vec<WorkChunk> = (5..50).map(chunk).collect();
    assert_eq!(book.reports(), [ClientFrame::Release { request: 3, submission: id(7), chunks }]);
    assert_eq!(book.reserve(), None, "there is no room");

    book.hold(1, 1);
    assert_eq!((book.running_len(), book.queued_len()), (2, 0), "what runs goes on");
    book.settled(3, &[Verdict::Accepted; 45]);
    assert_eq!(book.tally().released, 45);
}
