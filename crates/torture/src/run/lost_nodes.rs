//! Nodes of which no copy can be read are chosen between two boots ([`crate::unreachable`]).

use base::{BLOCK_U64, SECTOR};
use format::page::VolumeState;
use offline::pool::dump::{PoolItem, PoolStructure, dump};
use sim::Fault;

use super::Run;

impl Run {
    /// Between two boots: all copies of some nodes cannot be read.
    pub(super) fn lose_nodes(&mut self) {
        let env = self.env.clone();
        let most = env.settings.failures.lost_nodes;
        if most == 0 || env.one_in(4) {
            return;
        }
        let checksums = env.one_in(4);
        let whats = if checksums { self.groups_with_checksums() } else { self.mapped_volumes() };
        for _ in 0..1 + env.below(2) {
            if whats.is_empty() {
                return;
            }
            let (volume, what) = &whats[env.below(whats.len() as u64) as usize];
            let nodes: Vec<u64> = self.dumped(what.clone()).iter().filter_map(node).collect();
            if nodes.is_empty() {
                continue;
            }
            for _ in 0..1 + env.below(most) {
                self.lose(nodes[env.below(nodes.len() as u64) as usize], what);
            }
            let live = env.model.borrow().live().into_iter().map(|(_, id)| id);
            env.unreachable.borrow_mut().lose(*volume, checksums, live);
        }
    }

    /// Volumes, with their numbers in the model unless they are deleted; not those that hold what
    /// is staged.
    fn mapped_volumes(&mut self) -> Vec<(Option<u32>, PoolStructure)> {
        let env = self.env.clone();
        let number = |name: &str| env.model.borrow().number_of(name);
        let with_nodes = |item| match item {
            // What a snapshot shares with its volume is lost to both.
            PoolItem::Volume { id, name, state, mapping: Some(_), staged: None, .. }
                if name.starts_with("vol") =>
            {
                let id = PoolStructure::Mapping(id.to_string());
                Some((number(&name).filter(|_| state == VolumeState::Live), id))
            }
            _ => None,
        };
        self.dumped(PoolStructure::Volumes).into_iter().filter_map(with_nodes).collect()
    }

    fn groups_with_checksums(&mut self) -> Vec<(Option<u32>, PoolStructure)> {
        let with_nodes = |item| match item {
            PoolItem::Group { group, checksums: Some(_), .. } => {
                Some((None, PoolStructure::Checksums(group)))
            }
            _ => None,
        };
        self.dumped(PoolStructure::Groups).into_iter().filter_map(with_nodes).collect()
    }

    /// A sector of each copy of this node cannot be read.
    fn lose(&mut self, address: u64, what: &PoolStructure) {
        let env = self.env.clone();
        env.note(format!("no copy of node {address} ({what:?}) can be read"));
        env.count("faults: nodes of which no copy can be read", 1);
        let files = self.devices.all();
        for copy in self.dumped(PoolStructure::Node(address)) {
            let PoolItem::Copy { device, offset, .. } = copy else { continue };
            let Some(file) = files.iter().find(|f| f.path == device) else {
                env.fail(format!("a copy of node {address} is on {device}, which is not there"))
            };
            let offset = offset + env.below(BLOCK_U64 / SECTOR as u64) * SECTOR as u64;
            env.world.inject(file.file, Fault::ReadError { offset, len: SECTOR as u64 });
        }
    }

    fn dumped(&mut self, what: PoolStructure) -> Vec<PoolItem> {
        let rt = self.runtime();
        let (r, files) = (rt.clone(), self.devices.alive());
        let outcome = rt.block_on(async move {
            let mut items = Vec::new();
            dump(&r, files, &what, &mut |item| items.push(item)).await.map(|()| items)
        });
        rt.kill();
        match outcome {
            Some(Ok(items)) => items,
            other => self.env.fail(format!("no dump of the pool: {other:?}")),
        }
    }

    /// Makes all lost nodes readable again.
    pub(super) fn find_nodes(&self) {
        if !self.env.unreachable.borrow().any() {
            return;
        }
        self.devices.all().iter().for_each(|f| self.env.world.cure(f.file));
        self.env.unreachable.borrow_mut().end();
        self.env.note("all nodes can be read again");
    }
}

fn node(item: &PoolItem) -> Option<u64> {
    if let PoolItem::Node(node) = item { Some(node.address) } else { None }
}
