//! Roles: the leader's background work, each an agent that owns its state.

pub mod announcer;
pub(crate) mod clerk;
pub mod committer;
pub mod dispatcher;
pub(crate) mod librarian;
pub(crate) mod registrar;
pub(crate) mod releveler;

use crate::service::abouts::Abouts;
use announcer::Announcer;
use committer::CommitDesk;
use dispatcher::{DispatcherHandle, Event};
use std::sync::RwLock;
use windlass_order::RoleEvent;

/// Those who are told what was applied, before whoever waits for it is answered: a caller that hears of its submission can
/// reserve its chunks, and one that has paused a submission gets no more of it.
#[derive(Debug)]
pub struct Roles {
    /// Tells watchers what becomes of submissions.
    pub announcer: Announcer,
    /// Hands out chunks.
    pub dispatcher: DispatcherHandle,
    /// What is said of submissions.
    pub abouts: Abouts,
    /// What is known of commits that wait.
    pub commit_desk: CommitDesk,
    token_key: RwLock<Option<[u8; 16]>>,
}

impl Roles {
    /// Roles that have nothing to lead yet.
    pub fn new(dispatcher: DispatcherHandle) -> Roles {
        Roles {
            announcer: Announcer::default(),
            dispatcher,
            abouts: Abouts::default(),
            commit_desk: CommitDesk::default(),
            token_key: RwLock::new(None),
        }
    }

    /// The key of tokens, while this node leads.
    pub fn token_key(&self) -> Option<[u8; 16]> {
        *self.token_key.read().expect("nothing panics while it holds the key")
    }

    fn set_token_key(&self, key: Option<[u8; 16]>) {
        *self.token_key.write().expect("nothing panics while it holds the key") = key;
    }

    /// Hands what was applied to those who act on it.
    pub fn tell(&self, event: RoleEvent) {
        let told = match event {
            RoleEvent::Led { at, token_key, reserver, roster, .. } => {
                self.abouts.lead();
                self.set_token_key(Some(token_key));
                self.commit_desk.lead();
                Event::Led { at, reserver, roster }
            }
            RoleEvent::Effects { at, effects } => {
                // Before the Dispatcher hears of it: what it hands out from there on goes out with what is said now.
                self.abouts.tell(&effects);
                self.announcer.announce(&effects);
                self.commit_desk.tell(&effects);
                Event::Effects { at, effects }
            }
            RoleEvent::Lost => {
                self.set_token_key(None);
                Event::Lost
            }
        };
        self.dispatcher.send(told);
    }
}
