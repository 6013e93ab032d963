//! Role: what the leader's roles are told, in the order of the log.
//!
//! Invariants
//! - `Led` comes at the very point of the log where the leadership begins: its `reserver` knows the state there, and every
//!   effect after that point follows, none of an earlier one.
//! - `Lost` comes once for each `Led`; no effect comes between `Lost` and the next `Led`.

use std::sync::{Mutex, MutexGuard};
use windlass_core::batch::reserver::Reserver;
use windlass_core::batch::roster::Roster;
use windlass_core::entry::Effect;
use windlass_core::ids::{ContinuationToken, Epoch};
use windlass_core::time::At;

/// What happens to this node's role, for whoever acts as the leader.
#[derive(Debug)]
pub enum RoleEvent {
    /// This node leads from here on.
    Led {
        /// The leadership.
        epoch: Epoch,
        /// The machine's time at its beginning.
        at: At,
        /// The key that reservation tokens are made with.
        token_key: [u8; 16],
        /// What can be handed out, none of it out.
        reserver: Box<Reserver>,
        /// Who may still hold work of an earlier leadership under a hard limit.
        roster: Roster,
    },
    /// What the applied commands of one group ask of the leader, in order.
    Effects {
        /// The group's time.
        at: At,
        /// The effects; never empty.
        effects: Vec<Effect>,
    },
    /// This node no longer leads.
    Lost,
}

/// What an applied batch has to tell, before it is known whether this node still leads.
#[derive(Debug)]
pub(crate) enum Told {
    /// A leadership of this process began; it counts if it is still the one that is claimed.
    Led { claim: ContinuationToken, event: RoleEvent },
    /// A leadership of another process began.
    Superseded,
    /// Effects, for a leader.
    Effects(RoleEvent),
}

/// This node's role as told to whoever acts on it.
pub(crate) struct Role {
    inner: Mutex<RoleState>,
}

impl std::fmt::Debug for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Role").finish_non_exhaustive()
    }
}

/// Who is told. It must be quick, and must not ask the order anything: the machine is being changed meanwhile.
pub type RoleSink = Box<dyn Fn(RoleEvent) + Send + Sync>;

struct RoleState {
    claim: Option<ContinuationToken>,
    is_leading: bool,
    tell: RoleSink,
}

impl Role {
    pub(crate) fn new(tell: RoleSink) -> Role {
        Role { inner: Mutex::new(RoleState { claim: None, is_leading: false, tell }) }
    }

    /// Notes the token of the `lead` entry that is on its way; an earlier one no longer counts.
    pub(crate) fn claim(&self, token: ContinuationToken) {
        self.lock().claim = Some(token);
    }

    /// Whether this is the `lead` entry that counts.
    pub(crate) fn is_claimed(&self, token: ContinuationToken) -> bool {
        self.lock().claim == Some(token)
    }

    /// Tells what a committed batch gave, in order.
    pub(crate) fn tell(&self, all: Vec<Told>) {
        let mut state = self.lock();
        for told in all {
            match told {
                Told::Led { claim, event } if state.claim == Some(claim) => {
                    state.claim = None;
                    state.is_leading = true;
                    state.send(event);
                }
                Told::Effects(event) if state.is_leading => state.send(event),
                // What is claimed comes later in the log, and still counts.
                Told::Superseded => state.end(),
                Told::Led { .. } | Told::Effects(_) => {}
            }
        }
    }

    /// This node no longer leads.
    pub(crate) fn lose(&self) {
        self.lock().lose();
    }

    fn lock(&self) -> MutexGuard<'_, RoleState> {
        self.inner.lock().expect("nothing panics while it tells the role")
    }
}

impl RoleState {
    fn lose(&mut self) {
        self.claim = None;
        self.end();
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_leading) {
            self.send(RoleEvent::Lost);
        }
    }

    fn send(&self, event: RoleEvent) {
        (self.tell)(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn led(epoch: u32) -> RoleEvent {
        let reserver = Box::new(Reserver::new(Epoch(epoch), [0; 16], 0, std::iter::empty()));
        RoleEvent::Led {
            epoch: Epoch(epoch),
            at: At::from_ms(5),
            token_key: [0; 16],
            reserver,
            roster: Roster::default(),
        }
    }

    fn effects(ms: u64) -> RoleEvent {
        RoleEvent::Effects { at: At::from_ms(ms), effects: Vec::new() }
    }

    /// Each event as a word: the epoch of a leadership, the time of effects.
    fn told(events: &mut UnboundedReceiver<RoleEvent>) -> Vec<String> {
        let in_a_word = |event| match event {
            RoleEvent::Led { epoch, .. } => format!("led {}", epoch.0),
            RoleEvent::Effects { at, .. } => format!("effects {}", at.as_ms()),
            RoleEvent::Lost => "lost".to_owned(),
        };
        std::iter::from_fn(|| events.try_recv().ok()).map(in_a_word).collect()
    }

    #[test]
    fn effects_before_a_leadership_and_after_its_loss_are_not_told() {
        let (sender, mut events) = unbounded_channel();
        let role = Role::new(Box::new(move |event| drop(sender.send(event))));
        role.claim(ContinuationToken(1));
        role.tell(vec![
            Told::Effects(effects(1)),
            Told::Led { claim: ContinuationToken(1), event: led(4) },
            Told::Effects(effects(2)),
        ]);
        role.lose();
        role.lose();
        role.tell(vec![Told::Effects(effects(3))]);
        assert_eq!(told(&mut events), ["led 4", "effects 2", "lost"]);
    }

    #[test]
    fn a_claim_that_was_given_up_does_not_lead_when_its_entry_comes_late() {
        let (sender, mut events) = unbounded_channel();
        let role = Role::new(Box::new(move |event| drop(sender.send(event))));
        role.claim(ContinuationToken(1));
        role.lose();
        role.claim(ContinuationToken(2));
        role.tell(vec![
            Told::Led { claim: ContinuationToken(1), event: led(4) },
            Told::Superseded,
            Told::Led { claim: ContinuationToken(2), event: led(5) },
        ]);
        assert_eq!(told(&mut events), ["led 5"]);
    }

    #[test]
    fn another_members_leadership_ends_this_one_at_its_place_in_the_log() {
        let (sender, mut events) = unbounded_channel();
        let role = Role::new(Box::new(move |event| drop(sender.send(event))));
        role.claim(ContinuationToken(1));
        role.tell(vec![
            Told::Led { claim: ContinuationToken(1), event: led(4) },
            Told::Superseded,
            Told::Effects(effects(9)),
        ]);
        assert_eq!(told(&mut events), ["led 4", "lost"]);
    }
}
