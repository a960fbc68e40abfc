//! How groups, QPs and nodes end.

use crate::area::Maybe;
use crate::endpoint::Stage;
use crate::failure::{Failure, Verdict};
use crate::options::{MS, US, between, pick};
use crate::setup::refused;
use crate::world::{Action, Doom, Phase, World};
use std::ops::Range;
use std::time::Duration;
use trunkline::{Error, QpModify};
use trunkline_conn::time::SECOND;

/// How long after it was doomed a group may take to end what it posted, in ns.
const PATIENCE: u64 = 30 * SECOND;

impl World {
    /// Requests of a group may fail from now on, and it will be closed.
    pub(crate) fn doom(&mut self, group: usize, why: Doom) {
        let state = &mut self.groups[group];
        if state.phase != Phase::Up {
            return;
        }
        if !matches!((state.doom, why), (Some(Doom::Any(_)), _)) {
            state.doom = Some(why);
        }
        self.look_after(group);
    }

    /// A doomed group is closed once all it posted has ended, or (sometimes) before.
    pub(crate) fn look_after(&mut self, group: usize) {
        if self.groups[group].phase != Phase::Up {
            return;
        }
        let patience = match self.random.below(3) {
            0 => 0,
            _ => PATIENCE,
        };
        let delay = between(&mut self.random, 0, 3 * MS);
        self.after(delay, Action::Chase(group, self.now + patience));
    }

    /// Looks whether all that a doomed group posted has ended.
    pub(crate) fn chase(&mut self, group: usize, deadline: u64) -> Verdict {
        if self.groups[group].phase != Phase::Up {
            return Ok(());
        }
        let members = self.groups[group].members.clone();
        let waiting = members.iter().copied().find(|member| {
            let state = &self.endpoints[*member];
            !state.posted.is_empty() && state.stage != Stage::Gone
        });
        let impatient = deadline < self.now + SECOND;
        match waiting {
            Some(endpoint) if !impatient && self.now > deadline - SECOND => {
                let first = &self.endpoints[endpoint].posted[0];
                Err(Failure::stuck(format!(
                    "e{endpoint} #{} was posted at {} us, its group {group} was doomed ({:?}), and \
                     it has not ended {} s later",
                    first.seq,
                    first.at / US,
                    self.groups[group].doom,
                    PATIENCE / SECOND
                )))
            }
            Some(_) if !impatient => {
                self.after(2 * MS, Action::Chase(group, deadline));
                Ok(())
            }
            _ => {
                self.close_group(group);
                Ok(())
            }
        }
    }

    /// Closes all QPs of a group, at slightly different times.
    pub(crate) fn close_group(&mut self, group: usize) {
        self.act("close group", group, 0);
        self.groups[group].phase = Phase::Closing;
        self.groups[group].doom = Some(Doom::Any("it is being closed"));
        for member in self.groups[group].members.clone() {
            let delay = self.random.below(300 * US);
            self.after(delay, Action::Close(member));
        }
    }

    /// Destroys or resets a QP. What was outstanding is forgotten; its memory must be as it should
    /// be, and is watched from now on for anything that comes late.
    pub(crate) fn close(&mut self, endpoint: usize) -> Verdict {
        if self.endpoints[endpoint].stage == Stage::Gone {
            return Ok(());
        }
        let (node, process) = (
            self.endpoints[endpoint].node,
            self.endpoints[endpoint].process,
        );
        let state = &self.endpoints[endpoint];
        if let (Some(qp), None) = (&state.qp, &state.receives)
            && qp.state().takes_receives()
        {
            // What it has taken from its SRQ goes with it. So its program ends it first, and reads
            // what it gave back.
            qp.modify(&QpModify::Error).map_err(refused("modify_qp"))?;
        }
        self.read_completions(node, process)?;
        let reset = self.random.below(3) == 0 && self.left > 0;
        self.act(if reset { "reset" } else { "destroy" }, endpoint, node);
        let state = &mut self.endpoints[endpoint];
        state.stage = Stage::Gone;
        if reset {
            let qp = state
                .qp
                .as_ref()
                .expect("an endpoint that is there has its QP");
            qp.modify(&QpModify::Reset).map_err(refused("reset"))?;
        } else {
            state.qp = None;
        }
        self.places[node].stirred = true;
        self.forget(endpoint)?;
        self.closed_one(endpoint);
        Ok(())
    }

