//! The simulation passes the conformance suite under several seeds.

use conformance::{Harness, SLOTS};
use rt::{FileId, Order, Rt, SocketId};
use sim::{DiskModel, World};

struct Simulated {
    world: World,
    rt: Rt,
}

impl Harness for Simulated {
    fn rt(&self) -> Rt {
        self.rt.clone()
    }
    fn file(&mut self, len: u64) -> FileId {
        self.world.add_disk(DiskModel::nvme(len))
    }
    fn listener(&mut self) -> SocketId {
        self.world.listener()
    }
    fn connect(&mut self, listener: SocketId) -> SocketId {
        self.world.connect(listener)
    }
}

#[test]
fn the_simulation_passes_the_suite() {
    let mut seed = 0;
    for _ in 0..8 {
        conformance::run(&mut || {
            seed += 1;
            let world = World::new(seed);
            // Some cases look at effects of a completion in tasks that were woken earlier.
            let rt = Rt::new(world.backend(), Order::Fifo, SLOTS);
            Box::new(Simulated { world, rt })
        });
    }
}
