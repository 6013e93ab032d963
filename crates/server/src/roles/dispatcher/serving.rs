//! Serving: who gets what of those who ask, at once or when there is something for them.

use super::Dispatcher;
use super::enlisting::NotLeased;
use super::event::{Ask, Asker, ToSession};
use super::lines::is_asked;
use windlass_core::batch::reserver::{HandOut, Holder, Reserver, SessionId};
use windlass_core::batch::views::PlanId;
use windlass_core::ids::ChunkName;
use windlass_core::time::At;

/// What a session gets for its ask.
#[derive(Debug)]
pub(super) struct Answer {
    session: SessionId,
    pub(super) what: ToSession,
}

impl Dispatcher {
    /// Gives those who wait their work as long as there is some for them, first come first.
    pub fn serve_waiting(&mut self, now: At) {
        let Some(reserver) = &mut self.reserver else { return };
        if !reserver.ready().has_woken() || self.draining {
            return;
        }
        let mut woken = reserver.ready_mut().take_woken();
        while let Some((plan, number, ask)) = self.lines.pop_first(&woken) {
            match self.serve(plan, ask, now) {
                Ok(answer) => self.deliver(answer),
                Err(unserved) => {
                    self.lines.push_front(plan, number, unserved);
                    woken.remove(&plan);
                }
            }
        }
    }

    /// Answers an ask, or lets it wait. What a session gets at once is given back: it is that session that asks.
    pub(super) fn reserve(&mut self, ask: Ask, now: At) -> Option<Answer> {
        if let Asker::Session { session, .. } = ask.asker {
            self.sessions.note_strategy(session, &ask.strategy);
            self.note_consumer(session, now);
        }
        if self.draining {
            give_nothing(ask, now);
            return None;
        }
        if self.reserver.is_none() {
            match ask.asker {
                Asker::Lease { wait: false, .. } => give_nothing(ask, now),
                Asker::Lease { .. } | Asker::Session { .. } => self.unplanned.push(ask),
            }
            return None;
        }
        let ask = self.let_in(ask)?;
        let reserver = self.reserver.as_mut()?;
        let plan = match reserver.plan(&ask.strategy, now) {
            Ok(plan) => plan,
            Err(problem) => return refuse(ask, problem),
        };
        let is_building = reserver.ready().is_building(plan);
        self.is_building |= is_building;
        // Whoever waits for the same came before, and there is nothing for them.
        let served = if self.lines.has(plan) { Err(ask) } else { self.serve(plan, ask, now) };
        let is_unknown =
            is_building || self.reserver.as_ref().is_some_and(|reserver| reserver.is_reading(plan));
        match served {
            Ok(answer) => return answer,
            Err(ask) if is_unknown => {
                self.impatient.push(plan);
                self.lines.push(plan, ask, &self.sessions);
            }
            Err(ask) if matches!(ask.asker, Asker::Lease { wait: false, .. }) => give_nothing(ask, now),
            Err(ask) => self.lines.push(plan, ask, &self.sessions),
        }
        None
    }

    /// Answers an ask, or gives it back if there is nothing for it. What a session gets is still to be sent.
    fn serve(&mut self, plan: PlanId, ask: Ask, now: At) -> Result<Option<Answer>, Ask> {
        if !is_asked(&self.sessions, &ask) {
            return Ok(None);
        }
        // A limit may have come about while it waited.
        let Some(ask) = self.let_in(ask) else { return Ok(None) };
        let Some(reserver) = &mut self.reserver else { return Err(ask) };
        let holder = match &ask.asker {
            Asker::Session { session, .. } => Holder::Session(*session),
            Asker::Lease { lease_ms, .. } => Holder::Lease { until: now.after_ms(*lease_ms) },
        };
        let hand_outs = reserver.reserve(holder, ask.max, plan, now);
        if hand_outs.is_empty() {
            return Err(ask);
        }
        let chunks = hand_outs.iter().map(|it| it.chunks.len() as u64).sum::<u64>();
        // Lanes count their own.
        let of_submissions = hand_outs.iter().filter(|it| it.task.is_none());
        self.totals.handed_out += of_submissions.map(|it| it.chunks.len() as u64).sum::<u64>();
        match ask.asker {
            Asker::Session { session, request } => {
                self.sessions.count_handed_out(session, chunks);
                Ok(Some(Answer { session, what: ToSession::Work { request, hand_outs } }))
            }
            Asker::Lease { lease_ms, reply, .. } => {
                if let Err(Ok((unsent, _))) = reply.send(Ok((hand_outs, now.after_ms(lease_ms)))) {
                    take_back(reserver, &unsent);
                }
                Ok(None)
            }
        }
    }

    /// Sends a session its answer; work for a connection that is gone goes back unharmed.
    pub(super) fn deliver(&mut self, answer: Option<Answer>) {
        let Some(Answer { session, what }) = answer else { return };
        let unsent = match self.sessions.connection(session) {
            Some(connection) => connection.send(what).err().map(|unsent| unsent.0),
            None => Some(what),
        };
        if let (Some(ToSession::Work { hand_outs, .. }), Some(reserver)) = (unsent, &mut self.reserver) {
            take_back(reserver, &hand_outs);
        }
    }

    /// Answers those who do not wish to wait, once it is known that there is nothing for them.
    pub(super) fn answer_impatient(&mut self, now: At) {
        if self.impatient.is_empty() {
            return;
        }
        let Some(reserver) = &self.reserver else { return };
        let is_unknown = |plan: &PlanId| reserver.ready().is_building(*plan) || reserver.is_reading(*plan);
        let (unknown, known): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.impatient).into_iter().partition(is_unknown);
        self.impatient = unknown;
        for plan in known {
            self.lines.take_impatient(plan).into_iter().for_each(|ask| give_nothing(ask, now));
        }
    }
}

/// The answer to an ask that nobody can have.
fn refuse(ask: Ask, problem: String) -> Option<Answer> {
    match ask.asker {
        Asker::Session { session, request } => {
            Some(Answer { session, what: ToSession::Refused { request, problem } })
        }
        Asker::Lease { reply, .. } => {
            drop(reply.send(Err(NotLeased::Refused(problem))));
            None
        }
    }
}

/// Answers an ask that gets nothing; one of a session is answered by its next work.
pub(super) fn give_nothing(ask: Ask, now: At) {
    match ask.asker {
        Asker::Lease { reply, .. } => drop(reply.send(Ok((Vec::new(), now)))),
        Asker::Session { .. } => {}
    }
}

fn take_back(reserver: &mut Reserver, hand_outs: &[HandOut]) {
    for hand_out in hand_outs {
        for (chunk, token) in &hand_out.chunks {
            reserver.release(ChunkName { submission: hand_out.submission, chunk: *chunk }, *token);
        }
    }
}