    /// Forgets what was outstanding at an endpoint that is gone.
    pub(crate) fn forget(&mut self, endpoint: usize) -> Verdict {
        let loose = self.loose(endpoint);
        let posted = std::mem::take(&mut self.endpoints[endpoint].posted);
        for posted in &posted {
            self.lose(endpoint, posted);
        }
        let state = &mut self.endpoints[endpoint];
        state.landings.reset();
        state.spares.clear();
        let maybe: Vec<Maybe<'_>> = state
            .incoming
            .iter()
            .flat_map(|channel| self.channels[*channel].maybe())
            .collect();
        let why = format!("e{endpoint} was closed");
        if let Some(area) = &mut state.area {
            area.close(&loose, &maybe, &why)?;
        }
        if let Some(pool) = &mut state.pool {
            pool.close(&[], &[], &why)?;
        }
        for channel in &self.endpoints[endpoint].incoming {
            self.channels[*channel].closed = true;
        }
        Ok(())
    }

    /// Tells a node's peers that it ends. It waits for nobody.
    fn shut_down(&self, index: usize) -> Verdict {
        let Some(node) = self.node(index) else {
            return Ok(());
        };
        match node.shutdown(Duration::ZERO) {
            Ok(()) | Err(Error::Unfinished) => Ok(()),
            Err(error) => Err(refused("shutdown")(error)),
        }
    }

    /// Where anything may be at an endpoint that is not at rest.
    fn loose(&mut self, endpoint: usize) -> Vec<Range<usize>> {
        let state = &mut self.endpoints[endpoint];
        let mut loose = state.landings.used();
        if let Some(receives) = &mut state.receives {
            loose.extend(receives.forget());
        }
        loose
    }

    fn closed_one(&mut self, endpoint: usize) {
        let group = self.endpoints[endpoint].group;
        let members = &self.groups[group].members;
        if members
            .iter()
            .any(|member| self.endpoints[*member].stage != Stage::Gone)
        {
            return;
        }
        self.groups[group].phase = Phase::Down;
        if self.left > 0 && !self.calm {
            let delay = between(&mut self.random, 0, 5 * MS);
            self.after(delay, Action::Rebuild(group));
        }
    }

    /// A node stops: it vanishes, or its last handle is dropped and it says so, or it is shut down
    /// under its QPs.
    pub(crate) fn stop(&mut self, index: usize) -> Verdict {
        let how = pick(&mut self.random, &["vanish", "drop", "shut down"]);
        self.act(how, index, 0);
        for process in 0..self.places[index].processes.len() {
            self.read_completions(index, process)?;
        }
        match how {
            "vanish" => self.network.net().unplug(index),
            "drop" => {}
            _ => self.shut_down(index)?,
        }
        if let Some(liar) = &mut self.liar {
            liar.forget(index);
        }
        for endpoint in 0..self.endpoints.len() {
            let state = &mut self.endpoints[endpoint];
            if state.node != index {
                continue;
            }
            let group = state.group;
            if state.stage != Stage::Gone {
                self.doom(group, Doom::Any("a node stopped"));
                self.endpoints[endpoint].stage = Stage::Gone;
                self.endpoints[endpoint].qp = None;
                self.forget(endpoint)?;
                self.closed_one(endpoint);
            }
            let state = &mut self.endpoints[endpoint];
            (state.qp, state.area, state.pool) = (None, None, None);
        }
        let place = &mut self.places[index];
        place.processes.clear();
        place.stopped.clear();
        place.own.clear();
        place.node = None;
        Ok(())
    }
}
